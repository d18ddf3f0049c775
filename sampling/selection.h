// sampling/selection.h -- best-k and best-by-mass in linear time, without sorting the vocabulary.
//
// Called by processors.cc and sampler.cc; pure; thread: any.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/logits.h"
#include "sampling/sampler.h"

namespace quire {

using kernels::ArgMax;
using kernels::ExpWeights;

// The k best of `values` as (index, value), best first; ties go to the lower index and NaN counts
// as -infinity. For small k: a bounded heap.
void SelectTop(std::span<const float> values, size_t k, std::vector<TokenLogprob>& best);

// Maps floats to integers in the same order (ascending) or the opposite one (descending). The two
// zeros are equal. REQUIRES: not NaN.
inline uint32_t AscendingKey(float value) {
  const auto bits = std::bit_cast<uint32_t>(value + 0.0f);
  return bits ^ ((bits >> 31) != 0 ? 0xFFFFFFFFu : 0x80000000u);
}
inline uint32_t DescendingKey(float value) { return ~AscendingKey(value); }

// An element is in front of or at the cut if its key is smaller, or equal and its index not larger.
struct MassCut {
  uint32_t key = 0;
  size_t index = 0;
};

// Where the shortest prefix ends whose weights, in order of (key, index), sum to `enough`: a radix
// selection over mass, three passes. If rounding leaves no prefix enough, the last element with any
// weight. REQUIRES: not empty; weights not negative, one of them positive; enough(mass) monotone.
template <typename Weight, typename Enough>
MassCut SelectMass(std::span<const uint32_t> keys, Weight weight, Enough enough) {
  constexpr int kBits[] = {10, 11, 11};
  double buckets[1 << 11];
  double before = 0;  // mass of the keys below `prefix`
  uint32_t prefix = 0, known = 0;
  int shift = 32;
  for (int bits : kBits) {
    shift -= bits;
    const uint32_t count = uint32_t{1} << bits;
    for (uint32_t b = 0; b < count; ++b) buckets[b] = 0;
    for (size_t i = 0; i < keys.size(); ++i) {
      if ((keys[i] & known) == prefix) buckets[(keys[i] >> shift) & (count - 1)] += weight(i);
    }
    uint32_t chosen = 0;
    double skipped = before;
    for (uint32_t b = 0; b < count; ++b) {
      if (buckets[b] <= 0) continue;
      before = skipped;
      chosen = b;
      if (enough(skipped + buckets[b])) break;
      skipped += buckets[b];
    }
    prefix |= chosen << shift;
    known |= (count - 1) << shift;
  }
  MassCut cut{.key = prefix};
  for (size_t i = 0; i < keys.size(); ++i) {
    if (keys[i] != prefix) continue;
    cut.index = i;
    before += weight(i);
    if (enough(before)) break;
  }
  return cut;
}

}  // namespace quire
