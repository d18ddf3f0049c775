// server/admin/cache_actions.h -- what operators do to the cache. Engine thread, between two steps.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "scheduler/scheduler.h"

namespace quire {

struct FlushCounts {
  int64_t nodes = 0;
  int64_t emptied_blocks = 0;  // of all pools and the host tier
  int64_t ended_pins = 0;
};

// cache_salt: of this one only.
FlushCounts FlushPrefixes(Scheduler& scheduler, const std::optional<std::string>& cache_salt);

}  // namespace quire
