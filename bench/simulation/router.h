// bench/simulation/router.h -- which of several servers a request goes to.
//
// Called by the simulator at each arrival. round_robin; least_loaded (fewest requests that have not
// ended); prefix_affinity: the server that was sent most of the prompt's segments before, unless it
// has over a quarter more load than the average (and kSlack requests), else the least loaded of
// those below that bound: consistent hashing with bounded loads has the same aim (Mirrokni, Thorup,
// Zadimoghaddam, arXiv:1608.01350). A router sees its own decisions only, no server's cache.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "bench/simulation/trace.h"

namespace quire {

class Router {
 public:
  // routing: a name of SimulationConfig::routing.
  Router(const std::string& routing, size_t num_servers);
  // loads[i]: requests that server i has and that have not ended.
  size_t Route(const TraceRequest& request, const std::vector<int64_t>& loads);

 private:
  static constexpr int64_t kSlack = 4;
  static constexpr size_t kMaxKnown = 1 << 16;  // prefixes remembered per server, twice
  struct Server {
    absl::flat_hash_set<uint64_t> recent, older;  // hashes of prefixes of segments
  };
  int64_t Matched(const Server& server, const TraceRequest& request) const;
  static void Remember(Server& server, const TraceRequest& request);

  const bool least_loaded_, affinity_;
  size_t next_ = 0;
  std::vector<Server> servers_;
};

}  // namespace quire
