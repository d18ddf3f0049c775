#include "models/rope_config.h"

#include <algorithm>
#include <cmath>

#include "base/status.h"

namespace quire {
namespace {

constexpr double kPi = 3.14159265358979323846;

// base^(2i / dim), rounded step by step to float32 as the reference does.
std::vector<float> PositionFrequencies(double base, int32_t dim) {
  std::vector<float> out(static_cast<size_t>(dim / 2));
  for (size_t i = 0; i < out.size(); ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(dim);
    out[i] = static_cast<float>(std::pow(base, double{exponent}));
  }
  return out;
}

std::vector<float> InverseFrequencies(double base, int32_t dim) {
  std::vector<float> f = PositionFrequencies(base, dim);
  for (float& x : f) x = 1.0f / x;
  return f;
}

// YaRN, section 3.4: 0.1 ln(s) + 1.
double Mscale(double scale, double mscale) {
  return scale <= 1.0 ? 1.0 : 0.1 * mscale * std::log(scale) + 1.0;
}

RopeFrequencies Yarn(const RopeConfig& rope) {
  const double base = rope.theta;
  const int32_t dim = rope.rotary_dim;
  const auto correction_dim = [&](double rotations) {
    return dim * std::log(rope.original_max_position / (rotations * 2 * kPi)) /
           (2 * std::log(base));
  };
  double low = correction_dim(rope.beta_fast);
  double high = correction_dim(rope.beta_slow);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(dim - 1));
  if (low == high) high += 0.001;  // as the reference: no division by zero

  RopeFrequencies out;
  const std::vector<float> f = PositionFrequencies(base, dim);
  out.inv_freq.resize(f.size());
  for (size_t i = 0; i < f.size(); ++i) {
    const float extrapolated = 1.0f / f[i];
    const float interpolated = 1.0f / (rope.factor * f[i]);
    const float ramp =
        std::clamp(static_cast<float>((static_cast<double>(i) - low) / (high - low)), 0.0f, 1.0f);
    const float keep = 1.0f - ramp;
    out.inv_freq[i] = interpolated * (1.0f - keep) + extrapolated * keep;
  }
  if (rope.mscale != 0.0f && rope.mscale_all_dim != 0.0f) {
    out.attention_scaling = static_cast<float>(Mscale(rope.factor, rope.mscale) /
                                               Mscale(rope.factor, rope.mscale_all_dim));
  } else {
    out.attention_scaling = static_cast<float>(Mscale(rope.factor, 1.0));
  }
  return out;
}

RopeFrequencies Longrope(const RopeConfig& rope, int32_t length) {
  const std::vector<float>& factors =
      length > rope.original_max_position ? rope.long_factor : rope.short_factor;
  RopeFrequencies out;
  out.inv_freq = PositionFrequencies(rope.theta, rope.rotary_dim);
  CHECK(factors.size() == out.inv_freq.size(), "{} longrope factors", factors.size());
  for (size_t i = 0; i < factors.size(); ++i) {
    out.inv_freq[i] = 1.0f / (factors[i] * out.inv_freq[i]);
  }
  if (rope.factor > 1.0f) {
    out.attention_scaling = static_cast<float>(
        std::sqrt(1.0 + std::log(double{rope.factor}) /
                            std::log(static_cast<double>(rope.original_max_position))));
  }
  return out;
}

std::vector<float> Llama3(const RopeConfig& rope) {
  std::vector<float> inv_freq = InverseFrequencies(rope.theta, rope.rotary_dim);
  const double original = rope.original_max_position;
  const double low_wavelen = original / rope.low_freq_factor;
  const double high_wavelen = original / rope.high_freq_factor;
  for (float& f : inv_freq) {
    const double wavelen = 2 * kPi / f;
    if (wavelen > low_wavelen) {
      f /= rope.factor;
    } else if (wavelen >= high_wavelen) {
      const double smooth = (original / wavelen - rope.low_freq_factor) /
                            (rope.high_freq_factor - rope.low_freq_factor);
      f = static_cast<float>((1.0 - smooth) * f / rope.factor + smooth * f);
    }
  }
  return inv_freq;
}

}  // namespace

RopeFrequencies ComputeRope(const RopeConfig& rope, int32_t max_position, int32_t length) {
  RopeFrequencies out;
  switch (rope.type) {
    case RopeType::kNone:
      return out;
    case RopeType::kDefault:
      out.inv_freq = InverseFrequencies(rope.theta, rope.rotary_dim);
      break;
    case RopeType::kLinear:
      out.inv_freq = InverseFrequencies(rope.theta, rope.rotary_dim);
      for (float& f : out.inv_freq) f /= rope.factor;
      break;
    case RopeType::kDynamic: {
      // NTK: the base grows with the length, so that the lowest frequency spans it.
      double base = rope.theta;
      if (length > max_position) {
        const double stretch = double{rope.factor} * length / max_position - (rope.factor - 1.0);
        base *= std::pow(stretch, rope.rotary_dim / (rope.rotary_dim - 2.0));
      }
      out.inv_freq = InverseFrequencies(base, rope.rotary_dim);
      break;
    }
    case RopeType::kYarn:
      out = Yarn(rope);
      break;
    case RopeType::kLongrope:
      out = Longrope(rope, length);
      break;
    case RopeType::kLlama3:
      out.inv_freq = Llama3(rope);
      break;
  }
  if (!rope.freq_divisors.empty()) {
    CHECK(rope.freq_divisors.size() == out.inv_freq.size(), "{} divisors",
          rope.freq_divisors.size());
    for (size_t i = 0; i < out.inv_freq.size(); ++i) out.inv_freq[i] /= rope.freq_divisors[i];
  }
  if (rope.attention_factor != 0.0f) out.attention_scaling = rope.attention_factor;
  return out;
}

bool IsLengthDependent(const RopeConfig& rope) {
  return rope.type == RopeType::kDynamic || rope.type == RopeType::kLongrope;
}

// With length = max(prompt, p + 1): a prompt within the limit leaves every position before the
// limit in the base regime and gives each later position a length of its own, p + 1, whatever the
// prompt was: one regime. A longer prompt decides the length of all its positions.
std::string RopeRegime(const ModelConfig& config, int32_t prompt_tokens) {
  std::string regime;
  for (const RopeConfig& rope : config.ropes) {
    if (!IsLengthDependent(rope)) continue;
    if (!regime.empty()) regime += ',';
    if (rope.type == RopeType::kDynamic) {
      regime += prompt_tokens <= config.max_position ? "dynamic:base"
                                                     : fmt::format("dynamic:{}", prompt_tokens);
    } else {
      regime += prompt_tokens <= rope.original_max_position ? "longrope:short" : "longrope:long";
    }
  }
  return regime;
}

int32_t LongestSequence(const ModelConfig& config) {
  double longest = config.max_position;
  for (const RopeConfig& rope : config.ropes) {
    if (rope.type == RopeType::kDynamic && rope.factor > 1.0f) {
      longest = std::max(longest, static_cast<double>(config.max_position) * rope.factor);
    }
  }
  return static_cast<int32_t>(std::min(longest, static_cast<double>(1 << 30)));
}

}  // namespace quire
