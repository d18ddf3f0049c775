#include "sampling/selection.h"

#include <algorithm>
#include <limits>

namespace quire {
namespace {

constexpr float kNone = -std::numeric_limits<float>::infinity();

bool Better(const TokenLogprob& a, const TokenLogprob& b) {
  return a.logprob > b.logprob || (a.logprob == b.logprob && a.token < b.token);
}

}  // namespace

void SelectTop(std::span<const float> values, size_t k, std::vector<TokenLogprob>& best) {
  best.clear();
  k = std::min(k, values.size());
  if (k == 0) return;
  for (size_t i = 0; i < k; ++i) {
    const float value = values[i] == values[i] ? values[i] : kNone;
    best.push_back({static_cast<TokenId>(i), value});
  }
  std::make_heap(best.begin(), best.end(), Better);  // the worst is in front
  // An equal value has a higher index than all that are in: it is not better.
  for (size_t i = k; (i = kernels::FirstAbove(values, i, best.front().logprob)) < values.size();
       ++i) {
    std::pop_heap(best.begin(), best.end(), Better);
    best.back() = {static_cast<TokenId>(i), values[i]};
    std::push_heap(best.begin(), best.end(), Better);
  }
  std::sort_heap(best.begin(), best.end(), Better);
}

}  // namespace quire
