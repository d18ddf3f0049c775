// server/openengine/oe_kv_events.h -- KV events as messages of openengine.v1. Any thread; no gRPC.
//
// Source: openengine.v1's reference, "KV connector and KV events" (facts, no code).
#pragma once

#include <string>

#include "openengine/v1/openengine.pb.h"
#include "server/events/kv_event_hub.h"
#include "server/options.h"

namespace quire {

// Hashes are all their bytes. The contract has no mark for snapshots: one begins with
// all_blocks_cleared, and its last batch has the number of the last batch that it contains.
openengine::v1::SubscribeKvEventsResponse ToOe(const KvEventBatch& batch,
                                               const KvEventFacts& facts);
// The last message of a subscription that fails.
openengine::v1::SubscribeKvEventsResponse OeKvEventsError(const absl::Status& status);

// The ZeroMQ publisher at `endpoint`, where it is bound, and `replay_endpoint`, empty if there is
// none. False if nobody could connect to it from what the contract can say: it is bound to nothing
// or to no TCP port, or this machine has no address.
bool FillZmqSource(const ServerOptions& options, const std::string& endpoint,
                   const std::string& replay_endpoint, openengine::v1::KvEventSource& source);

}  // namespace quire
