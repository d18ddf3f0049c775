// bench/simulation/random.h -- numbers that any machine repeats from a seed. Any thread.
//
// Source: SplitMix64 (Steele, Lea, Flood, OOPSLA 2014); gamma variates after Marsaglia and Tsang
// (ACM TOMS 26, 2000), normal ones by the polar method.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace quire {

inline uint64_t MixBits(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return z ^ (z >> 31);
}
// A name for something of kind `kind` and number `index`.
inline uint64_t MixId(uint64_t seed, uint64_t kind, uint64_t index) {
  constexpr uint64_t kGolden = 0x9E3779B97F4A7C15;
  return MixBits(MixBits(MixBits(seed + kGolden) + kind * kGolden) + index * kGolden);
}

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t Next() { return MixBits(state_ += 0x9E3779B97F4A7C15); }
  double Uniform() {  // in (0, 1)
    return (static_cast<double>(Next() >> 12) + 0.5) * 0x1p-52;
  }
  // REQUIRES: low <= high.
  int32_t Between(int32_t low, int32_t high) {
    const double width = static_cast<double>(high) - low + 1;
    return std::min(high, low + static_cast<int32_t>(Uniform() * width));
  }
  double Exponential(double mean) { return -mean * std::log(Uniform()); }
  double Normal() {
    for (;;) {
      const double x = 2 * Uniform() - 1, y = 2 * Uniform() - 1, s = x * x + y * y;
      if (s > 0 && s < 1) return x * std::sqrt(-2 * std::log(s) / s);
    }
  }
  double Gamma(double shape, double mean) {
    const double scale = mean / shape;
    double boost = 1;
    if (shape < 1) {
      boost = std::pow(Uniform(), 1 / shape);
      shape += 1;
    }
    const double d = shape - 1.0 / 3, c = 1 / std::sqrt(9 * d);
    for (;;) {
      const double x = Normal();
      const double v = (1 + c * x) * (1 + c * x) * (1 + c * x);
      if (v > 0 && std::log(Uniform()) < x * x / 2 + d - d * v + d * std::log(v)) {
        return boost * d * v * scale;
      }
    }
  }

 private:
  uint64_t state_;
};

// Picks k of [0, n) with weight (k + 1)^-skew; skew 0 is uniform.
class ZipfPicker {
 public:
  ZipfPicker(int32_t n, double skew) : sums_(static_cast<size_t>(n)) {
    double sum = 0;
    for (size_t k = 0; k < sums_.size(); ++k) {
      sums_[k] = sum += std::pow(static_cast<double>(k + 1), -skew);
    }
  }
  uint64_t Pick(Random& random) const {
    const double at = random.Uniform() * sums_.back();
    const auto it = std::upper_bound(sums_.begin(), sums_.end() - 1, at);
    return static_cast<uint64_t>(it - sums_.begin());
  }

 private:
  std::vector<double> sums_;
};

}  // namespace quire
