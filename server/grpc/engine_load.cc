// server/grpc/engine_load.cc -- see engine_load.h.
#include "server/grpc/engine_load.h"

#include "models/pool_sizes.h"

namespace quire {

EngineLoad LoadOf(const EngineSnapshot& snapshot, const CacheLayout& layout) {
  const SchedulerStats& s = snapshot.scheduler;
  EngineLoad load;
  load.running_requests = s.live_requests - s.queued_requests;
  load.waiting_requests = s.queued_requests;
  load.block_size = layout.block_size;
  load.prompt_tokens = s.prefix_query_tokens;
  load.cached_tokens = s.prefix_hit_tokens;
  const auto pool = static_cast<size_t>(MainPool(layout));
  if (pool < snapshot.pools.size()) {
    load.total_blocks = snapshot.pools[pool].num_usable;
    load.used_blocks = snapshot.pools[pool].num_used;
  }
  return load;
}

}  // namespace quire
