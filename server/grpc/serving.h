// server/grpc/serving.h -- what services that speak other engines' protos are given: the way in,
// and what may be told of the engine. All of it outlives them.
#pragma once

#include <functional>

#include "paged_cache/cache_layout.h"
#include "scheduler/engine.h"
#include "server/admin/admin_service.h"
#include "server/front_door.h"
#include "server/grpc/kv_event_streams.h"
#include "server/metrics/token_rate.h"

namespace quire {

class KvEventPublisher;

struct Serving {
  FrontDoor& door;
  Engine& engine;
  const ServerFacts& facts;
  const CacheLayout& layout;
  std::function<bool()> paused;  // by Admin.Pause; any thread
  const TokenRate& token_rate;
  KvEventStreams& kv_events;                           // not on() without the option
  std::function<const KvEventPublisher*()> publisher;  // over ZeroMQ; null: none
};

}  // namespace quire
