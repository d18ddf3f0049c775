// Attention with bf16 products: bits against a scalar reading of the definition in attention.h (one
// AMX tile product, as Intel's manual gives TDPBF16PS), values against float64 within what rounding
// the numerators to bf16 can do.
#include <gtest/gtest.h>

#include "kernels/cpu_isa.h"
#include "tests/support/attention_rig.h"

namespace quire::kernels {
namespace {

AttentionShape Bf16(AttentionShape s) {
  s.kv_dtype = s.dot = DType::kBF16;
  return s;
}

constexpr float kLog2E = 1.44269504f;
constexpr float kLn2 = 0.693147182f;

// A query as it enters products, on which base 2 is left to take.
float Scaled(const AttentionShape& s, float q) {
  return Rounded(DType::kBF16, q * (s.softmax_scale * kLog2E));
}

// Denormals are 0, going in and coming out.
float Flush(float x) { return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.0f, x) : x; }

// TDPBF16PS on one output: 16 pairs, two chains from 0, added to c.
float TileProduct(float c, const float* a, const float* b) {
  float even = 0.0f;
  float odd = 0.0f;
  for (int i = 0; i < 16; ++i) {
    even = Flush(std::fma(Flush(a[2 * i]), Flush(b[2 * i]), even));
    odd = Flush(std::fma(Flush(a[2 * i + 1]), Flush(b[2 * i + 1]), odd));
  }
  return Flush(c + Flush(even + odd));
}

// Numbers from denormals to those whose products overflow; `kind` chooses what is frequent.
float Wild(std::mt19937& rng, int kind) {
  std::normal_distribution<float> normal;
  const float x = normal(rng);
  const int dice = static_cast<int>(rng() % 64);
  if (kind == 0) return x;
  if (kind == 1) return x * std::exp(3.0f * normal(rng));
  if (kind == 2) return std::ldexp(x, dice % 2 == 0 ? -64 : -132);
  if (dice == 0 && rng() % 32 == 0) return x > 0 ? INFINITY : -INFINITY;
  return std::ldexp(x, dice < 2 ? 70 : 0);
}

bool Same(float a, float b) {
  return (std::isnan(a) && std::isnan(b)) || std::memcmp(&a, &b, sizeof a) == 0;
}

class Bf16Isa : public testing::TestWithParam<std::string> {
 protected:
  // False, and says so, if this machine lacks the instruction set.
  bool Select() {
    if (SelectIsa(GetParam()).ok()) return true;
    std::printf("[ not run here ] %s\n", GetParam().c_str());
    return false;
  }
  void TearDown() override { ASSERT_TRUE(SelectIsa("auto").ok()); }
  const AttentionBackend& flash_ = **FindAttention("flash");
};
INSTANTIATE_TEST_SUITE_P(All, Bf16Isa, testing::Values("portable", "avx2", "avx512", "amx"),
                         [](const auto& param) { return param.param; });

// A query that sees one key has the score as its lse.
TEST_P(Bf16Isa, ScoresAreTileProducts) {
  if (!Select()) return;
  ThreadPool pool(1);
  for (const int32_t dim : {64, 80, 33, 192}) {
    for (int kind = 0; kind < 4; ++kind) {
      AttentionShape s = Bf16(Shape(6, 2, dim, 16));
      s.softmax_scale = 1.0f;
      s.window = 1;
      constexpr int32_t kLen = 70;
      DenseSeq seq = RandomSeq(s, kLen, 1);
      std::mt19937 rng(static_cast<uint32_t>(dim * 4 + kind));
      for (float& x : seq.q) x = Wild(rng, kind);
      for (float& x : seq.k) x = Rounded(DType::kBF16, Wild(rng, kind));
      const AttentionResult got =
          AttentionRig(s, {seq}, {.page_size = 16}).Run(flash_, {{0, kLen, kLen}}, pool);
      int finite = 0;
      for (int32_t i = 0; i < kLen; ++i) {
        for (int32_t h = 0; h < 6; ++h) {
          float want = 0.0f;
          for (int32_t d0 = 0; d0 < dim; d0 += 32) {
            float a[32] = {};
            float b[32] = {};
            for (int32_t d = d0; d < std::min(dim, d0 + 32); ++d) {
              const auto row = static_cast<size_t>(i);
              a[d - d0] = Scaled(s, seq.q[((row + DenseSeq::kBefore) * 6 + h) * dim + d]);
              b[d - d0] = seq.k[(row * 2 + h / 3) * dim + d];
            }
            want = TileProduct(want, a, b);
          }
          want *= kLn2;
          // A row whose scores are all -inf or no number sees nothing; one of +inf is no number.
          finite += std::isfinite(want) ? 1 : 0;
          if (!std::isfinite(want)) want = want > 0 ? NAN : -INFINITY;
          EXPECT_TRUE(Same(got.lse[i * 6 + h] + 0.0f, want + 0.0f))
              << "dim=" << dim << " kind=" << kind << " " << got.lse[i * 6 + h] << " not " << want;
        }
      }
      EXPECT_GT(finite, kLen / 2);
    }
  }
}

// Queries of 0 weigh all keys alike: the numerators are 1, their sum the number of keys.
TEST_P(Bf16Isa, ValuesAreTileProducts) {
  if (!Select()) return;
  ThreadPool pool(1);
  for (const int32_t page_size : {8, 16, 64}) {
    for (int kind = 0; kind < 3; ++kind) {
      const AttentionShape s = Bf16(Shape(6, 2, 32, 72));
      constexpr int32_t kLen = 128;
      DenseSeq seq = RandomSeq(s, kLen, 1);
      std::fill(seq.q.begin(), seq.q.end(), 0.0f);
      std::mt19937 rng(static_cast<uint32_t>(kind));
      for (float& x : seq.v) x = Rounded(DType::kBF16, Wild(rng, kind));
      const AttentionResult got =
          AttentionRig(s, {seq}, {.page_size = page_size}).Run(flash_, {{0, 65, kLen}}, pool);
      for (const int32_t keys : {64, 128}) {  // powers of two: dividing is exact
        const auto row = static_cast<size_t>(keys - 64);
        for (size_t h = 0; h < 6; ++h) {
          for (size_t d = 0; d < 72; ++d) {
            float want = 0.0f;
            for (int32_t k0 = 0; k0 < keys; k0 += 32) {
              float p[32];
              float v[32];
              for (int32_t i = 0; i < 32; ++i) {
                p[i] = 1.0f;
                v[i] = seq.v[(static_cast<size_t>(k0 + i) * 2 + h / 3) * 72 + d];
              }
              want = TileProduct(want, p, v);
            }
            want = want / static_cast<float>(keys) + 0.0f;
            EXPECT_TRUE(Same(got.out[(row * 6 + h) * 72 + d] + 0.0f, want))
                << "page_size=" << page_size << " kind=" << kind << " keys=" << keys;
          }
        }
      }
    }
  }
}

struct Case {
  const char* name;
  AttentionShape shape;
  SeqRun run;
  bool sinks = false;
  bool alibi = false;
};

AttentionShape With(AttentionShape s, int32_t window, int32_t chunk, float softcap = 0.0f) {
  s.window = window;
  s.chunk = chunk;
  s.logit_softcap = softcap;
  return s;
}

// clang-format off
const Case kCases[] = {
    {"decode_gqa3",   Shape(9, 3, 64),                   {0, 1, 700}},
    {"prefill",       Shape(4, 2, 128),                  {0, 150, 150}},
    {"chunked_80",    Shape(6, 2, 80),                   {0, 37, 137}},
    {"window_sinks",  With(Shape(8, 2, 64), 17, 0),      {0, 30, 90}, true},
    {"chunk",         With(Shape(4, 2, 64), 0, 48),      {0, 30, 130}},
    {"softcap",       With(Shape(2, 1, 32), 0, 0, 5.0f), {0, 20, 40}},
    {"alibi",         Shape(4, 2, 33),                   {0, 11, 40}, false, true},
    {"mla",           Shape(4, 4, 192, 128),             {0, 5, 70}},
    {"narrow_values", Shape(4, 2, 48, 20),               {0, 9, 555}},
    {"wide_group",    Shape(64, 1, 32),                  {0, 3, 20}},
};
// clang-format on

// Queries are rounded as the definition has it; what is left are numerators that are off by 2^-8 of
// themselves at most, and float32's own error.
TEST(Bf16Attention, WithinTheRoundingOfItsNumerators) {
  const AttentionBackend& flash = **FindAttention("flash");
  ThreadPool pool(2);
  for (Case c : kCases) {
    c.shape = Bf16(c.shape);
    Extras x;
    for (int32_t h = 0; h < c.shape.num_heads; ++h) {
      if (c.sinks) x.sinks.push_back(0.7f * static_cast<float>(h) - 2.0f);
      if (c.alibi) x.slopes.push_back(std::exp2(-2.0f * static_cast<float>(h + 1)));
    }
    const DenseSeq seq = RandomSeq(c.shape, c.run.num_k, 3);
    DenseSeq rounded = seq;
    for (float& q : rounded.q) q = Scaled(c.shape, q) / (c.shape.softmax_scale * kLog2E);
    DenseSeq magnitudes = rounded;
    for (float& v : magnitudes.v) v = std::fabs(v);
    const OracleResult want = Dense(c.shape, rounded, c.run.num_q, c.run.num_k, x);
    const OracleResult size = Dense(c.shape, magnitudes, c.run.num_q, c.run.num_k, x);
    for (const int32_t page_size : {8, 16, 32, 128}) {
      const AttentionResult got =
          AttentionRig(c.shape, {seq}, {.page_size = page_size}).Run(flash, {c.run}, pool, x);
      double worst = 0;
      ASSERT_EQ(got.out.size(), want.out.size());
      for (size_t i = 0; i < got.out.size(); ++i) {
        const double error = std::fabs(double{got.out[i]} - want.out[i]);
        worst = std::max(worst, error / (size.out[i] * 0x1p-8 + 1e-5));
        EXPECT_FALSE(std::isnan(error)) << c.name;
      }
      EXPECT_LE(worst, 1.0) << c.name << " page_size=" << page_size;
      EXPECT_GT(worst, 0.01) << c.name << ": exact? then products are no bf16";
      for (size_t i = 0; i < got.lse.size(); ++i) EXPECT_NEAR(got.lse[i], want.lse[i], 2e-5);
    }
  }
}

TEST(Bf16Attention, NeedsACacheOfBf16) {
  const AttentionBackend& flash = **FindAttention("flash");
  AttentionShape s = Shape(2, 2, 64);
  s.dot = DType::kBF16;
  for (const DType type : {DType::kF32, DType::kF16}) {
    s.kv_dtype = type;
    const absl::Status status = flash.supports(s, 16);
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
    EXPECT_NE(Message(status).find("dot=BF16"), std::string::npos);
  }
  s.kv_dtype = DType::kBF16;
  EXPECT_TRUE(flash.supports(s, 16).ok());
  EXPECT_FALSE((**FindAttention("eager")).supports(s, 16).ok());
}

}  // namespace
}  // namespace quire::kernels
