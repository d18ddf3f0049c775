// tests/linear_int8_test.cc -- RunLinear in int8: every instruction set gives the sums that
// kernels/cpu/linear_int8.h states, bit for bit, for every weight type, number of rows, threads and
// jobs; and those sums against float64.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/cpu/flush_subnormals.h"
#include "kernels/linear.h"
#include "tests/support/linear_problem.h"

namespace quire::kernels {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

// A block of 32 values of x.
struct Quantized {
  int q[32];
  float scale;
  float sum;
};

Quantized Quantize(const float* x) {
  Quantized out;
  out.sum = Sum32(x);
  float max = 0.0f;
  for (int i = 0; i < 32; ++i) max = std::max(max, std::abs(x[i]));
  const bool empty = max < 0x1p-100f;
  out.scale = empty ? 0.0f : max / 127.0f;
  const float inverse = empty ? 0.0f : 127.0f / max;
  for (int i = 0; i < 32; ++i) out.q[i] = static_cast<int>(std::nearbyint(x[i] * inverse));
  return out;
}

// What is computed of a plain type: its values as Q8_0.
std::vector<std::byte> AsQ80(DType type, const std::vector<std::byte>& file, int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  Dequantize(type, file.data(), count, values.data());
  std::vector<std::byte> out(static_cast<size_t>(count / 32 * 34));
  for (size_t b = 0; b < values.size() / 32; ++b) {
    float max = 0.0f;
    for (size_t i = 0; i < 32; ++i) max = std::max(max, std::abs(values[b * 32 + i]));
    const float d = max / 127.0f;
    const uint16_t half = FloatToF16(d);
    std::memcpy(out.data() + b * 34, &half, 2);
    for (size_t i = 0; i < 32; ++i) {
      const float code = std::round(values[b * 32 + i] * (d > 0.0f ? 1.0f / d : 0.0f));
      out[b * 34 + 2 + i] = static_cast<std::byte>(static_cast<int8_t>(code));
    }
  }
  return out;
}

struct Problem {
  DType type;  // of what is computed
  int64_t m, n, k, ldx, ldy;
  std::vector<std::byte> file;
  PackedWeight packed;
  std::vector<float> x;
  std::vector<std::byte> scratch;

  Problem(DType stored, int64_t m_, int64_t n_, int64_t k_, uint32_t seed = 1)
      : type(stored), m(m_), n(n_), k(k_), ldx(k_ + 5), ldy(n_ + 3) {
    std::mt19937 rng(seed);
    std::normal_distribution<float> normal;
    file = RandomWeights(type, n, k, rng);
    ThreadPool pool(1);
    auto p = PackedWeight::Pack({file.data(), type, 2, {n, k}}, pool, ComputeType::kI8);
    EXPECT_TRUE(p.ok()) << p.status();
    packed = *std::move(p);
    if (!FormatOf(stored).is_block()) {
      file = AsQ80(stored, file, n * k);
      type = DType::kQ8_0;
    }
    EXPECT_EQ(packed.dtype(), type);
    EXPECT_EQ(packed.compute(), ComputeType::kI8);
    x.assign(static_cast<size_t>((m + 1) * ldx), kNan);
    for (int64_t r = 0; r < m; ++r) {
      for (int64_t i = 0; i < k; ++i) {
        // Blocks of many sizes, empty ones among them.
        const float size =
            i / 32 % 5 == 3 ? 0.0f : std::ldexp(1.0f, static_cast<int>(i / 32 % 7) * 4 - 12);
        x[static_cast<size_t>(r * ldx + i)] = normal(rng) * size;
      }
    }
    scratch.resize(LinearScratchBytes(m, k) + 64);
  }

  const Block& At(int64_t j, int64_t b) const {
    const int64_t blocks = (k + 31) / 32;
    for (int64_t i = static_cast<int64_t>(blocks_.size()); i <= j * blocks + b; ++i) {
      blocks_.push_back(BlockOf(type, file, k, i / blocks, i % blocks));
    }
    return blocks_[static_cast<size_t>(j * blocks + b)];
  }
  mutable std::vector<Block> blocks_;  // read once: sanitizers make that slow
  float& X(int64_t r, int64_t i) { return x[static_cast<size_t>(r * ldx + i)]; }

  // The contract, literally.
  float Want(int64_t r, int64_t j) const {
    const FlushSubnormals flush;
    const int64_t blocks = k / 32;
    const bool has_mean = FormatOf(type).has_min;
    float y = 0.0f;
    for (int64_t b0 = 0; b0 < blocks; b0 += 12) {
      const int64_t end = std::min(blocks, b0 + 12);
      const float* row = x.data() + r * ldx;
      for (int64_t b = b0; has_mean && b < end; ++b) {
        y = std::fma(Sum32(row + b * 32), At(j, b).mean, y);
      }
      for (int64_t b = b0; b < end; ++b) {
        const Block& w = At(j, b);
        const Quantized q = Quantize(row + b * 32);
        const int parts = type == DType::kQ6_K ? 2 : 1;
        for (int part = 0; part < parts; ++part) {
          int dot = 0;
          for (int i = 32 / parts * part; i < 32 / parts * (part + 1); ++i) {
            dot += q.q[i] * static_cast<int>(w.code[i]);
          }
          y = std::fma(static_cast<float>(dot) * q.scale, w.scale[part], y);
        }
      }
    }
    return y;
  }

  std::span<std::byte> Scratch() {
    void* p = scratch.data();
    size_t left = scratch.size();
    std::align(64, LinearScratchBytes(m, k), p, left);
    return {static_cast<std::byte*>(p), left};
  }
  LinearJob Job(float* y) const {
    return {.w = &packed, .x = x.data(), .ldx = ldx, .y = y, .ldy = ldy};
  }
  std::vector<float> Run(ThreadPool& pool) {
    std::vector<float> y(static_cast<size_t>(m * ldy), kNan);
    RunLinear({{Job(y.data())}}, m, pool, Scratch());
    return y;
  }
  void Check(const std::vector<float>& y, int64_t only_row = -1) const {
    for (int64_t r = 0; r < m; ++r) {
      if (only_row >= 0 && r != only_row) continue;
      for (int64_t j = 0; j < n; ++j) {
        const float got = y[static_cast<size_t>(r * ldy + j)];
        const float right = Want(r, j);
        ASSERT_EQ(std::bit_cast<uint32_t>(got), std::bit_cast<uint32_t>(right))
            << "m=" << m << " n=" << n << " k=" << k << " row " << r << " column " << j << ": "
            << got << " for " << right;
      }
      for (int64_t j = n; j < ldy; ++j) {
        ASSERT_TRUE(std::isnan(y[static_cast<size_t>(r * ldy + j)])) << "wrote past column " << n;
      }
    }
  }
};

class LinearInt8Test : public testing::TestWithParam<DType> {
 protected:
  ~LinearInt8Test() override { EXPECT_TRUE(SelectIsa("auto").ok()); }
  // The last is more than a run of blocks.
  static std::vector<int64_t> Depths(DType type) {
    if (InfoOf(type).block_size == 256) return {256, 1024};
    return {32, 96, 800};
  }
};

TEST_P(LinearInt8Test, EveryIsaSumsAsStated) {
  const std::vector<std::string> isas = Isas();
  ThreadPool pool(2);
  const int64_t kNs[] = {1, 17, 64, 65};
  const int64_t kMs[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 31, 33, 50};
  uint32_t seed = 0;
  for (const int64_t k : Depths(GetParam())) {
    for (const int64_t n : kNs) {
      for (int i = 0; i < 4; ++i, ++seed) {
        Problem problem(GetParam(), kMs[seed * 7 % 20], n, k, seed);
        for (const std::string& isa : isas) {
          SCOPED_TRACE(isa);
          ASSERT_TRUE(SelectIsa(isa).ok());
          problem.Check(problem.Run(pool));
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

// A code of x is off by half a step at most, a step is the block's largest value / 127; the mean
// meets the exact sum. Fewer than k / 16 + 80 roundings to
// float32 on any value's way.
TEST_P(LinearInt8Test, WithinTheBoundOfFloat64) {
  ThreadPool pool(2);
  Problem p(GetParam(), 9, 65, 768);
  const std::vector<float> y = p.Run(pool);
  for (int64_t r = 0; r < p.m; ++r) {
    for (int64_t j = 0; j < p.n; ++j) {
      double sum = 0, rounding = 0, magnitude = 0;
      for (int64_t b = 0; b < p.k / 32; ++b) {
        const Block w = p.At(j, b);
        double step = 0;
        for (int i = 0; i < 32; ++i) {
          step = std::max(step, std::abs(static_cast<double>(p.X(r, b * 32 + i))) / 127);
        }
        for (int i = 0; i < 32; ++i) {
          const bool second = p.type == DType::kQ6_K && i >= 16;
          const double code =
              static_cast<double>(w.code[i]) * static_cast<double>(w.scale[second ? 1 : 0]);
          const double x = static_cast<double>(p.X(r, b * 32 + i));
          sum += x * (code + static_cast<double>(w.mean));
          rounding += step / 2 * std::abs(code);
          magnitude += std::abs(x * code) + std::abs(x * static_cast<double>(w.mean));
        }
      }
      ASSERT_NEAR(y[static_cast<size_t>(r * p.ldy + j)], sum,
                  1.0001 * rounding + (static_cast<double>(p.k) / 16 + 80) * 0x1p-24 * magnitude);
    }
  }
}

// C1: a row's result is the same alone, in any batch and with any number of threads.
TEST_P(LinearInt8Test, RowsAndThreadsDoNotShow) {
  Problem p(GetParam(), 1, 150, 768);
  std::vector<float> want(150);
  for (int64_t j = 0; j < 150; ++j) want[static_cast<size_t>(j)] = p.Want(0, j);
  constexpr int64_t kMost = 400;  // more than one chunk of rows
  std::vector<float> x;
  for (int64_t r = 0; r < kMost; ++r) x.insert(x.end(), p.x.begin(), p.x.begin() + p.ldx);
  std::vector<std::byte> scratch(LinearScratchBytes(kMost, p.k) + 64);
  void* at = scratch.data();
  size_t left = scratch.size();
  ASSERT_NE(std::align(64, LinearScratchBytes(kMost, p.k), at, left), nullptr);
  for (int32_t threads = 1; threads <= 4; ++threads) {
    ThreadPool pool(threads);
    for (const int64_t m : {1, 2, 4, 5, 8, 9, 37, 96, 193, 400}) {
      std::vector<float> y(static_cast<size_t>(m * p.ldy), kNan);
      LinearJob job = p.Job(y.data());
      job.x = x.data();
      RunLinear({{job}}, m, pool, {static_cast<std::byte*>(at), left});
      for (int64_t r = 0; r < m; ++r) {
        ASSERT_EQ(std::memcmp(y.data() + r * p.ldy, want.data(), sizeof(float) * 150), 0)
            << "row " << r << " of " << m << ", threads=" << threads;
      }
    }
  }
}

TEST_P(LinearInt8Test, NonFiniteRowsStayAlone) {
  ThreadPool pool(2);
  for (const int64_t m : {3, 17}) {
    for (const float bad : {kNan, kInf, -kInf}) {
      Problem p(GetParam(), m, 70, 1024);
      p.X(1, 100) = bad;
      for (const std::string& isa : Isas()) {
        SCOPED_TRACE(isa);
        ASSERT_TRUE(SelectIsa(isa).ok());
        const std::vector<float> y = p.Run(pool);
        for (int64_t j = 0; j < p.n; ++j)
          ASSERT_TRUE(std::isnan(y[static_cast<size_t>(p.ldy + j)]));
        p.Check(y, 0);
        p.Check(y, 2);
      }
    }
  }
}

// What is too small for an inverse counts as zero; nothing overflows.
TEST_P(LinearInt8Test, TinyAndHugeBlocks) {
  ThreadPool pool(1);
  Problem p(GetParam(), 2, 64, 1024);
  for (int64_t i = 0; i < p.k; ++i) {
    p.X(0, i) = std::ldexp(static_cast<float>(i % 5 - 2), i < 64 ? -140 : i < 128 ? -99 : -101);
    p.X(1, i) = std::ldexp(static_cast<float>(i % 5 - 2), i < 64 ? 100 : -10);
  }
  for (const std::string& isa : Isas()) {
    SCOPED_TRACE(isa);
    ASSERT_TRUE(SelectIsa(isa).ok());
    p.Check(p.Run(pool));
  }
}

INSTANTIATE_TEST_SUITE_P(Types, LinearInt8Test, testing::ValuesIn(kTypes),
                         [](const auto& type) { return std::string(NameOf(type.param)); });

TEST(LinearInt8Pack, RowsThatAreNoWholeBlocksStayFloat32) {
  ThreadPool pool(1);
  const std::vector<float> w(66, 1.0f);
  auto p = PackedWeight::Pack({w.data(), DType::kF32, 2, {2, 33}}, pool, ComputeType::kI8);
  ASSERT_TRUE(p.ok());
  EXPECT_EQ(p->compute(), ComputeType::kF32);
  EXPECT_EQ(p->dtype(), DType::kF32);
}

}  // namespace
}  // namespace quire::kernels
