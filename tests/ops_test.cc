// Row operations against float64, and bit for bit across instruction sets and threads.
//
// Bounds follow from the operations (u = 2^-24, one rounding): they are stated where they are used.
#include "kernels/ops.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "kernels/cpu_isa.h"

namespace quire::kernels {
namespace {

constexpr double kU = 0x1p-24;

std::vector<float> Normal(size_t n, uint32_t seed, float scale = 1.0f) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<float> x(n);
  for (float& e : x) e = normal(rng);
  return x;
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// Runs `make(pool)` with every instruction set and 1 to 4 threads; all results must be the same.
template <typename Make>
std::vector<float> SameEverywhere(const Make& make) {
  CHECK(SelectIsa("portable").ok());
  ThreadPool one(1);
  const std::vector<float> want = make(one);
  for (const char* isa : {"portable", "avx2", "avx512", "amx"}) {
    if (!SelectIsa(isa).ok()) {
      std::printf("[ not run here ] %s\n", isa);
      continue;
    }
    for (const int32_t threads : {1, 2, 3, 4}) {
      ThreadPool pool(threads);
      EXPECT_TRUE(SameBits(make(pool), want)) << isa << " threads=" << threads;
    }
  }
  CHECK(SelectIsa("auto").ok());
  return want;
}

TEST(ExpF32, CloseToExpEverywhere) {
  // Every 257th float from -87 to 88.72, both signs: 17 million values would take seconds.
  double worst = 0;
  for (const uint32_t sign : {0u, 0x80000000u}) {
    for (uint32_t bits = 0; bits < 0x42b20000u; bits += 257) {
      const float x = std::bit_cast<float>(bits | sign);
      if (x < -87.0f || x > 88.72f) break;
      const double want = std::exp(double{x});
      worst = std::max(worst, std::fabs(ExpF32(x) - want) / want);
    }
  }
  EXPECT_LT(worst, 2e-7);
  EXPECT_GT(worst, 0.0);
}

TEST(ExpF32, Edges) {
  const float inf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(ExpF32(0.0f), 1.0f);
  EXPECT_EQ(ExpF32(-0.0f), 1.0f);
  EXPECT_EQ(ExpF32(-inf), 0.0f);
  EXPECT_EQ(ExpF32(-1000.0f), 0.0f);
  EXPECT_EQ(ExpF32(inf), inf);
  EXPECT_EQ(ExpF32(89.0f), inf);
  EXPECT_TRUE(std::isnan(ExpF32(NAN)));
  EXPECT_TRUE(std::isfinite(ExpF32(88.72f)));
}

TEST(ExpF32, VectorsGiveTheSameBits) {
  std::vector<float> x = {0.0f,     -0.0f,     -INFINITY, INFINITY, -87.0f,
                          -86.999f, 88.72283f, 88.8f,     -1e30f};
  for (uint32_t bits = 0; bits < 0x42b30000u; bits += 4099) {
    x.push_back(std::bit_cast<float>(bits));
    x.push_back(-std::bit_cast<float>(bits));
  }
  const std::vector<float> got = SameEverywhere([&](ThreadPool&) {
    std::vector<float> y(x.size());
    ExpRow(x.data(), static_cast<int64_t>(x.size()), y.data());
    return y;
  });
  std::vector<float> want;
  for (const float e : x) want.push_back(ExpF32(e));
  EXPECT_TRUE(SameBits(got, want));
  float nan = NAN;
  ExpRow(&nan, 1, &nan);
  EXPECT_TRUE(std::isnan(nan));
}

TEST(RmsNorm, CloseToFloat64) {
  for (const int64_t dim : {1, 15, 16, 17, 64, 576, 1000}) {
    for (const float offset : {0.0f, 1.0f}) {
      const int64_t rows = dim == 576 ? 70 : 3;  // 70 rows go to the pool
      const int64_t ldx = dim + 5;
      const int64_t ldout = dim + 3;
      const std::vector<float> x = Normal(static_cast<size_t>(rows * ldx), 1, 3.0f);
      const std::vector<float> w = Normal(static_cast<size_t>(dim), 2);
      const std::vector<float> got = SameEverywhere([&](ThreadPool& pool) {
        std::vector<float> out(static_cast<size_t>(rows * ldout), -7.0f);
        RmsNorm(x.data(), ldx, w.data(), offset, 1e-5f, rows, dim, out.data(), ldout, pool);
        return out;
      });
      for (int64_t r = 0; r < rows; ++r) {
        double sum = 0;
        for (int64_t i = 0; i < dim; ++i) sum += double{x[r * ldx + i]} * x[r * ldx + i];
        const double by = 1.0 / std::sqrt(sum / static_cast<double>(dim) + double{1e-5f});
        for (int64_t i = 0; i < dim; ++i) {
          const double want = x[r * ldx + i] * by * (double{offset} + w[i]);
          // The sum of squares has dim / 16 + 5 roundings, halved by the root; about 6 follow.
          const double bound = (static_cast<double>(dim) / 32 + 10) * kU;
          EXPECT_NEAR(got[r * ldout + i], want, std::fabs(want) * bound + 1e-12);
        }
        for (int64_t i = dim; i < ldout; ++i) EXPECT_EQ(got[r * ldout + i], -7.0f);
      }
    }
  }
}

TEST(RmsNorm, InPlace) {
  ThreadPool pool(2);
  std::vector<float> x = Normal(3 * 40, 1);
  const std::vector<float> w = Normal(40, 2);
  std::vector<float> out(x.size());
  RmsNorm(x.data(), 40, w.data(), 0.0f, 1e-6f, 3, 40, out.data(), 40, pool);
  RmsNorm(x.data(), 40, w.data(), 0.0f, 1e-6f, 3, 40, x.data(), 40, pool);
  EXPECT_TRUE(SameBits(x, out));
}

TEST(ApplyRope, BothPairings) {
  for (const bool interleaved : {false, true}) {
    for (const auto& dims : {std::pair{64, 64}, {80, 32}, {40, 40}, {128, 128}}) {
      const int32_t head_dim = dims.first, rotary = dims.second;
      const int64_t rows = head_dim == 64 ? 100 : 5;
      const int32_t heads = 3;
      const int32_t half = rotary / 2;
      std::vector<float> freq;
      for (int32_t i = 0; i < half; ++i) {
        freq.push_back(static_cast<float>(std::pow(1e4, -2.0 * i / rotary)));
      }
      std::vector<float> cos(static_cast<size_t>(rows * half)), sin(cos.size());
      for (int64_t r = 0; r < rows; ++r) {
        RopeAngles(static_cast<int32_t>(r * 37), freq, 1.25f, &cos[r * half], &sin[r * half]);
      }
      const std::vector<float> x = Normal(static_cast<size_t>(rows * heads * head_dim), 3);
      const std::vector<float> got = SameEverywhere([&](ThreadPool& pool) {
        std::vector<float> y = x;
        const Heads parts[] = {{.x = y.data(), .num_heads = heads}};
        ApplyRope({.head_dim = head_dim,
                   .rotary_dim = rotary,
                   .interleaved = interleaved,
                   .cos = cos.data(),
                   .sin = sin.data()},
                  parts, rows, pool);
        return y;
      });
      for (int64_t r = 0; r < rows; ++r) {
        for (int32_t h = 0; h < heads; ++h) {
          const int64_t at = (r * heads + h) * head_dim;
          for (int32_t i = 0; i < half; ++i) {
            const double angle = double{static_cast<float>(r * 37) * freq[i]};
            const int64_t a = at + (interleaved ? 2 * i : i);
            const int64_t b = at + (interleaved ? 2 * i + 1 : i + half);
            const double c = 1.25 * std::cos(angle), s = 1.25 * std::sin(angle);
            // cos and sin carry two roundings, each product one and the sum one.
            const double bound = 5 * kU * 1.25 * (std::fabs(x[a]) + std::fabs(x[b]));
            EXPECT_NEAR(got[a], x[a] * c - x[b] * s, bound);
            EXPECT_NEAR(got[b], x[b] * c + x[a] * s, bound);
          }
          for (int32_t i = rotary; i < head_dim; ++i) EXPECT_EQ(got[at + i], x[at + i]);
        }
      }
    }
  }
}

TEST(GatedActivation, CloseToFloat64) {
  for (const Activation act :
       {Activation::kSilu, Activation::kGeluTanh, Activation::kGelu, Activation::kRelu}) {
    for (const auto& size : {std::pair<int64_t, int64_t>{1, 1536}, {40, 500}, {3, 7}}) {
      const int64_t rows = size.first, dim = size.second;
      std::vector<float> gate = Normal(static_cast<size_t>(rows * dim), 5, 3.0f);
      const std::vector<float> up = Normal(static_cast<size_t>(rows * dim), 6);
      gate[0] = -100.0f;
      gate[1] = 100.0f;
      gate[2] = 0.0f;
      gate[3] = 1e-20f;
      const std::vector<float> got = SameEverywhere([&](ThreadPool& pool) {
        std::vector<float> out(gate.size());
        GatedActivation(act, gate.data(), up.data(), rows, dim, out.data(), pool);
        return out;
      });
      for (size_t i = 0; i < gate.size(); ++i) {
        const double g = gate[i];
        double want = 0;
        switch (act) {
          case Activation::kSilu:
            want = g / (1 + std::exp(-g));
            break;
          case Activation::kGeluTanh:
            want = 0.5 * g * (1 + std::tanh(std::sqrt(2 / M_PI) * (g + 0.044715 * g * g * g)));
            break;
          case Activation::kGelu:
            want = 0.5 * g * (1 + std::erf(g / std::sqrt(2.0)));
            break;
          case Activation::kRelu:
            want = std::max(g, 0.0);
            break;
        }
        // Gelu's 1 + tanh cancels for negative gates: an absolute error of a few u times |gate|.
        const double bound = 16 * kU * std::fabs(act == Activation::kGeluTanh ? g : want) + 1e-37;
        EXPECT_NEAR(got[i], want * up[i], bound * std::fabs(up[i]) + 1e-37)
            << static_cast<int>(act) << " gate=" << g;
      }
    }
  }
}

TEST(GatedActivation, NanStaysNan) {
  ThreadPool pool(1);
  for (const Activation act :
       {Activation::kSilu, Activation::kGeluTanh, Activation::kGelu, Activation::kRelu}) {
    const std::vector<float> gate(20, NAN), up(20, 1.0f);
    std::vector<float> out(20);
    GatedActivation(act, gate.data(), up.data(), 1, 20, out.data(), pool);
    for (const float x : out) EXPECT_TRUE(std::isnan(x)) << static_cast<int>(act);
  }
}

TEST(SoftCap, CloseToFloat64) {
  for (const float cap : {0.5f, 30.0f}) {
    for (const auto& size : {std::pair<int64_t, int64_t>{2, 40000}, {3, 7}}) {
      const int64_t rows = size.first, dim = size.second;
      std::vector<float> x = Normal(static_cast<size_t>(rows * dim), 8, 20.0f);
      x[0] = 0.0f;
      x[1] = 1e30f;
      x[2] = -1e30f;
      x[3] = 1e-20f;
      const std::vector<float> got = SameEverywhere([&](ThreadPool& pool) {
        std::vector<float> y = x;
        SoftCap(cap, rows, dim, y.data(), pool);
        return y;
      });
      for (size_t i = 0; i < x.size(); ++i) {
        const double want = cap * std::tanh(double{x[i]} / cap);
        // The quotient and the product round once each, tanh has 3e-7.
        EXPECT_NEAR(got[i], want, std::fabs(want) * (3e-7 + 3 * kU)) << x[i];
      }
      EXPECT_EQ(got[1], cap);
      EXPECT_EQ(got[2], -cap);
    }
  }
}

// Queries with a norm of their heads and keys without: as the norm alone, then the rotation alone.
TEST(ApplyRope, PartsAndNormsInOneCall) {
  for (const int64_t rows : {1, 130}) {  // 130 rows go to the pool
    constexpr int32_t kDim = 40, kHeads = 5, kKvHeads = 2;
    const std::vector<float> q = Normal(static_cast<size_t>(rows) * kHeads * kDim, 21);
    const std::vector<float> k = Normal(static_cast<size_t>(rows) * kKvHeads * kDim, 22);
    const std::vector<float> norm = Normal(kDim, 23);
    const std::vector<float> cos = Normal(static_cast<size_t>(rows) * kDim / 2, 24);
    const std::vector<float> sin = Normal(cos.size(), 25);
    RopeArgs rope{.head_dim = kDim,
                  .rotary_dim = kDim,
                  .cos = cos.data(),
                  .sin = sin.data(),
                  .norm_offset = 1.0f,
                  .norm_eps = 1e-6f};
    const auto joined = [&](std::vector<float> a, const std::vector<float>& b) {
      a.insert(a.end(), b.begin(), b.end());
      return a;
    };
    const std::vector<float> got = SameEverywhere([&](ThreadPool& pool) {
      std::vector<float> a = q, b = k;
      const Heads parts[] = {{a.data(), kHeads, norm.data()}, {b.data(), kKvHeads}};
      ApplyRope(rope, parts, rows, pool);
      return joined(a, b);
    });
    ThreadPool pool(1);
    std::vector<float> a = q, b = k;
    RmsNorm(a.data(), kDim, norm.data(), 1.0f, 1e-6f, rows * kHeads, kDim, a.data(), kDim, pool);
    EXPECT_FALSE(SameBits(a, q));
    const Heads only_q[] = {{a.data(), kHeads}};
    ApplyRope(rope, only_q, rows, pool);
    const Heads only_k[] = {{b.data(), kKvHeads}};
    ApplyRope(rope, only_k, rows, pool);
    EXPECT_TRUE(SameBits(got, joined(a, b)));
    // Without a rotation the norm alone is left.
    std::vector<float> normed = q;
    const Heads parts[] = {{normed.data(), kHeads, norm.data()}};
    rope.rotary_dim = 0;
    rope.cos = rope.sin = nullptr;
    ApplyRope(rope, parts, rows, pool);
    a = q;
    RmsNorm(a.data(), kDim, norm.data(), 1.0f, 1e-6f, rows * kHeads, kDim, a.data(), kDim, pool);
    EXPECT_TRUE(SameBits(normed, a));
  }
}

TEST(AddRmsNorm, TheNormThenOneRounding) {
  for (const int64_t rows : {3, 70}) {
    constexpr int64_t kDim = 500;
    const std::vector<float> x = Normal(static_cast<size_t>(rows * kDim), 9);
    const std::vector<float> y = Normal(x.size(), 10), w = Normal(kDim, 11);
    const std::vector<float> got = SameEverywhere([&](ThreadPool& pool) {
      std::vector<float> sum = x, in = y;
      AddRmsNorm(w.data(), 0.0f, 1e-5f, rows, kDim, in.data(), sum.data(), pool);
      return sum;
    });
    ThreadPool pool(1);
    std::vector<float> normed(y.size());
    RmsNorm(y.data(), kDim, w.data(), 0.0f, 1e-5f, rows, kDim, normed.data(), kDim, pool);
    for (size_t i = 0; i < x.size(); ++i) ASSERT_EQ(got[i], x[i] + normed[i]);
  }
}

TEST(RopeAngles, EqualsTheRecordedDefinition) {
  // cos and sin of the float32 product, scaled: two roundings.
  const std::vector<float> freq = {1.0f, 0.3f, 1e-3f, 1e-5f};
  for (const int32_t position : {0, 1, 511, 8191, 131071}) {
    std::vector<float> cos(4), sin(4);
    RopeAngles(position, freq, 1.5f, cos.data(), sin.data());
    for (size_t i = 0; i < 4; ++i) {
      const double angle = double{static_cast<float>(position) * freq[i]};
      EXPECT_NEAR(cos[i], 1.5 * std::cos(angle), 1.5 * 2 * kU);
      EXPECT_NEAR(sin[i], 1.5 * std::sin(angle), 1.5 * 2 * kU);
    }
  }
}

TEST(CopyPages, WholePagesAndNothingElse) {
  constexpr size_t kBytes = 192;
  std::vector<std::byte> pool_bytes(8 * kBytes);
  for (size_t i = 0; i < pool_bytes.size(); ++i) pool_bytes[i] = static_cast<std::byte>(i * 7 / 3);
  const std::vector<std::byte> before = pool_bytes;
  const std::vector<PageCopyArgs> copies = {{1, 5}, {1, 7}, {4, 2}};
  ThreadPool pool(3);
  CopyPages(pool_bytes.data(), kBytes, copies, pool);
  const size_t from[8] = {0, 1, 4, 3, 4, 1, 6, 1};
  for (size_t page = 0; page < 8; ++page) {
    EXPECT_EQ(std::memcmp(&pool_bytes[page * kBytes], &before[from[page] * kBytes], kBytes), 0)
        << page;
  }
}

}  // namespace
}  // namespace quire::kernels
