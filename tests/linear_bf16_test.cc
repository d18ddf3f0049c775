// tests/linear_bf16_test.cc -- RunLinear in bfloat16: every instruction set gives the sums that
// kernels/cpu/linear_dot.h states, bit for bit, for every weight type, number of rows, threads and
// jobs; and those sums against float64.
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "kernels/cpu/flush_subnormals.h"
#include "kernels/linear.h"
#include "tests/support/linear_problem.h"

namespace quire::kernels {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

float Rounded(float x) { return BF16ToFloat(FloatToBF16(x)); }

struct Problem {
  DType type;
  int64_t m, n, k, ldx, ldy;
  std::vector<std::byte> file;
  PackedWeight packed;
  std::vector<float> x;
  std::vector<std::byte> scratch;

  Problem(DType type_, int64_t m_, int64_t n_, int64_t k_, uint32_t seed = 1)
      : type(type_), m(m_), n(n_), k(k_), ldx(k_ + 5), ldy(n_ + 3) {
    std::mt19937 rng(seed);
    std::normal_distribution<float> normal;
    file = RandomWeights(type, n, k, rng);
    ThreadPool pool(1);
    auto p = PackedWeight::Pack({file.data(), type, 2, {n, k}}, pool, ComputeType::kBF16);
    EXPECT_TRUE(p.ok()) << p.status();
    packed = *std::move(p);
    x.assign(static_cast<size_t>((m + 1) * ldx), kNan);
    for (int64_t r = 0; r < m; ++r) {
      for (int64_t i = 0; i < k; ++i) x[static_cast<size_t>(r * ldx + i)] = normal(rng);
    }
    scratch.resize(LinearScratchBytes(m, k) + 64);
  }

  float X(int64_t r, int64_t i) const { return i < k ? x[static_cast<size_t>(r * ldx + i)] : 0.0f; }

  // Rounded values of block b of weight row j, zero beyond k.
  const std::array<float, 32>& At(int64_t j, int64_t b) const {
    const int64_t blocks = (k + 31) / 32;
    if (values_.empty()) {
      values_.resize(static_cast<size_t>(n * blocks));
      std::vector<float> row(static_cast<size_t>(k));
      const size_t row_bytes = BytesFor(type, row.size());
      for (int64_t c = 0; c < n; ++c) {
        Dequantize(type, file.data() + static_cast<size_t>(c) * row_bytes, k, row.data());
        for (int64_t i = 0; i < k; ++i) {
          values_[static_cast<size_t>(c * blocks + i / 32)][static_cast<size_t>(i % 32)] =
              Rounded(row[static_cast<size_t>(i)]);
        }
      }
    }
    return values_[static_cast<size_t>(j * blocks + b)];
  }
  mutable std::vector<std::array<float, 32>> values_;  // read once: sanitizers make that slow

  // The contract, literally.
  float Want(int64_t r, int64_t j) const {
    const FlushSubnormals flush;
    float y = 0.0f;
    for (int64_t b = 0; b < (k + 31) / 32; ++b) {
      const std::array<float, 32>& w = At(j, b);
      float even = 0.0f, odd = 0.0f;
      for (size_t i = 0; i < 32; i += 2) {
        const int64_t at = b * 32 + static_cast<int64_t>(i);
        even = std::fma(Rounded(X(r, at)), w[i], even);
        odd = std::fma(Rounded(X(r, at + 1)), w[i + 1], odd);
      }
      y += even + odd;
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

class LinearBf16Test : public testing::TestWithParam<DType> {
 protected:
  ~LinearBf16Test() override { EXPECT_TRUE(SelectIsa("auto").ok()); }
  // The last is more than a run of blocks that are expanded together.
  static std::vector<int64_t> Depths(DType type) {
    const int64_t block = InfoOf(type).block_size;
    if (block == 1) return {1, 7, 32, 45, 141, 801};
    if (block == 32) return {32, 96, 800};
    return {256, 1024};
  }
};

TEST_P(LinearBf16Test, EveryIsaSumsAsStated) {
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

// x and w are rounded once each (2^-9 of a value), and there are fewer than k / 16 + 80 roundings
// to float32 on any product's way.
TEST_P(LinearBf16Test, WithinTheBoundOfFloat64) {
  ThreadPool pool(2);
  Problem p(GetParam(), 9, 65, 768);
  const std::vector<float> y = p.Run(pool);
  std::vector<float> w(static_cast<size_t>(p.k));
  for (int64_t j = 0; j < p.n; ++j) {
    Dequantize(GetParam(), p.file.data() + static_cast<size_t>(j) * BytesFor(GetParam(), w.size()),
               p.k, w.data());
    for (int64_t r = 0; r < p.m; ++r) {
      double sum = 0, magnitude = 0;
      for (int64_t i = 0; i < p.k; ++i) {
        const double product =
            static_cast<double>(p.X(r, i)) * static_cast<double>(w[static_cast<size_t>(i)]);
        sum += product;
        magnitude += std::abs(product);
      }
      const double bound = 0x1p-8 + 0x1p-18 + (static_cast<double>(p.k) / 16 + 80) * 0x1p-24;
      ASSERT_NEAR(y[static_cast<size_t>(r * p.ldy + j)], sum, bound * magnitude);
    }
  }
}

// C1: a row's result is the same alone, in any batch and with any number of threads.
TEST_P(LinearBf16Test, RowsAndThreadsDoNotShow) {
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
    for (const int64_t m : {1, 2, 4, 5, 8, 37, 96, 193, 400}) {
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

TEST_P(LinearBf16Test, NonFiniteRowsStayAlone) {
  ThreadPool pool(2);
  for (const int64_t m : {3, 17}) {
    Problem p(GetParam(), m, 70, 256);
    for (int64_t i = 0; i < p.k; ++i) p.x[static_cast<size_t>(p.ldx + i)] = kNan;
    for (const std::string& isa : Isas()) {
      SCOPED_TRACE(isa);
      ASSERT_TRUE(SelectIsa(isa).ok());
      const std::vector<float> y = p.Run(pool);
      for (int64_t j = 0; j < p.n; ++j) ASSERT_TRUE(std::isnan(y[static_cast<size_t>(p.ldy + j)]));
      p.Check(y, 0);
      p.Check(y, 2);
    }
  }
}

TEST_P(LinearBf16Test, SubnormalNumbersCountAsZero) {
  ThreadPool pool(1);
  Problem p(GetParam(), 2, 64, 256);
  for (int64_t i = 0; i < p.k; i += 3)
    p.x[static_cast<size_t>(i)] = 0x1p-130f * static_cast<float>(i % 7);
  for (int64_t i = 0; i < p.k; ++i) p.x[static_cast<size_t>(p.ldx + i)] *= 0x1p-120f;
  for (const std::string& isa : Isas()) {
    SCOPED_TRACE(isa);
    ASSERT_TRUE(SelectIsa(isa).ok());
    const std::vector<float> y = p.Run(pool);
    for (int64_t r = 0; r < 2; ++r) {
      for (int64_t j = 0; j < 64; ++j) {
        const float got = y[static_cast<size_t>(r * p.ldy + j)];
        ASSERT_TRUE(got == 0.0f || std::isnormal(got)) << got;
      }
    }
    p.Check(y, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Types, LinearBf16Test, testing::ValuesIn(kTypes),
                         [](const auto& type) { return std::string(NameOf(type.param)); });

// Inputs that jobs share are rounded once; those in float32 need no scratch.
TEST(LinearBf16Jobs, MixedInOneCallEqualEachAlone) {
  for (const int64_t m : {1, 5, 200}) {
    Problem q(DType::kQ4_1, m, 200, 64, 1), k(DType::kQ8_0, m, 65, 96, 2);
    ThreadPool pool(3);
    const std::vector<float> want_q = q.Run(pool), want_k = k.Run(pool);
    auto exact = PackedWeight::Pack({k.file.data(), DType::kQ8_0, 2, {65, 96}}, pool);
    ASSERT_TRUE(exact.ok());
    std::vector<float> yq(want_q.size(), kNan), yk = yq, yq2 = yq, y32(want_k.size(), kNan);
    std::vector<float> want_32 = y32;
    yk.assign(want_k.size(), kNan);
    LinearJob job32 = k.Job(y32.data());
    job32.w = &*exact;
    std::vector<float> alone(want_k.size(), kNan);
    LinearJob alone32 = job32;
    alone32.y = alone.data();
    RunLinear({{alone32}}, m, pool);
    std::vector<std::byte> scratch(LinearScratchBytes(m, 64) + LinearScratchBytes(m, 96) + 64);
    void* at = scratch.data();
    size_t left = scratch.size();
    ASSERT_NE(std::align(64, 1, at, left), nullptr);
    const LinearJob jobs[] = {q.Job(yq.data()), job32, k.Job(yk.data()), q.Job(yq2.data())};
    RunLinear(jobs, m, pool, {static_cast<std::byte*>(at), left});
    EXPECT_EQ(std::memcmp(yq.data(), want_q.data(), yq.size() * 4), 0);
    EXPECT_EQ(std::memcmp(yq2.data(), want_q.data(), yq.size() * 4), 0);
    EXPECT_EQ(std::memcmp(yk.data(), want_k.data(), yk.size() * 4), 0);
    EXPECT_EQ(std::memcmp(y32.data(), alone.data(), y32.size() * 4), 0);
  }
}

// y = sums + bias + residual, in this order; the residual may be y itself.
TEST(LinearBf16Jobs, BiasAndResidualAreAddedToTheSums) {
  ThreadPool pool(2);
  for (const std::string& isa : Isas()) {
    ASSERT_TRUE(SelectIsa(isa).ok());
    for (const int64_t m : {1, 3, 7, 16, 50}) {
      Problem p(DType::kQ4_1, m, 70, 96, static_cast<uint32_t>(m));
      const std::vector<float> sums = p.Run(pool);
      std::vector<float> bias(70), residual(sums.size());
      for (size_t i = 0; i < bias.size(); ++i) bias[i] = 0.1f * static_cast<float>(i) - 3.0f;
      for (size_t i = 0; i < residual.size(); ++i) residual[i] = std::sin(static_cast<float>(i));
      for (const bool with_bias : {false, true}) {
        for (const bool in_place : {false, true}) {
          std::vector<float> y = in_place ? residual : std::vector<float>(sums.size(), kNan);
          LinearJob job = p.Job(y.data());
          job.residual = in_place ? y.data() : residual.data();
          if (with_bias) job.bias = bias.data();
          RunLinear({{job}}, m, pool, p.Scratch());
          for (int64_t r = 0; r < m; ++r) {
            for (int64_t j = 0; j < p.n; ++j) {
              const auto at = static_cast<size_t>(r * p.ldy + j);
              float want = sums[at];
              if (with_bias) want += bias[static_cast<size_t>(j)];
              want += residual[at];
              ASSERT_EQ(y[at], want) << isa << " m=" << m << " row " << r << " column " << j;
            }
          }
        }
      }
    }
  }
  EXPECT_TRUE(SelectIsa("auto").ok());
}

TEST(LinearBf16Pack, PlainTypesAreRoundedOnce) {
  ThreadPool pool(1);
  const std::vector<float> w = {1.0f, 1.00390625f, -3.1415927f, 0x1p-140f};
  auto p = PackedWeight::Pack({w.data(), DType::kF32, 2, {2, 2}}, pool, ComputeType::kBF16);
  ASSERT_TRUE(p.ok());
  EXPECT_EQ(p->dtype(), DType::kBF16);
  float row[2];
  p->Row(0, row);
  EXPECT_EQ(row[0], 1.0f);
  EXPECT_EQ(row[1], 1.0f);  // half way, to even
  p->Row(1, row);
  EXPECT_EQ(row[0], -3.140625f);
}

TEST(LinearBf16Pack, AutoRoundsNoWeight) {
  ThreadPool pool(1);
  const std::vector<float> w(64);
  for (const std::string& isa : Isas()) {
    ASSERT_TRUE(SelectIsa(isa).ok());
    for (const DType type : {DType::kF32, DType::kF16, DType::kBF16, DType::kQ8_0}) {
      auto p = PackedWeight::Pack({w.data(), type, 2, {1, 32}}, pool, ComputeType::kAuto);
      ASSERT_TRUE(p.ok());
      EXPECT_EQ(p->dtype(), type);
      ComputeType want = ComputeType::kF32;
      if (isa == "amx" && type == DType::kBF16) want = ComputeType::kBF16;
      if (isa != "portable" && type == DType::kQ8_0) want = ComputeType::kI8;
      EXPECT_EQ(p->compute(), want) << isa << " " << NameOf(type);
    }
  }
  EXPECT_TRUE(SelectIsa("auto").ok());
}

TEST(ComputeTypeTest, NamesThereAndBack) {
  for (const char* name : {"auto", "float32", "bf16", "int8"}) {
    auto type = FindCompute(name);
    ASSERT_TRUE(type.ok());
    EXPECT_EQ(NameOf(*type), name);
  }
  const absl::Status status = FindCompute("fp8").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  for (const char* part : {"compute=fp8", "auto", "float32", "bf16"}) {
    EXPECT_NE(Message(status).find(part), std::string::npos) << Message(status);
  }
}

}  // namespace
}  // namespace quire::kernels
