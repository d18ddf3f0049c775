// Candidates of a row for beam search, grammar masks, and what is told about known tokens: against
// the plain definitions (support/sampling_oracle.h).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "sampling/processors.h"
#include "sampling/sampler.h"
#include "tests/support/sampling_oracle.h"

namespace quire {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

std::vector<float> RandomLogits(size_t vocab, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 2);
  std::vector<float> logits(vocab);
  for (float& x : logits) x = normal(random);
  return logits;
}

std::vector<double> LogSoftmaxOf(const std::vector<float>& logits) {
  std::vector<double> x = OracleSoftmax({logits.begin(), logits.end()}, 1);
  for (double& v : x) v = std::log(v);
  return x;
}

std::vector<TokenId> Ranked(const std::vector<double>& x) {
  std::vector<TokenId> ids(x.size());
  std::iota(ids.begin(), ids.end(), 0);
  std::stable_sort(ids.begin(), ids.end(), [&](TokenId a, TokenId b) { return x[a] > x[b]; });
  return ids;
}

bool Allowed(const std::vector<int32_t>& mask, size_t id) {
  return id / 32 < mask.size() && (static_cast<uint32_t>(mask[id / 32]) >> id % 32 & 1) != 0;
}

SampleRow View(const OracleRow& row, const std::vector<int32_t>& mask = {}) {
  return {.logits = row.logits,
          .params = &row.params,
          .stop = &row.stop,
          .prompt = row.prompt,
          .output = row.output,
          .allowed_mask = mask};
}

// Edits act on log-probabilities, where a repetition penalty always multiplies.
TEST(Candidates, EditedLogprobsBestFirst) {
  SamplerScratch scratch;
  for (uint32_t trial = 0; trial < 60; ++trial) {
    OracleRow row{.logits = RandomLogits(77, trial)};
    row.prompt = {1, 2, 3};
    row.output = {3, 4, 5, 3};
    row.stop = {.eos_token_ids = {7}};
    row.params.temperature = trial % 2 == 0 ? 0.0f : 1.0f;
    if (trial % 3 == 1) {
      row.params.repetition_penalty = 1.5f;
      row.params.frequency_penalty = 0.25f;
      row.params.logit_bias = {{9, 3.0f}};
      row.params.min_tokens = 5;
      row.params.bad_words = {{3, 11}, {12}};
    }
    if (trial % 3 == 2) row.params.allowed_token_ids = {3, 30, 60};
    OracleRow edited = row;
    const std::vector<double> logprobs = LogSoftmaxOf(row.logits);
    edited.logits.assign(logprobs.begin(), logprobs.end());
    const std::vector<double> want = OracleLogits(edited);
    const std::vector<TokenId> ranked = Ranked(want);
    const auto allowed = static_cast<size_t>(
        std::count_if(want.begin(), want.end(), [](double x) { return x > kOracleNone; }));
    for (const size_t k : {size_t{1}, size_t{9}, size_t{77}, size_t{200}}) {
      Sampled sampled;
      Candidates(View(row), k, scratch, sampled);
      ASSERT_EQ(sampled.top.size(), std::min(k, allowed));
      for (size_t i = 0; i < sampled.top.size(); ++i) {
        EXPECT_EQ(sampled.top[i].token, ranked[i]);
        EXPECT_NEAR(sampled.top[i].logprob, want[ranked[i]], 1e-5);
      }
    }
  }
}

TEST(Candidates, TiesNansAndNothing) {
  SamplerScratch scratch;
  Sampled sampled;
  OracleRow row{.logits = {1, std::nanf(""), 1, -kInf, 1}};
  Candidates(View(row), 5, scratch, sampled);
  ASSERT_EQ(sampled.top.size(), 3u);
  EXPECT_EQ(sampled.top[0].token, 0);
  EXPECT_EQ(sampled.top[1].token, 2);
  EXPECT_EQ(sampled.top[2].token, 4);
  for (const TokenLogprob& x : sampled.top) EXPECT_NEAR(x.logprob, -std::log(3.0), 1e-6);
  row.params.bad_words = {{0}, {2}, {4}};
  Candidates(View(row), 5, scratch, sampled);
  EXPECT_TRUE(sampled.top.empty());
}

TEST(GrammarMask, BansWhatItsBitsLeaveOut) {
  std::mt19937 random(5);
  SamplerScratch scratch;
  int mixed = 0, full = 0, empty = 0;
  for (int trial = 0; trial < 300; ++trial) {
    const size_t vocab = 1 + random() % 200;
    OracleRow row{.logits = RandomLogits(vocab, static_cast<uint32_t>(trial)),
                  .params = {.temperature = 0}};
    if (trial % 2 == 0) row.params.logit_bias = {{0, 1.0f}};
    // Sometimes shorter than the vocabulary, sometimes longer.
    std::vector<int32_t> mask(1 + random() % 8);
    for (int32_t& word : mask) {
      const uint32_t kind = random() % 3;
      word = kind == 0 ? 0 : kind == 1 ? -1 : static_cast<int32_t>(random());
      (kind == 0 ? empty : kind == 1 ? full : mixed) += 1;
    }
    std::vector<double> want = OracleLogits(row);
    bool any = false;
    for (size_t i = 0; i < vocab; ++i) {
      if (!Allowed(mask, i)) want[i] = kOracleNone;
      any = any || Allowed(mask, i);
    }
    const SampleRow view = View(row, mask);
    const std::span<const float> got = EditLogits(view, scratch);
    for (size_t i = 0; i < vocab; ++i) ASSERT_EQ(got[i], static_cast<float>(want[i])) << i;
    EXPECT_EQ(Sample(view, scratch).token, any ? Ranked(want)[0] : 0);
    Sampled sampled;
    Candidates(view, vocab, scratch, sampled);
    for (const TokenLogprob& x : sampled.top) EXPECT_TRUE(Allowed(mask, x.token));
    EXPECT_EQ(sampled.top.empty(), !any);
  }
  EXPECT_GT(std::min({mixed, full, empty}), 100);
}

// A row that other bans leave nothing of: the grammar gives way last.
TEST(GrammarMask, IsTheLastToGiveWay) {
  SamplerScratch scratch;
  OracleRow row{.logits = RandomLogits(40, 1), .params = {.temperature = 0, .min_tokens = 2}};
  row.stop = {.eos_token_ids = {33}};
  const std::vector<int32_t> only_end = {0, 2};
  EXPECT_EQ(Sample(View(row, only_end), scratch).token, 33);
  const std::vector<int32_t> two = {1 << 5, 2};
  EXPECT_EQ(LowestAllowed(View(row, two), scratch), 5);
}

TEST(KnownTokens, LogprobRankAndBest) {
  SamplerScratch scratch;
  for (uint32_t trial = 0; trial < 40; ++trial) {
    std::vector<float> logits = RandomLogits(90, trial);
    if (trial % 2 == 0) {
      for (float& x : logits) x = std::round(x);  // ties
    }
    const std::vector<double> want = LogSoftmaxOf(logits);
    const std::vector<TokenId> ranked = Ranked({logits.begin(), logits.end()});
    for (size_t place = 0; place < ranked.size(); place += 7) {
      Sampled sampled;
      ScoreToken(logits, ranked[place], 5, sampled);
      EXPECT_EQ(sampled.token, ranked[place]);
      EXPECT_EQ(sampled.rank, static_cast<int32_t>(place) + 1);
      EXPECT_NEAR(sampled.logprob, want[ranked[place]], 1e-5);
      ASSERT_EQ(sampled.top.size(), 5u);
      for (size_t i = 0; i < 5; ++i) EXPECT_EQ(sampled.top[i].token, ranked[i]);
    }
  }
}

TEST(KnownTokens, AskedIdsInTheirOrder) {
  SamplerScratch scratch;
  OracleRow row{.logits = RandomLogits(50, 3), .params = {.temperature = 0}};
  row.params.logit_bias = {{20, 100.0f}};  // told is the raw distribution
  row.params.logprob_token_ids = {49, 0, 49};
  const std::vector<double> want = LogSoftmaxOf(row.logits);
  const std::vector<TokenId> ranked = Ranked(want);
  for (const int32_t k : {-1, 0, 3}) {
    row.params.num_logprobs = k;
    const Sampled sampled = Sample(View(row), scratch);
    EXPECT_EQ(sampled.token, 20);
    EXPECT_NEAR(sampled.logprob, want[20], 1e-5);
    EXPECT_EQ(ranked[static_cast<size_t>(sampled.rank) - 1], 20);
    EXPECT_EQ(sampled.top.size(), static_cast<size_t>(std::max(k, 0)));
    ASSERT_EQ(sampled.asked.size(), 3u);
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(sampled.asked[i].token, row.params.logprob_token_ids[i]);
      EXPECT_NEAR(sampled.asked[i].logprob, want[row.params.logprob_token_ids[i]], 1e-5);
    }
  }
  row.params = {.temperature = 0};
  EXPECT_EQ(Sample(View(row), scratch).rank, 0);
}

}  // namespace
}  // namespace quire
