#include "sampling/selection.h"

#include <algorithm>
#include <cstring>
#include <limits>

namespace quire {
namespace {

constexpr float kNone = -std::numeric_limits<float>::infinity();

bool Better(const TokenLogprob& a, const TokenLogprob& b) {
  return a.logprob > b.logprob || (a.logprob == b.logprob && a.token < b.token);
}

using Floats = float __attribute__((vector_size(16)));
using Words = uint32_t __attribute__((vector_size(16)));

Words Bits(Floats x) {
  Words bits;
  std::memcpy(&bits, &x, sizeof(bits));
  return bits;
}

// Cody-Waite reduction to |r| <= ln(2) / 2, then the Taylor polynomial of degree 6, whose rest is
// below 2e-7. Vector types because compilers don't vectorise the comparison of a plain loop (it may
// trap).
Floats ExpNonPositive(Floats x) {
  constexpr float kLowest = -87.0f;  // below it the exponent would run out
  constexpr float kLog2e = 1.44269504f, kLn2High = 0.693359375f, kLn2Low = -2.12194440e-4f;
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  const auto in_range = x > kLowest;     // all ones or all zeros; not for NaN
  const Floats clamped = in_range ? x : Floats{} + kLowest;
  const Floats shifted = clamped * kLog2e + kRound;
  const Floats n = shifted - kRound;
  const Floats r = (clamped - n * kLn2High) - n * kLn2Low;
  Floats y = r * (1.0f / 720) + 1.0f / 120;
  y = y * r + 1.0f / 24;
  y = y * r + 1.0f / 6;
  y = y * r + 0.5f;
  y = y * r + 1.0f;
  y = y * r + 1.0f;
  // The low bits of `shifted` are n: add it to the exponent.
  const Words scaled = Bits(y) + (Bits(shifted) << 23);
  Floats result;
  std::memcpy(&result, &scaled, sizeof(result));
  return in_range ? result : Floats{};
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

void ExpWeights(std::span<const float> values, float best, float temperature,
                std::span<float> weights) {
  constexpr size_t kLanes = sizeof(Floats) / sizeof(float);
  size_t i = 0;
  for (; i + kLanes <= values.size(); i += kLanes) {
    Floats x;
    std::memcpy(&x, &values[i], sizeof(x));
    x = ExpNonPositive((x - best) / temperature);
    std::memcpy(&weights[i], &x, sizeof(x));
  }
  for (; i < values.size(); ++i) {
    weights[i] = ExpNonPositive((Floats{} + values[i] - best) / temperature)[0];
  }
}

void SelectTop(std::span<const float> values, size_t k, std::vector<TokenLogprob>& best) {
  best.clear();
  k = std::min(k, values.size());
  if (k == 0) return;
  for (size_t i = 0; i < k; ++i) {
    const float value = values[i] == values[i] ? values[i] : kNone;
    best.push_back({static_cast<TokenId>(i), value});
  }
  std::make_heap(best.begin(), best.end(), Better);  // the worst is in front
  for (size_t i = k; i < values.size(); ++i) {
    // An equal value has a higher index than all that are in: it is not better.
    if (!(values[i] > best.front().logprob)) continue;
    std::pop_heap(best.begin(), best.end(), Better);
    best.back() = {static_cast<TokenId>(i), values[i]};
    std::push_heap(best.begin(), best.end(), Better);
  }
  std::sort_heap(best.begin(), best.end(), Better);
}

}  // namespace quire
