// From a row of logits to a token: determinism, greedy, penalties, log-probabilities.
#include "sampling/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "sampling/philox.h"
#include "tests/support/sampling_oracle.h"

namespace quire {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
const float kNan = std::nanf("");

std::vector<float> RandomLogits(size_t vocab_size, uint32_t seed, float scale = 2.0f) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, scale);
  std::vector<float> logits(vocab_size);
  for (float& x : logits) x = normal(random);
  return logits;
}

Sampled Draw(const OracleRow& row, uint64_t seed, int32_t branch, SamplerScratch& scratch) {
  return Sample({.logits = row.logits,
                 .params = &row.params,
                 .stop = &row.stop,
                 .prompt = row.prompt,
                 .output = row.output,
                 .seed = seed,
                 .branch = branch},
                scratch);
}

TokenId Token(const OracleRow& row, uint64_t seed = 0, int32_t branch = 0) {
  SamplerScratch scratch;
  return Draw(row, seed, branch, scratch).token;
}

OracleRow Greedy(std::vector<float> logits) {
  return {.logits = std::move(logits), .params = {.temperature = 0}};
}

// Known answers of Random123 (kat_vectors, philox4x32 with 10 rounds).
TEST(Philox, KnownAnswers) {
  using Words = std::array<uint32_t, 4>;
  EXPECT_EQ(Philox4x32({0, 0, 0, 0}, {0, 0}),
            (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(Philox4x32({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, UniformIsTheTopOfTheFirstWord) {
  EXPECT_EQ(PhiloxUniform(0, 0, 0, 0), static_cast<float>(0x6627e8d5 >> 8) / 16777216.0f);
  // Each coordinate goes into a word of its own.
  EXPECT_EQ(PhiloxUniform(0x0000000700000005, 3, 2, 4),
            static_cast<float>(Philox4x32({2, 3, 4, 0}, {5, 7})[0] >> 8) / 16777216.0f);
  std::set<float> distinct;
  for (uint64_t seed : {0ull, 1ull, 1ull << 32, ~0ull}) {
    for (uint32_t branch : {0u, 1u, 127u}) {
      for (uint32_t position : {0u, 1u, 4095u}) {
        const float u = PhiloxUniform(seed, branch, position, 0);
        EXPECT_GE(u, 0.0f);
        EXPECT_LT(u, 1.0f);
        distinct.insert(u);
      }
    }
  }
  EXPECT_EQ(distinct.size(), 36u);
}

TEST(Greedy, LowestIdOfTheLargest) {
  std::mt19937 random(3);
  for (size_t size = 1; size < 200; ++size) {
    std::vector<float> logits(size);
    for (float& x : logits) x = static_cast<float>(random() % 5) - 9;  // many ties
    const auto best = std::max_element(logits.begin(), logits.end()) - logits.begin();
    EXPECT_EQ(Token(Greedy(logits)), best);
  }
  EXPECT_EQ(Token(Greedy({-0.0f, 0.0f})), 0);
}

TEST(Greedy, NanNeverWins) {
  for (size_t size : {3u, 16u, 40u}) {
    for (size_t at = 0; at < size; ++at) {
      std::vector<float> logits(size, kNan);
      logits[at] = -50;
      for (float temperature : {0.0f, 1.0f}) {
        OracleRow row = Greedy(logits);
        row.params.temperature = temperature;
        row.params.num_logprobs = 2;
        SamplerScratch scratch;
        const Sampled sampled = Draw(row, 1, 0, scratch);
        EXPECT_EQ(sampled.token, static_cast<TokenId>(at));
        EXPECT_EQ(sampled.logprob, 0);
        EXPECT_EQ(sampled.top[0].token, static_cast<TokenId>(at));
      }
    }
  }
}

TEST(Sample, NothingUsableGivesTheLowestAllowedId) {
  for (float value : {kNan, -kInf}) {
    for (float temperature : {0.0f, 1.0f}) {
      OracleRow row = Greedy(std::vector<float>(20, value));
      row.params.temperature = temperature;
      EXPECT_EQ(Token(row), 0);
      row.params.allowed_token_ids = {9, 4, 7};
      EXPECT_EQ(Token(row), 4);
      row.params.bad_words = {{4}};
      EXPECT_EQ(Token(row), 7);
      row.params.bad_words = {{4}, {9}, {7}};  // no id is left: the set still holds
      EXPECT_EQ(Token(row), 4);
      row.params.allowed_token_ids = {0, 3};
      row.params.bad_words = {{0}, {3}};
      EXPECT_EQ(Token(row), 0);
      row.params.allowed_token_ids.clear();
      row.params.bad_words.clear();
      row.params.min_tokens = 1;
      row.stop.eos_token_ids = {0};
      EXPECT_EQ(Token(row), 1);
    }
  }
}

TEST(Sample, InfiniteLogits) {
  OracleRow row{.logits = {1, kInf, 2, kInf, kNan}, .params = {.num_logprobs = 3}};
  std::set<TokenId> seen;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    SamplerScratch scratch;
    const Sampled sampled = Draw(row, seed, 0, scratch);
    seen.insert(sampled.token);
    EXPECT_FLOAT_EQ(sampled.logprob, std::log(0.5f));
  }
  EXPECT_EQ(seen, (std::set<TokenId>{1, 3}));
}

// H01: what a bias does.
TEST(Sample, LogitBias) {
  OracleRow row = Greedy(RandomLogits(64, 1));
  const TokenId best = Token(row);
  row.params.logit_bias = {{63, 100.0f}};
  EXPECT_EQ(Token(row), 63);
  row.params.logit_bias = {{best, -100.0f}};
  std::vector<float> rest = row.logits;
  rest[best] = -kInf;
  EXPECT_EQ(Token(row), std::max_element(rest.begin(), rest.end()) - rest.begin());
}

// H02: temperatures up to 1e-3 give the greedy token (the top two are 0.1 apart); huge ones give
// every token alike. 1e30 is beyond what Validate lets through, and sampled all the same.
TEST(Sample, TinyTemperaturesAreGreedy) {
  SamplerScratch scratch;
  for (float temperature : {0.0f, -0.0f, 1e-45f, 1e-12f, 1e-6f, 1e-5f, 1e-4f, 1e-3f}) {
    for (uint32_t trial = 0; trial < 200; ++trial) {
      OracleRow row{.logits = RandomLogits(64, trial), .params = {.temperature = temperature}};
      std::vector<float> sorted = row.logits;
      std::sort(sorted.rbegin(), sorted.rend());
      if (sorted[0] - sorted[1] < 0.1f) continue;
      const auto best = std::max_element(row.logits.begin(), row.logits.end());
      ASSERT_EQ(Draw(row, trial, 0, scratch).token, best - row.logits.begin()) << temperature;
      for (float& x : row.logits) x *= 1e30f;  // would overflow if divided
      ASSERT_EQ(Draw(row, trial, 0, scratch).token, best - row.logits.begin()) << temperature;
    }
  }
}

TEST(Sample, HugeTemperaturesAreUniform) {
  SamplerScratch scratch;
  for (float temperature : {1e6f, 1e30f}) {
    const OracleRow row{.logits = RandomLogits(64, 7), .params = {.temperature = temperature}};
    constexpr int kDraws = 20000;
    std::vector<int> counts(64);
    for (int i = 0; i < kDraws; ++i) ++counts[Draw(row, 1000 + i, 0, scratch).token];
    const double mean = kDraws / 64.0, sigma = std::sqrt(kDraws / 64.0 * (1 - 1 / 64.0));
    for (int count : counts) EXPECT_NEAR(count, mean, 4 * sigma) << temperature;
  }
}

// H03: a row's token is a function of the row, seed, branch and position.
TEST(Sample, SeededRowsDoNotDependOnNeighbours) {
  std::vector<TokenId> output;
  OracleRow row{.params = {.temperature = 0.8f}, .prompt = {1, 2, 3}};
  const auto step = [&](int i) {
    row.logits = RandomLogits(500, 100 + i);
    row.output = output;
  };
  for (int i = 0; i < 16; ++i) {
    step(i);
    output.push_back(Token(row, 42));
  }
  const std::vector<TokenId> alone = output;
  EXPECT_GT(std::set<TokenId>(alone.begin(), alone.end()).size(), 8u);
  for (int neighbours : {1, 7, 31}) {
    SamplerScratch shared;
    output.clear();
    for (int i = 0; i < 16; ++i) {
      step(i);
      for (int n = 0; n < neighbours; ++n) {  // other sizes, parameters and seeds before this row
        const OracleRow other{.logits = RandomLogits(100 + 50 * n, n),
                              .params = {.temperature = 1.0f + n, .top_p = 0.9f, .top_k = n},
                              .prompt = {5, 5},
                              .output = output};
        Draw(other, n == 3 ? 42 : 77 + n, n, shared);
      }
      output.push_back(Draw(row, 42, 0, shared).token);
    }
    EXPECT_EQ(output, alone) << neighbours;
  }
  // Another seed, another branch: another text. 0 is a seed like any other.
  for (const auto& [seed, branch] : {std::pair{43, 0}, std::pair{42, 1}, std::pair{0, 0}}) {
    output.clear();
    for (int i = 0; i < 16; ++i) {
      step(i);
      output.push_back(Token(row, seed, branch));
    }
    EXPECT_NE(output, alone) << seed << " " << branch;
  }
}

// H05: 32 rows with every subset of five parameters, in several orders, with one scratch.
TEST(Sample, OrderOfRowsDoesNotMatter) {
  std::vector<OracleRow> rows;
  for (int subset = 0; subset < 32; ++subset) {
    OracleRow row{.logits = RandomLogits(64 + subset, subset),
                  .params = {.num_logprobs = 3},
                  .prompt = {1, 2, 3, 4},
                  .output = {5, 6, 5, 7}};
    if (subset & 1) row.params.presence_penalty = 1.5f;
    if (subset & 2) row.params.frequency_penalty = 1.0f;
    if (subset & 4) row.params.repetition_penalty = 2.0f;
    if (subset & 8) row.params.min_p = 0.1f;
    if (subset & 16) row.params.logit_bias = {{5, 3.0f}};
    if (subset % 3 == 0) row.params.temperature = 0;
    rows.push_back(std::move(row));
  }
  std::vector<Sampled> solo;
  for (size_t i = 0; i < rows.size(); ++i) {
    SamplerScratch scratch;
    solo.push_back(Draw(rows[i], i, 0, scratch));
  }
  std::mt19937 random(9);
  std::vector<size_t> order(rows.size());
  std::iota(order.begin(), order.end(), 0);
  SamplerScratch scratch;
  for (int trial = 0; trial < 50; ++trial) {
    for (size_t i : order) {
      const Sampled sampled = Draw(rows[i], i, 0, scratch);
      ASSERT_EQ(sampled.token, solo[i].token);
      ASSERT_EQ(sampled.logprob, solo[i].logprob);
      ASSERT_EQ(sampled.top.size(), 3u);
      for (int k = 0; k < 3; ++k) ASSERT_EQ(sampled.top[k].token, solo[i].top[k].token);
    }
    std::shuffle(order.begin(), order.end(), random);
  }
}

// C03: the split of prompt and output is the caller's, wherever the tokens lie; with another split
// the penalties would give other tokens.
TEST(Sample, PenaltiesFollowTheSplit) {
  std::mt19937 random(11);
  int split_mattered = 0;
  for (uint32_t trial = 0; trial < 100; ++trial) {
    OracleRow row{.logits = RandomLogits(32, trial),
                  .params = {.temperature = 0,
                             .presence_penalty = 1.0f,
                             .frequency_penalty = 1.5f,
                             .min_tokens = 6,
                             .num_logprobs = 3,
                             .logit_bias = {{2, 3.0f}}},
                  .stop = {.max_tokens = 120, .eos_token_ids = {2}}};
    while (row.prompt.size() < 8) row.prompt.push_back(static_cast<TokenId>(random() % 32));
    while (row.output.size() < 8) row.output.push_back(static_cast<TokenId>(random() % 32));
    const TokenId token = Token(row);
    // One buffer, as after a recompute.
    std::vector<TokenId> tokens = row.prompt;
    tokens.insert(tokens.end(), row.output.begin(), row.output.end());
    SamplerScratch scratch;
    const Sampled resumed = Sample({.logits = row.logits,
                                    .params = &row.params,
                                    .stop = &row.stop,
                                    .prompt = std::span(tokens).first(8),
                                    .output = std::span(tokens).subspan(8)},
                                   scratch);
    EXPECT_EQ(resumed.token, token);
    const std::vector<double> expected = OracleLogits(row);
    EXPECT_EQ(token, std::max_element(expected.begin(), expected.end()) - expected.begin());
    OracleRow wrong = row;
    wrong.prompt = tokens;
    wrong.output.clear();
    split_mattered += Token(wrong) != token ? 1 : 0;
  }
  EXPECT_GT(split_mattered, 20);
}

TEST(Sample, MinTokensEndsAtItsBorder) {
  OracleRow row = Greedy({0, 0, 9, 8});
  row.params.min_tokens = 2;
  row.stop = {.eos_token_ids = {2}, .stop_token_ids = {3}};
  row.output = {1};
  EXPECT_EQ(Token(row), 0);
  row.output = {1, 1};
  EXPECT_EQ(Token(row), 2);
}

// H08: log-softmax of the raw logits, whatever the parameters.
TEST(Logprobs, RawSortedAndWithTheSampledToken) {
  for (uint32_t trial = 0; trial < 50; ++trial) {
    OracleRow row{.logits = RandomLogits(300, trial),
                  .params = {.temperature = 2.0f, .top_k = 40, .logit_bias = {{17, 20.0f}}}};
    if (trial % 2 == 0) {
      for (float& x : row.logits) x = std::round(x);  // ties
    }
    const std::vector<double> raw(row.logits.begin(), row.logits.end());
    const std::vector<double> probs = OracleSoftmax(raw, 1);
    std::vector<TokenId> ranked(300);
    std::iota(ranked.begin(), ranked.end(), 0);
    std::stable_sort(ranked.begin(), ranked.end(),
                     [&](TokenId a, TokenId b) { return row.logits[a] > row.logits[b]; });
    for (int32_t k : {-1, 0, 1, 5, 20, 300, 301, 2000000000}) {
      row.params.num_logprobs = k;
      SamplerScratch scratch;
      const Sampled sampled = Draw(row, trial, 0, scratch);
      if (k < 0) {
        EXPECT_EQ(sampled.logprob, 0);
        EXPECT_TRUE(sampled.top.empty());
        continue;
      }
      EXPECT_NEAR(sampled.logprob, std::log(probs[sampled.token]), 1e-5);
      ASSERT_EQ(sampled.top.size(), static_cast<size_t>(std::min(k, 300)));
      double mass = 0;
      for (size_t i = 0; i < sampled.top.size(); ++i) {
        EXPECT_EQ(sampled.top[i].token, ranked[i]);
        EXPECT_NEAR(sampled.top[i].logprob, std::log(probs[ranked[i]]), 1e-5);
        mass += std::exp(double{sampled.top[i].logprob});
      }
      EXPECT_LE(mass, 1 + 1e-5);
    }
  }
}

TEST(Logprobs, TheSampledTokenMayBeFarFromTheBest) {
  OracleRow row{.logits = {10, 9, 8, 0}, .params = {.num_logprobs = 2, .logit_bias = {{3, 100}}}};
  SamplerScratch scratch;
  const Sampled sampled = Draw(row, 5, 0, scratch);
  EXPECT_EQ(sampled.token, 3);
  EXPECT_NEAR(sampled.logprob, -std::log(std::exp(10.0) + std::exp(9.0) + std::exp(8.0) + 1), 1e-5);
  EXPECT_EQ(sampled.top[0].token, 0);
  EXPECT_EQ(sampled.top[1].token, 1);
}

}  // namespace
}  // namespace quire
