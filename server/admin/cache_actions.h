// server/admin/cache_actions.h -- what operators do to the cache. Engine thread, between two steps.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "models/pool_sizes.h"
#include "scheduler/scheduler.h"
#include "server/admin/cache_control.h"

namespace quire {

struct FlushCounts {
  int64_t nodes = 0;
  int64_t emptied_blocks = 0;  // of all pools and the host tier
  int64_t ended_pins = 0;
};

// cache_salt: of this one only.
FlushCounts FlushPrefixes(Scheduler& scheduler, const std::optional<std::string>& cache_salt);

// Sizes all pools as `num_blocks` of the main one ask for; in the end all or none have changed.
// ERRORS: kInvalidArgument naming the pool and what is possible, kUnimplemented.
absl::Status ResizePools(Scheduler& scheduler, const CacheControl& control, const PoolMix& mix,
                         int32_t num_blocks);

}  // namespace quire
