// server/admin/cache_control.h -- what an operator does to the cache that needs the pages' bytes.
//
// The model's runtime has them; tests have fakes. All run on the engine thread between two steps.
// An empty function: this daemon can't do it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/status.h"
#include "scheduler/scheduler.h"

namespace quire {

// What went from the cache to a directory, or from there into the cache.
struct CacheCounts {
  int64_t entries = 0;  // prefix blocks
  int64_t tokens = 0;
  int64_t bytes = 0;
  int64_t known = 0;    // were there already
  int64_t dropped = 0;  // no room, at fault, or of no use without what is missing before them
};

struct CacheControl {
  // Scheduler::ResizePool, the page operations that are due after it, and the memory given back.
  // ERRORS: kInvalidArgument naming the least or the most that is possible now.
  std::function<absl::Status(Scheduler&, size_t pool, int32_t num_blocks)> resize;
  // directory: canonical, below cache_directory.
  std::function<absl::StatusOr<CacheCounts>(const std::string& directory)> save;
  std::function<absl::StatusOr<CacheCounts>(const std::string& directory)> load;
};

}  // namespace quire
