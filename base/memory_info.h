// base/memory_info.h -- what this process may use of the host's memory, and what others use.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace quire {

struct MemoryInfo {
  int64_t limit = 0;         // bytes this process may use at most
  std::string limit_source;  // which file said so
  int64_t available = 0;  // of the limit, not used by anybody now; reclaimable cache counts as free
  std::string available_source;  // which file said so
  int64_t rss = 0;               // this process, resident
  int64_t others = 0;            // of the limit: neither available nor ours
};

// Reads cgroup v2 (the whole chain of parents) and v1 limits, the NUMA nodes that this process may
// allocate on (Mems_allowed, cpuset), and /proc/meminfo; the smallest rules. Other processes' use
// shows in MemAvailable, in a cgroup's usage and in what a node has left. `root` is prefixed to all
// paths: tests put a made-up tree there.
MemoryInfo ReadMemoryInfo(const std::string& root = "");

// "0-1,3" gives {0, 1, 3}. What is not a list of numbers gives what was read before it; numbers
// beyond 4095 end it.
std::vector<int32_t> ParseNodeList(const std::string& text);

// Resident bytes of this process now; 0 if unknown.
int64_t ResidentBytes();

}  // namespace quire
