#include "sampling/selection.h"

#include <cstddef>
#include <limits>

namespace quire {
namespace {

constexpr float kNone = -std::numeric_limits<float>::infinity();

bool Better(const TokenLogprob& a, const TokenLogprob& b) {
  return a.logprob > b.logprob || (a.logprob == b.logprob && a.token < b.token);
}

}  // namespace

int32_t ArgMax(std::span<const float> values) {
  // 16 running maxima let the compiler use vector instructions; which of them holds the maximum
  // doesn't matter, as the second loop looks for its first place.
  constexpr size_t kLanes = 16;
  float lanes[kLanes];
  for (float& lane : lanes) lane = kNone;
  size_t i = 0;
  for (; i + kLanes <= values.size(); i += kLanes) {
    for (size_t j = 0; j < kLanes; ++j) {
      lanes[j] = values[i + j] > lanes[j] ? values[i + j] : lanes[j];
    }
  }
  float best = kNone;
  for (float lane : lanes) best = lane > best ? lane : best;
  for (; i < values.size(); ++i) best = values[i] > best ? values[i] : best;
  if (best == kNone) return -1;
  for (size_t at = 0;; ++at) {
    if (values[at] == best) return static_cast<int32_t>(at);
  }
}

void SelectTop(std::span<const float> values, size_t k, std::vector<TokenLogprob>& heap) {
  heap.clear();
  k = std::min(k, values.size());
  if (k == 0) return;
  for (size_t i = 0; i < k; ++i) {
    const float value = values[i] == values[i] ? values[i] : kNone;
    heap.push_back({static_cast<TokenId>(i), value});
  }
  std::make_heap(heap.begin(), heap.end(), Better);
  for (size_t i = k; i < values.size(); ++i) {
    // An equal value has a higher index than all that are in: it is not better.
    if (!(values[i] > heap.front().logprob)) continue;
    std::pop_heap(heap.begin(), heap.end(), Better);
    heap.back() = {static_cast<TokenId>(i), values[i]};
    std::push_heap(heap.begin(), heap.end(), Better);
  }
}

}  // namespace quire
