// tests/attention_sweep_test.cc -- every backend on shapes drawn at random, against float64: head
// counts, odd widths, masks, extras, element types, page sizes, batches and threads in combinations
// that nobody would write down. Tolerance: that of the recorded cases. And additive biases.
#include <gtest/gtest.h>

#include <map>

#include "tests/support/attention_rig.h"

namespace quire::kernels {
namespace {

constexpr double kTolerance = 2e-6;

std::vector<std::string> Biased() {
  return BackendsFor([](AttentionShape& s) { s.additive_bias = true; });
}

struct Draw {
  AttentionShape shape;
  Extras extras;
  std::vector<DenseSeq> seqs;
  std::vector<SeqRun> runs;
  int32_t page_size = 16;
  int32_t threads = 1;
  std::string text;
};

Draw DrawCase(uint32_t seed) {
  std::mt19937 rng(seed);
  const auto below = [&](int32_t n) {
    return static_cast<int32_t>(rng() % static_cast<uint32_t>(n));
  };
  const auto of = [&](std::initializer_list<int32_t> list) {
    return list.begin()[below(static_cast<int32_t>(list.size()))];
  };
  Draw d;
  const int32_t kv_heads = 1 + below(4);
  const int32_t group = of({1, 1, 2, 3, 4, 5, 7, 8, 13, 33});
  // Mostly any width, sometimes one that models have; keys and values differ now and then.
  const int32_t dim = below(3) == 0 ? of({64, 80, 128, 192, 256, 576}) : 1 + below(150);
  d.shape = Shape(kv_heads * group, kv_heads, dim, below(3) == 0 ? 1 + below(150) : dim);
  AttentionShape& s = d.shape;
  s.softmax_scale *= 0.1f * static_cast<float>(of({3, 5, 7}));
  constexpr DType kTypes[] = {DType::kF32, DType::kBF16, DType::kF16, DType::kI8};
  s.kv_dtype = kTypes[below(4)];
  const int32_t mask = below(4);
  if (mask == 1) s.window = 1 + below(100);
  if (mask == 2) s.chunk = 1 + below(100);
  s.bidirectional = below(8) == 0;
  if (below(4) == 0) s.logit_softcap = static_cast<float>(of({2, 5, 30, 50}));
  s.additive_bias = below(3) == 0;
  if (s.additive_bias) d.extras.bias = static_cast<Extras::Bias>(1 + below(3));
  for (int32_t h = 0, sinks = below(3), alibi = below(3); h < s.num_heads; ++h) {
    if (sinks == 0) d.extras.sinks.push_back(0.1f * static_cast<float>(below(60)) - 3.0f);
    if (alibi == 0) d.extras.slopes.push_back(std::exp2(-static_cast<float>(1 + below(8))));
  }
  for (int32_t i = 0, n = 1 + below(4); i < n; ++i) {
    const int32_t len = below(4) == 0 ? 200 + below(120) : 1 + below(150);
    const int32_t num_q = below(2) == 0 ? 1 : 1 + below(std::min(len, 40) + 4);
    d.seqs.push_back(RandomSeq(s, len, rng()));
    d.runs.push_back({.seq = i, .num_q = std::min(num_q, len + 8), .num_k = len});
  }
  d.page_size = of({8, 16, 32, 64, 128});
  d.threads = 1 + below(4);
  d.text = fmt::format(
      "seed={} heads={}/{} dims={}/{} window={} chunk={} bidirectional={} softcap={} bias={} "
      "sinks={} alibi={} type={} page_size={} threads={} seqs={}",
      seed, s.num_heads, kv_heads, s.head_dim, s.head_dim_v, s.window, s.chunk, s.bidirectional,
      s.logit_softcap, static_cast<int>(d.extras.bias), !d.extras.sinks.empty(),
      !d.extras.slopes.empty(), NameOf(s.kv_dtype), d.page_size, d.threads, d.seqs.size());
  return d;
}

TEST(Sweep, RandomShapesAgainstFloat64) {
  std::map<std::string, int32_t> biased;
  std::map<std::string, int32_t> plain;
  for (uint32_t seed = 1; seed <= 160; ++seed) {
    const Draw d = DrawCase(seed);
    std::vector<OracleResult> want;
    for (const SeqRun& run : d.runs) {
      want.push_back(
          Dense(d.shape, d.seqs[static_cast<size_t>(run.seq)], run.num_q, run.num_k, d.extras));
    }
    ThreadPool pool(d.threads);
    const AttentionRig rig(d.shape, d.seqs, {.page_size = d.page_size, .seed = seed});
    for (const std::string& name : BackendNames()) {
      const AttentionBackend& backend = **FindAttention(name);
      if (!backend.supports(d.shape, d.page_size).ok()) {
        ASSERT_TRUE(d.shape.additive_bias) << d.text << backend.supports(d.shape, d.page_size);
        continue;
      }
      ++(d.shape.additive_bias ? biased : plain)[name];
      EXPECT_LE(MaxError(rig.Run(backend, d.runs, pool, d.extras), want), kTolerance)
          << name << " " << d.text;
    }
  }
  for (const std::string& name : BackendNames()) EXPECT_GT(plain[name], 90) << name;
  for (const std::string& name : Biased()) EXPECT_GT(biased[name], 30) << name;
}

class Bias : public testing::TestWithParam<std::string> {
 protected:
  const AttentionBackend& backend() const { return **FindAttention(GetParam()); }
  ThreadPool pool_{2};
};

INSTANTIATE_TEST_SUITE_P(All, Bias, testing::ValuesIn(Biased()),
                         [](const auto& param) { return param.param; });

// Each layout that the strides allow, after the soft-cap and beside slopes, sinks and windows.
TEST_P(Bias, LayoutsAndCompany) {
  for (const auto kind :
       {Extras::Bias::kFull, Extras::Bias::kOneForAllTokens, Extras::Bias::kOneForAllHeads}) {
    AttentionShape s = Shape(6, 2, 40);
    s.additive_bias = true;
    for (const int32_t window : {0, 21}) {
      for (const float softcap : {0.0f, 3.0f}) {
        s.window = window;
        s.logit_softcap = softcap;
        Extras x{.sinks = std::vector<float>(6, 0.5f),
                 .slopes = {0.5f, 0.25f, 0.1f, 0.0f, 0.01f, 1.0f},
                 .bias = kind};
        const std::vector<DenseSeq> seqs = {RandomSeq(s, 150, 1), RandomSeq(s, 9, 2)};
        const AttentionRig rig(s, seqs, {.page_size = 16});
        const AttentionResult got = rig.Run(backend(), {{0, 40, 150}, {1, 9, 9}}, pool_, x);
        EXPECT_LE(MaxError(got, {Dense(s, seqs[0], 40, 150, x), Dense(s, seqs[1], 9, 9, x)}),
                  kTolerance)
            << static_cast<int>(kind) << " window=" << window << " softcap=" << softcap;
        x.bias = Extras::Bias::kNone;
        EXPECT_GT(MaxError(got, {Dense(s, seqs[0], 40, 150, x), Dense(s, seqs[1], 9, 9, x)}), 0.1);
      }
    }
  }
}

// A bias of slope * (key - query) is ALiBi; a bias of -inf is a mask.
TEST_P(Bias, SaysWhatSlopesAndMasksSay) {
  AttentionShape s = Shape(4, 2, 32);
  const DenseSeq seq = RandomSeq(s, 60, 3);
  const AttentionRig rig(s, {seq}, {});
  const std::vector<float> slopes = {0.5f, 0.25f, 0.125f, 0.0625f};
  // By hand, since the rig's own bias is another one: 60 rows, 4 heads, 60 keys.
  std::vector<float> alibi;
  std::vector<float> mask;
  for (int32_t i = 0; i < 60; ++i) {
    for (size_t h = 0; h < 4; ++h) {
      for (int32_t j = 0; j < 60; ++j) {
        alibi.push_back(slopes[h] * static_cast<float>(j - i));
        mask.push_back(j > i - 7 ? 0.0f : -INFINITY);
      }
    }
  }
  const AttentionResult by_slopes = rig.Run(backend(), {{0, 60, 60}}, pool_, {.slopes = slopes});
  AttentionShape windowed = s;
  windowed.window = 7;
  const std::vector<OracleResult> by_window = {Dense(windowed, seq, 60, 60)};
  s.additive_bias = true;
  const AttentionRig biased(s, {seq}, {});
  const AttentionResult a = biased.Run(backend(), {{0, 60, 60}}, pool_, {.raw_bias = alibi});
  for (size_t i = 0; i < a.out.size(); ++i) EXPECT_NEAR(a.out[i], by_slopes.out[i], kTolerance);
  EXPECT_LE(MaxError(biased.Run(backend(), {{0, 60, 60}}, pool_, {.raw_bias = mask}), by_window),
            kTolerance);
  // All of a row at -inf: zeros, and lse is -inf; rows beside it keep their bits.
  std::vector<float> none = mask;
  std::fill_n(none.begin() + 20 * 4 * 60, 4 * 60, -INFINITY);
  const AttentionResult with = biased.Run(backend(), {{0, 60, 60}}, pool_, {.raw_bias = mask});
  const AttentionResult without = biased.Run(backend(), {{0, 60, 60}}, pool_, {.raw_bias = none});
  for (size_t i = 0; i < 60 * 4; ++i) {
    if (i / 4 == 20) {
      EXPECT_EQ(without.lse[i], -INFINITY);
      for (size_t d = 0; d < 32; ++d) EXPECT_EQ(without.out[i * 32 + d], 0.0f);
    } else {
      EXPECT_EQ(without.lse[i], with.lse[i]);
      EXPECT_EQ(std::memcmp(&without.out[i * 32], &with.out[i * 32], 32 * sizeof(float)), 0);
    }
  }
}

}  // namespace
}  // namespace quire::kernels
