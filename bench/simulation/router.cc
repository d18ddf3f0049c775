#include "bench/simulation/router.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace quire {
namespace {

// visit(hash of the prompt's first k segments, tokens of the k-th) for k = 1, 2 ... until it
// returns false. A prompt of bare ids counts each 64 of them as a segment.
template <typename Visit>
void ForEachPrefix(const TraceRequest& r, Visit visit) {
  uint64_t hash = 0;
  for (const PromptSegment& s : r.prompt) {
    hash = MixId(hash, s.text, static_cast<uint64_t>(s.num_tokens));
    if (!visit(hash, s.num_tokens)) return;
  }
  constexpr size_t kChunk = 64;
  for (size_t i = 0; i + kChunk <= r.token_ids.size(); i += kChunk) {
    for (size_t k = i; k < i + kChunk; ++k) {
      hash = MixId(hash, 1, static_cast<uint64_t>(r.token_ids[k]));
    }
    if (!visit(hash, static_cast<int32_t>(kChunk))) return;
  }
}

}  // namespace

Router::Router(const std::string& routing, size_t num_servers)
    : least_loaded_(routing == "least_loaded"),
      affinity_(routing == "prefix_affinity"),
      servers_(num_servers) {}

size_t Router::Route(const TraceRequest& request, const std::vector<int64_t>& loads) {
  if (servers_.size() == 1) return 0;
  if (!least_loaded_ && !affinity_) return next_++ % servers_.size();
  const int64_t total = std::accumulate(loads.begin(), loads.end(), int64_t{0});
  const int64_t bound = total * 5 / (4 * static_cast<int64_t>(loads.size())) + kSlack;
  size_t best = 0;
  std::pair<int64_t, int64_t> best_score{-1, 0};
  for (size_t i = 0; i < servers_.size(); ++i) {
    const bool eligible = affinity_ && loads[i] <= bound;
    const std::pair<int64_t, int64_t> score{eligible ? Matched(servers_[i], request) : 0,
                                            -loads[i]};
    if (score > best_score || best_score.first < 0) {
      best = i;
      best_score = score;
    }
  }
  if (affinity_) Remember(servers_[best], request);
  return best;
}

int64_t Router::Matched(const Server& server, const TraceRequest& request) const {
  int64_t tokens = 0;
  ForEachPrefix(request, [&](uint64_t hash, int32_t num_tokens) {
    if (!server.recent.contains(hash) && !server.older.contains(hash)) return false;
    tokens += num_tokens;
    return true;
  });
  return tokens;
}

void Router::Remember(Server& server, const TraceRequest& request) {
  ForEachPrefix(request, [&](uint64_t hash, int32_t) {
    if (server.recent.size() >= kMaxKnown) {
      server.older = std::move(server.recent);
      server.recent.clear();
    }
    server.recent.insert(hash);
    return true;
  });
}

}  // namespace quire
