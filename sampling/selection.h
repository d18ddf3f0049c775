// sampling/selection.h -- best-k and best-by-mass without sorting the vocabulary.
//
// Called by processors.cc and sampler.cc; pure; thread: any.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "sampling/sampler.h"

namespace quire {

// The lowest index of the largest value; -1 if there is none above -infinity. NaN is never largest.
int32_t ArgMax(std::span<const float> values);

// The k best of `values` as (index, value), in heap order with the worst in front; ties go to the
// lower index and NaN counts as -infinity. O(n + k log k log(n / k)) for values in random order.
void SelectTop(std::span<const float> values, size_t k, std::vector<TokenLogprob>& heap);

// Reorders `order` so that its first n entries are the shortest best-first prefix whose weights sum
// to `enough`, and returns n; entry n - 1 is the worst of them. Returns order.size() if no prefix
// is enough. Expected O(order.size()): halves are partitioned, only the last few are sorted.
// REQUIRES: `better` is a strict total order; `enough` is monotone.
template <typename Better, typename Enough>
size_t SelectMass(std::vector<int32_t>& order, std::span<const float> weights, Better better,
                  Enough enough) {
  constexpr size_t kSorted = 64;
  size_t first = 0;            // everything before is in the prefix
  size_t last = order.size();  // a prefix of this length is enough, or it is all there is
  double mass = 0;             // of [0, first)
  while (last - first > kSorted) {
    const size_t middle = first + (last - first) / 2;
    std::nth_element(order.begin() + first, order.begin() + middle, order.begin() + last, better);
    double half = 0;
    for (size_t i = first; i < middle; ++i) half += weights[order[i]];
    if (enough(mass + half)) {
      last = middle;
    } else {
      mass += half;
      first = middle;
    }
  }
  std::sort(order.begin() + first, order.begin() + last, better);
  while (first < last) {
    mass += weights[order[first++]];
    if (enough(mass)) return first;
  }
  return last;
}

}  // namespace quire
