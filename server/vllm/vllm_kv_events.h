// server/vllm/vllm_kv_events.h -- KV events as messages of smg.grpc.common. Any thread; no gRPC.
//
// Source: the comments of PyPI's smg-grpc-proto 0.4.28 (common.proto), and how smg-grpc-servicer
// 0.14 relays vLLM's events (facts, no code).
#pragma once

#include <cstdint>

#include "server/events/kv_event_hub.h"
#include "smg/grpc/common/common.pb.h"

namespace quire {

// next_event_id: of the stream; counts what happened. What a snapshot tells has the id 0.
smg::grpc::common::KvEventBatch ToVllm(const KvEventBatch& batch, const KvEventFacts& facts,
                                       uint64_t& next_event_id);

}  // namespace quire
