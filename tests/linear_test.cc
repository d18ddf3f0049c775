// tests/linear_test.cc -- RunLinear's contract: one chain of fma per element, bit for bit, for
// every weight type, instruction set, number of rows, threads and jobs; and that chain against
// float64.
#include "kernels/linear.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "kernels/cpu_isa.h"
#include "tests/support/linear_problem.h"

namespace quire::kernels {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// One product with its expected values; x and y have gaps between rows.
struct Problem {
  int64_t m, n, k;
  int64_t ldx, ldy;
  std::vector<float> w;  // [n, k] dequantised
  PackedWeight packed;
  std::vector<float> x;     // [m + 1, ldx], NaN outside [m, k]
  std::vector<float> want;  // [m, n]

  Problem(DType type, int64_t m_, int64_t n_, int64_t k_, uint32_t seed = 1)
      : m(m_), n(n_), k(k_), ldx(k_ + 5), ldy(n_ + 3), w(static_cast<size_t>(n_ * k_)) {
    std::mt19937 rng(seed);
    std::normal_distribution<float> normal;
    const std::vector<std::byte> file = RandomWeights(type, n, k, rng);
    Dequantize(type, file.data(), n * k, w.data());
    ThreadPool pool(1);
    absl::StatusOr<PackedWeight> p = PackedWeight::Pack({file.data(), type, 2, {n, k}}, pool);
    EXPECT_TRUE(p.ok()) << p.status();
    packed = *std::move(p);
    x.assign(static_cast<size_t>((m + 1) * ldx), kNan);
    for (int64_t r = 0; r < m; ++r) {
      for (int64_t i = 0; i < k; ++i) x[static_cast<size_t>(r * ldx + i)] = normal(rng);
    }
    want.resize(static_cast<size_t>(m * n));
    for (int64_t r = 0; r < m; ++r) {
      for (int64_t j = 0; j < n; ++j) want[static_cast<size_t>(r * n + j)] = Chain(r, j);
    }
  }

  float X(int64_t r, int64_t i) const { return x[static_cast<size_t>(r * ldx + i)]; }
  float W(int64_t j, int64_t i) const { return w[static_cast<size_t>(j * k + i)]; }

  // The contract, literally.
  float Chain(int64_t r, int64_t j) const {
    float sum = 0.0f;
    for (int64_t i = 0; i < k; ++i) sum = std::fma(X(r, i), W(j, i), sum);
    return sum;
  }

  LinearJob Job(float* y) const {
    return {.w = &packed, .x = x.data(), .ldx = ldx, .y = y, .ldy = ldy};
  }
  // [m, ldy], and NaN where RunLinear has no business.
  std::vector<float> NewY() const { return std::vector<float>(static_cast<size_t>(m * ldy), kNan); }

  void Check(const std::vector<float>& y) const {
    for (int64_t r = 0; r < m; ++r) {
      for (int64_t j = 0; j < n; ++j) {
        const float got = y[static_cast<size_t>(r * ldy + j)];
        const float right = want[static_cast<size_t>(r * n + j)];
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

class LinearTest : public testing::TestWithParam<DType> {
 protected:
  ~LinearTest() override { EXPECT_TRUE(SelectIsa("auto").ok()); }
  // A multiple of the block size; plain types get odd lengths as well.
  static std::vector<int64_t> Depths(DType type) {
    const int64_t block = InfoOf(type).block_size;
    if (block == 1) return {1, 7, 32, 45, 128, 141};
    if (block == 32) return {32, 96, 160};
    return {256};
  }
};

TEST_P(LinearTest, EveryIsaIsTheChain) {
  const std::vector<std::string> isas = Isas();
  ThreadPool pool(2);
  const int64_t kNs[] = {1, 7, 64, 65, 200};
  const int64_t kMs[] = {1, 2, 3, 4, 5, 6, 7, 11, 13, 31};
  uint32_t seed = 0;
  for (const int64_t k : Depths(GetParam())) {
    for (const int64_t n : kNs) {
      // Each shape meets two of the row counts; all of them occur for every type.
      for (const int64_t m : {kMs[seed % 10], kMs[(seed + 5) % 10]}) {
        const Problem problem(GetParam(), m, n, k, seed);
        for (const std::string& isa : isas) {
          SCOPED_TRACE(isa);
          ASSERT_TRUE(SelectIsa(isa).ok());
          std::vector<float> y = problem.NewY();
          RunLinear({{problem.Job(y.data())}}, m, pool);
          problem.Check(y);
          if (HasFatalFailure()) return;
        }
      }
      ++seed;
    }
  }
}

// Higham, Accuracy and Stability of Numerical Algorithms, 3.1: k roundings give at most
// k u / (1 - k u) sum |x| |w|, u = 2^-24.
TEST_P(LinearTest, WithinTheBoundOfFloat64) {
  ThreadPool pool(2);
  const Problem p(GetParam(), 9, 65, 768);
  std::vector<float> y = p.NewY();
  RunLinear({{p.Job(y.data())}}, p.m, pool);
  const double ku = static_cast<double>(p.k) * 0x1p-24;
  for (int64_t r = 0; r < p.m; ++r) {
    for (int64_t j = 0; j < p.n; ++j) {
      double sum = 0, magnitude = 0;
      for (int64_t i = 0; i < p.k; ++i) {
        const double product = static_cast<double>(p.X(r, i)) * static_cast<double>(p.W(j, i));
        sum += product;
        magnitude += std::abs(product);
      }
      ASSERT_NEAR(y[static_cast<size_t>(r * p.ldy + j)], sum, ku / (1 - ku) * magnitude);
    }
  }
}

// C1: a row's result is the same alone, in any batch and with any number of threads.
TEST_P(LinearTest, RowsAndThreadsDoNotShow) {
  const Problem p(GetParam(), 1, 150, 768);
  constexpr int64_t kMost = 400;  // more than one chunk of rows
  std::vector<float> x;
  for (int64_t r = 0; r < kMost; ++r) x.insert(x.end(), p.x.begin(), p.x.begin() + p.ldx);
  for (int32_t threads = 1; threads <= 4; ++threads) {
    ThreadPool pool(threads);
    for (const int64_t m : {1, 2, 4, 5, 8, 37, 96, 193, 400}) {
      std::vector<float> y(static_cast<size_t>(m * p.ldy), kNan);
      LinearJob job = p.Job(y.data());
      job.x = x.data();
      RunLinear({{job}}, m, pool);
      for (int64_t r = 0; r < m; ++r) {
        ASSERT_EQ(std::memcmp(y.data() + r * p.ldy, p.want.data(), sizeof(float) * 150), 0)
            << "row " << r << " of " << m << ", threads=" << threads;
      }
    }
  }
}

TEST_P(LinearTest, RowReadsThePackedForm) {
  const Problem p(GetParam(), 1, 70, 512);
  std::vector<float> row(static_cast<size_t>(p.k));
  for (int64_t j = 0; j < p.n; ++j) {
    p.packed.Row(j, row.data());
    ASSERT_EQ(std::memcmp(row.data(), p.w.data() + j * p.k, sizeof(float) * row.size()), 0)
        << "row " << j;
  }
}

// The packed form costs what the file does: K types pay 4 bytes per 256 for unpacked 6-bit scales.
TEST_P(LinearTest, MemoryIsTheFiles) {
  const Problem p(GetParam(), 1, 128, 512);
  const size_t file = BytesFor(GetParam(), 128 * 512);
  EXPECT_GE(p.packed.bytes(), file);
  EXPECT_LE(p.packed.bytes(), file + file / 32);
}

TEST_P(LinearTest, NonFiniteRowsStayAlone) {
  ThreadPool pool(2);
  const std::vector<std::string> isas = Isas();
  for (const int64_t m : {3, 9}) {
    Problem p(GetParam(), m, 70, 256);
    for (int64_t i = 0; i < p.k; ++i) p.x[static_cast<size_t>(p.ldx + i)] = kNan;
    for (const std::string& isa : isas) {
      SCOPED_TRACE(isa);
      ASSERT_TRUE(SelectIsa(isa).ok());
      std::vector<float> y = p.NewY();
      RunLinear({{p.Job(y.data())}}, m, pool);
      for (int64_t j = 0; j < p.n; ++j) {
        ASSERT_TRUE(std::isnan(y[static_cast<size_t>(p.ldy + j)]));
        y[static_cast<size_t>(p.ldy + j)] = p.want[static_cast<size_t>(p.n + j)];
      }
      p.Check(y);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, LinearTest, testing::ValuesIn(kTypes),
                         [](const auto& type) { return std::string(NameOf(type.param)); });

TEST(LinearJobs, ManyInOneCallEqualEachAlone) {
  for (const int64_t m : {1, 5, 200}) {
    const Problem q(DType::kQ4_1, m, 200, 64, 1);
    const Problem k(DType::kQ8_0, m, 65, 96, 2);
    const Problem v(DType::kF32, m, 1, 33, 3);
    std::vector<float> yq = q.NewY(), yk = k.NewY(), yv = v.NewY();
    ThreadPool pool(3);
    const LinearJob jobs[] = {q.Job(yq.data()), k.Job(yk.data()), v.Job(yv.data())};
    RunLinear(jobs, m, pool);
    q.Check(yq);
    k.Check(yk);
    v.Check(yv);
  }
}

// (chain + bias) + residual: here 1 + 2^24 rounds to 2^24, so any other order gives 1 instead of 0.
TEST(LinearJobs, BiasThenResidual) {
  ThreadPool pool(2);
  for (const int64_t m : {1, 50}) {
    const std::vector<float> w(70, 1.0f), x(static_cast<size_t>(m), 1.0f), bias(70, 0x1p24f);
    auto packed = PackedWeight::Pack({w.data(), DType::kF32, 2, {70, 1}}, pool);
    ASSERT_TRUE(packed.ok());
    std::vector<float> y(static_cast<size_t>(m * 70), -0x1p24f);
    LinearJob job{.w = &*packed, .x = x.data(), .ldx = 1, .y = y.data(), .ldy = 70};
    job.bias = bias.data();
    job.residual = y.data();  // in place
    RunLinear({{job}}, m, pool);
    for (const float v : y) ASSERT_EQ(v, 0.0f);

    job.residual = nullptr;
    RunLinear({{job}}, m, pool);
    for (const float v : y) ASSERT_EQ(v, 0x1p24f);

    job.bias = nullptr;
    job.residual = y.data();
    RunLinear({{job}}, m, pool);
    for (const float v : y) ASSERT_EQ(v, 0x1p24f);  // 2^24 + 1 to even
  }
}

TEST(LinearJobs, NoRowsWriteNothing) {
  ThreadPool pool(2);
  const Problem p(DType::kF32, 1, 5, 5);
  RunLinear({{p.Job(nullptr)}}, 0, pool);
}

struct BadShape {
  const char* name;
  TensorView view;
  absl::StatusCode code;
  const char* says;
};

TEST(LinearPack, RefusesWithTheReason) {
  ThreadPool pool(1);
  const float data[64]{};
  const BadShape kBad[] = {
      {"type", {data, DType::kI8, 2, {8, 8}}, absl::StatusCode::kUnimplemented, "type=I8"},
      {"vector", {data, DType::kF32, 1, {8}}, absl::StatusCode::kInvalidArgument, "[8] F32"},
      {"rank 3", {data, DType::kF32, 3, {2, 2, 2}}, absl::StatusCode::kInvalidArgument, "[n, k]"},
      {"no rows", {data, DType::kF32, 2, {0, 8}}, absl::StatusCode::kInvalidArgument, "[0, 8]"},
      {"no depth", {data, DType::kF32, 2, {8, 0}}, absl::StatusCode::kInvalidArgument, "[8, 0]"},
      {"negative", {data, DType::kF32, 2, {-1, 8}}, absl::StatusCode::kInvalidArgument, "[-1, 8]"},
      {"part block", {data, DType::kQ4_1, 2, {1, 33}}, absl::StatusCode::kInvalidArgument, "of 32"},
      {"part block",
       {data, DType::kQ6_K, 2, {1, 32}},
       absl::StatusCode::kInvalidArgument,
       "of 256"},
      {"overflow",
       {data, DType::kF32, 2, {int64_t{1} << 40, int64_t{1} << 40}},
       absl::StatusCode::kInvalidArgument,
       "2^46"},
  };
  for (const BadShape& bad : kBad) {
    SCOPED_TRACE(bad.name);
    const absl::Status status = PackedWeight::Pack(bad.view, pool).status();
    EXPECT_EQ(status.code(), bad.code);
    EXPECT_NE(Message(status).find(bad.says), std::string::npos) << Message(status);
  }
}

// 2^47 bytes are more than a process can map; the source is not read before that shows.
TEST(LinearPack, RefusesWhatDoesNotFitMemory) {
  ThreadPool pool(1);
  const TensorView view{nullptr, DType::kF32, 2, {int64_t{1} << 30, int64_t{1} << 15}};
  const absl::Status status = PackedWeight::Pack(view, pool).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(Message(status).find("140737488355328 bytes"), std::string::npos) << Message(status);
}

// Weights share slabs: freeing some, in any order, leaves the others whole.
TEST(LinearPack, WeightsOutliveTheirNeighbours) {
  ThreadPool pool(2);
  std::vector<float> source(1 << 20);
  for (size_t i = 0; i < source.size(); ++i) source[i] = static_cast<float>(i);
  std::vector<PackedWeight> weights;
  for (int i = 0; i < 24; ++i) {  // 1 MiB to 4 MiB each, 60 MiB: more than one slab
    const int64_t n = 256 * (1 + i % 4);
    auto packed = PackedWeight::Pack({source.data(), DType::kF32, 2, {n, 1024}}, pool);
    ASSERT_TRUE(packed.ok()) << packed.status();
    weights.push_back(*std::move(packed));
    if (i % 3 == 2) weights.erase(weights.begin() + i / 3);
  }
  ASSERT_EQ(weights.size(), 16u);
  std::vector<float> row(1024);
  for (const PackedWeight& w : weights) {
    for (const int64_t r : {int64_t{0}, w.n() - 1}) {
      w.Row(r, row.data());
      ASSERT_EQ(std::memcmp(row.data(), source.data() + r * 1024, 4096), 0) << "row " << r;
    }
  }
}

TEST(CpuIsaTest, UnknownNameListsTheRows) {
  const absl::Status status = SelectIsa("sse9");
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  for (const char* part : {"cpu_isa=sse9", "auto", "portable"}) {
    EXPECT_NE(Message(status).find(part), std::string::npos) << Message(status);
  }
}

TEST(CpuIsaTest, AutoIsTheFirstRowThisCpuHas) {
  ASSERT_TRUE(SelectIsa("portable").ok());
  EXPECT_EQ(ActiveIsa(), CpuIsa::kPortable);
  ASSERT_TRUE(SelectIsa("auto").ok());
  const std::string lines = DescribeCpu();
  const size_t has = lines.find("has it");
  ASSERT_NE(has, std::string::npos) << lines;
  const size_t row = lines.rfind('\n', has) + 1;  // npos + 1 = 0
  EXPECT_EQ(lines.compare(row, NameOf(ActiveIsa()).size(), NameOf(ActiveIsa())), 0) << lines;
}

}  // namespace
}  // namespace quire::kernels
