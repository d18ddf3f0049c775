// server/events/kv_event_encoding.h -- KV events in msgpack, as indexers and routers read them.
//
//   payload = [time in seconds, [event ...], data parallel rank]
//
// An event is a map with the key "type" (vLLM 0.33), or the same fields by their places in an array
// that begins with the type (older readers; llm-d-kv-cache reads both). Fields that have their
// defaults are left out at the end.
//
// Sources: msgpack specification; vLLM 0.33, distributed/kv_events.py (names, order and defaults of
// fields; facts, no code).
// Thread: any.
#pragma once

#include <cstdint>
#include <string>

#include "server/events/kv_event_hub.h"

namespace quire {

enum class KvEventEncoding : uint8_t { kMap, kArray };

struct KvEventFormat {
  KvEventEncoding encoding = KvEventEncoding::kMap;
  // Block hashes as 64-bit numbers, or as byte strings of all they have.
  bool int_hashes = true;
};

std::string EncodeKvEvents(const KvEventBatch& batch, const KvEventFacts& facts,
                           const KvEventFormat& format);

}  // namespace quire
