// base/memory_info.h -- what this process may use, and what it uses.
#pragma once

#include <cstdint>
#include <string>

namespace quire {

struct MemoryInfo {
  int64_t limit = 0;         // bytes this process may use at most
  std::string limit_source;  // which file said so
  int64_t available = 0;  // of the limit, not used by anybody now; reclaimable cache counts as free
  int64_t rss = 0;        // this process, resident
};

// Reads cgroup v2 (the whole chain of parents) and v1 limits, and /proc/meminfo; the smallest
// rules. `root` is prefixed to all paths: tests put a made-up tree there.
MemoryInfo ReadMemoryInfo(const std::string& root = "");

// Resident bytes of this process now; 0 if unknown.
int64_t ResidentBytes();

}  // namespace quire
