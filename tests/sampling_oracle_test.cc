// Sampling parameters against their plain definitions (support/sampling_oracle.h), on rows large
// enough for the selection algorithms; and absurd values in combination.
#include "tests/support/sampling_oracle.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "sampling/processors.h"

namespace quire {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

SampleRow View(const OracleRow& row, uint64_t seed = 0) {
  return {.logits = row.logits,
          .params = &row.params,
          .stop = &row.stop,
          .prompt = row.prompt,
          .output = row.output,
          .seed = seed};
}

std::vector<TokenId> KeptBy(const std::vector<double>& probs) {
  std::vector<TokenId> ids;
  for (size_t i = 0; i < probs.size(); ++i) {
    if (probs[i] > 0) ids.push_back(static_cast<TokenId>(i));
  }
  return ids;
}

std::vector<double> ProbsOf(const OracleRow& row, SamplerScratch& scratch) {
  FilterTokens(EditLogits(View(row), scratch), row.params, scratch);
  double total = 0;
  for (float w : scratch.values) total += w;
  std::vector<double> probs(row.logits.size());
  for (size_t i = 0; i < scratch.ids.size(); ++i) probs[scratch.ids[i]] = scratch.values[i] / total;
  return probs;
}

OracleRow Row(size_t vocab_size, uint32_t seed, float scale = 2.0f) {
  OracleRow row;
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, scale);
  while (row.logits.size() < vocab_size) row.logits.push_back(normal(random));
  return row;
}

// Tied rows have logits in quarters and parameters that are exact in binary: ties are then ties in
// float32 and in double alike.
TEST(SamplingOracle, RandomRows) {
  std::mt19937 random(2024);
  const auto pick = [&](std::vector<float> choices) { return choices[random() % choices.size()]; };
  SamplerScratch scratch;
  int dropped = 0, tied_rows = 0;
  for (uint32_t trial = 0; trial < 1500; ++trial) {
    SCOPED_TRACE(trial);
    const bool tied = trial % 3 == 0;
    OracleRow row = Row(1 + random() % 3000, trial, pick({0.25f, 2.0f, 5.0f}));
    if (tied) {
      for (float& x : row.logits) x = std::round(x * 4) / 4;
    }
    const auto vocab = static_cast<uint32_t>(row.logits.size());
    for (size_t n = random() % 30; row.prompt.size() < n;) {
      row.prompt.push_back(static_cast<TokenId>(random() % vocab));
    }
    for (size_t n = random() % 30; row.output.size() < n;) {
      row.output.push_back(static_cast<TokenId>(random() % std::min(vocab, 9u)));
    }
    SamplingParams& p = row.params;
    p.temperature = tied ? pick({0.5f, 1.0f, 2.0f}) : pick({0.3f, 0.7f, 1.0f, 1.7f});
    p.top_k = static_cast<int32_t>(pick({0, -1, 1, 5, 70, 500, 2999, 1e6f}));
    p.top_p = pick({1, 1, 0, 0.3f, 0.9f, 0.99f});
    p.min_p = pick({0, 0, 0.05f, 0.3f, 1});
    p.typical_p = pick({1, 1, 0.2f, 0.9f});
    p.top_n_sigma = pick({0, 0, 0, 0.7f, 1.5f});
    p.repetition_penalty = tied ? pick({1, 2, 0.5f}) : pick({1, 1.2f, 0.8f});
    p.presence_penalty = pick({0, 0.5f, -0.5f});
    p.frequency_penalty = pick({0, 0.25f, -0.25f});
    p.no_repeat_ngram_size = static_cast<int32_t>(pick({0, 0, 1, 2, 3}));
    p.min_tokens = static_cast<int32_t>(pick({0, 10}));
    row.stop.eos_token_ids = {static_cast<TokenId>(vocab - 1)};
    if (random() % 3 == 0) p.logit_bias = {{static_cast<TokenId>(random() % vocab), 2.0f}};
    if (random() % 3 == 0) p.bad_words = {{0}, {1, 2}, {3, 3, 4}};
    if (vocab < 5) p.bad_words.clear();
    if (random() % 5 == 0) {
      for (int i = 0; i < 20; ++i) {
        p.allowed_token_ids.push_back(static_cast<TokenId>(random() % vocab));
      }
    }
    const std::vector<double> logits = OracleLogits(row);
    if (*std::max_element(logits.begin(), logits.end()) == kOracleNone) continue;
    const std::vector<double> expected = OracleProbs(row);
    const std::vector<double> probs = ProbsOf(row, scratch);
    ASSERT_EQ(KeptBy(probs), KeptBy(expected));
    for (size_t i = 0; i < probs.size(); ++i) ASSERT_NEAR(probs[i], expected[i], 1e-5) << i;
    dropped += KeptBy(probs).size() < vocab ? 1 : 0;
    tied_rows += tied ? 1 : 0;
  }
  EXPECT_GT(dropped, 1000);
  EXPECT_GT(tied_rows, 300);
}

// H11: draws lie in the set that the definitions give; 1 and 0 mean what they should.
TEST(SamplingOracle, DrawsStayInTheSet) {
  constexpr int32_t kVocab = 200;
  struct Case {
    int32_t top_k;
    float top_p, min_p;
    size_t size;  // of the set; 0: not known beforehand
  };
  for (const Case& c :
       {Case{-1, 1, 0, 200}, Case{0, 1, 0, 200}, Case{1, 1, 0, 1}, Case{kVocab, 1, 0, 200},
        Case{kVocab + 1, 1, 0, 200}, Case{9999999, 1, 0, 200}, Case{0, 0, 0, 1},
        Case{0, 1e-9f, 0, 1}, Case{0, 1, 1, 1}, Case{5, 1, 0, 5}, Case{0, 0.8f, 0, 0},
        Case{0, 1, 0.1f, 0}, Case{20, 0.7f, 0.05f, 0}}) {
    OracleRow row = Row(kVocab, 77, 1.0f);
    row.params = {.top_p = c.top_p, .top_k = c.top_k, .min_p = c.min_p};
    const std::vector<TokenId> kept = KeptBy(OracleProbs(row));
    if (c.size > 0) {
      EXPECT_EQ(kept.size(), c.size);
    }
    SamplerScratch scratch;
    std::set<TokenId> drawn;
    for (uint64_t seed = 0; seed < 2000; ++seed) {
      drawn.insert(Sample(View(row, seed), scratch).token);
    }
    EXPECT_TRUE(std::includes(kept.begin(), kept.end(), drawn.begin(), drawn.end()));
    EXPECT_GT(drawn.size(), kept.size() / 3);
  }
  // min_p 1 keeps ties with the best.
  OracleRow row{.logits = {3, 1, 3, 2, 3}, .params = {.min_p = 1}};
  SamplerScratch scratch;
  EXPECT_EQ(KeptBy(ProbsOf(row, scratch)), (std::vector<TokenId>{0, 2, 4}));
  // A greedy row between others is greedy whatever else is set.
  row.params = {.temperature = 0, .top_p = 0.1f, .top_k = 5, .min_p = 0.5f, .typical_p = 0.1f};
  EXPECT_EQ(Sample(View(row), scratch).token, 0);
}

// H13: every field that acts on logits changes the distribution, and as its definition says.
TEST(SamplingOracle, EveryFieldActs) {
  OracleRow base = Row(64, 5, 1.5f);
  base.prompt = {1, 2, 3, 9, 1, 2};
  base.output = {3, 4, 4, 1, 2};
  base.stop = {.eos_token_ids = {7}, .stop_token_ids = {8}};
  const std::vector<std::pair<std::string, std::function<void(SamplingParams&)>>> changes = {
      {"temperature", [](auto& p) { p.temperature = 0.5f; }},
      {"top_p", [](auto& p) { p.top_p = 0.7f; }},
      {"top_k", [](auto& p) { p.top_k = 7; }},
      {"min_p", [](auto& p) { p.min_p = 0.2f; }},
      {"typical_p", [](auto& p) { p.typical_p = 0.6f; }},
      {"top_n_sigma", [](auto& p) { p.top_n_sigma = 1.0f; }},
      {"repetition_penalty", [](auto& p) { p.repetition_penalty = 1.5f; }},
      {"presence_penalty", [](auto& p) { p.presence_penalty = 1.0f; }},
      {"frequency_penalty", [](auto& p) { p.frequency_penalty = 0.5f; }},
      {"no_repeat_ngram_size", [](auto& p) { p.no_repeat_ngram_size = 2; }},
      {"min_tokens", [](auto& p) { p.min_tokens = 6; }},
      {"logit_bias",
       [](auto& p) {
         p.logit_bias = {{5, 4.0f}};
       }},
      {"allowed_token_ids",
       [](auto& p) {
         p.allowed_token_ids = {3, 30, 33};
       }},
      {"bad_words",
       [](auto& p) {
         p.bad_words = {{1, 2, 50}};
       }},
  };
  // These act elsewhere: n and seed choose the draw (sampler_test), num_logprobs what is reported.
  std::set<std::string> covered = {"n", "num_logprobs"};
  SamplerScratch scratch;
  const std::vector<double> plain = ProbsOf(base, scratch);
  for (const auto& change : changes) {
    SCOPED_TRACE(change.first);
    covered.insert(change.first);
    OracleRow row = base;
    change.second(row.params);
    const std::vector<double> probs = ProbsOf(row, scratch), expected = OracleProbs(row);
    EXPECT_EQ(KeptBy(probs), KeptBy(expected));
    double moved = 0;
    for (size_t i = 0; i < probs.size(); ++i) {
      EXPECT_NEAR(probs[i], expected[i], 1e-6);
      moved += std::fabs(probs[i] - plain[i]);
    }
    EXPECT_GT(moved, 1e-3);
  }
  SamplingParams::VisitFields(base.params, [&](std::string_view name, auto, auto, auto) {
    EXPECT_EQ(covered.count(std::string(name)), 1u) << name << " has no row";
  });
}

// Banned n-grams on small alphabets, where borders overlap, and for lengths near the text's.
TEST(SamplingOracle, RepeatedNgrams) {
  std::mt19937 random(6);
  SamplerScratch scratch;
  int banned = 0;
  for (int trial = 0; trial < 3000; ++trial) {
    OracleRow row{.logits = std::vector<float>(3, 1.0f)};
    const uint32_t letters = 1 + random() % 3;
    for (size_t n = random() % 12; row.prompt.size() < n;) {
      row.prompt.push_back(static_cast<TokenId>(random() % letters));
    }
    for (size_t n = random() % 12; row.output.size() < n;) {
      row.output.push_back(static_cast<TokenId>(random() % letters));
    }
    row.params.no_repeat_ngram_size = 1 + static_cast<int32_t>(random() % 10);
    const std::vector<double> expected = OracleLogits(row);
    const std::span<const float> logits = EditLogits(View(row), scratch);
    for (size_t i = 0; i < 3; ++i) {
      ASSERT_EQ(logits[i], expected[i]) << trial;
      banned += expected[i] == kOracleNone ? 1 : 0;
    }
  }
  EXPECT_GT(banned, 1000);
}

// H12: all pairs of fields and absurd values, on sane and hostile rows. Each is refused by name or
// gives a valid token; never a NaN, never a crash; and a plain row afterwards is as before.
TEST(Hostile, AllPairsOfAbsurdValues) {
  std::vector<std::string> fields;
  const SamplingParams defaults;
  SamplingParams::VisitFields(defaults, [&](std::string_view name, auto value, auto, auto) {
    if constexpr (std::is_same_v<decltype(value), float>) fields.emplace_back(name);
  });
  ASSERT_EQ(fields.size(), 8u);
  const float nan = std::nanf("");
  // 1e-300 and 1e300 of JSON are 0 and infinity as float32; the last two are each field's bounds.
  const std::vector<float> values = {-1, 0, -0.0f, 1e-45f, 1e-30f, 1, 2, 1e30f, kInf, -kInf, nan};
  const auto set = [&](SamplingParams& params, const std::string& field, size_t which) {
    SamplingParams::VisitFields(params, [&](std::string_view name, auto& v, auto min, auto max) {
      if constexpr (std::is_same_v<std::decay_t<decltype(v)>, float>) {
        if (name == field)
          v = which < values.size() ? values[which] : which == values.size() ? min : max;
      }
    });
  };
  std::vector<OracleRow> rows = {Row(40, 1), Row(40, 2, 1e30f), Row(130, 3, 0.0f)};
  rows.push_back({.logits = {nan, 1, -kInf, 2, kInf, nan, 1, 1}});
  rows.push_back({.logits = std::vector<float>(10, nan)});
  rows.push_back({.logits = {3e38f, -3e38f, 1e-45f, -0.0f}});
  for (OracleRow& row : rows) {
    row.prompt = {1, 2};
    row.output = {3, 3, 0};
  }
  const OracleRow probe = Row(40, 9);
  SamplerScratch scratch;
  const TokenId probe_token = Sample(View(probe, 4), scratch).token;
  int refused = 0, sampled = 0;
  for (size_t a = 0; a < fields.size(); ++a) {
    for (size_t b = a + 1; b < fields.size(); ++b) {
      for (size_t va = 0; va < values.size() + 2; ++va) {
        for (size_t vb = 0; vb < values.size() + 2; ++vb) {
          SamplingParams params{.num_logprobs = 2};
          set(params, fields[a], va);
          set(params, fields[b], vb);
          const absl::Status status = Validate(params, {.max_tokens = 9}, 40);
          if (!status.ok()) {
            ++refused;
            const bool named = Message(status).rfind(fields[a] + "=", 0) == 0 ||
                               Message(status).rfind(fields[b] + "=", 0) == 0;
            ASSERT_TRUE(named) << status;
            continue;
          }
          for (OracleRow& row : rows) {
            row.params = params;
            const Sampled s = Sample(View(row, va * 100 + vb), scratch);
            ++sampled;
            ASSERT_GE(s.token, 0);
            ASSERT_LT(s.token, static_cast<TokenId>(row.logits.size()));
            const bool all_nan = std::isnan(row.logits[0]) && std::isnan(row.logits[1]);
            ASSERT_TRUE(all_nan || row.logits[s.token] > -kInf);  // not NaN either
            ASSERT_FALSE(std::isnan(s.logprob));
            ASSERT_LE(s.logprob, 0);
            for (const TokenLogprob& t : s.top) ASSERT_FALSE(std::isnan(t.logprob));
          }
        }
      }
      ASSERT_EQ(Sample(View(probe, 4), scratch).token, probe_token);
    }
  }
  EXPECT_GT(refused, 1000);
  EXPECT_GT(sampled, 5000);
}

// Ids outside the vocabulary never reach memory, though Validate and the edge refuse them first: a
// model's end token or a prompt may come from a broken file.
TEST(Hostile, IdsOutsideTheVocabulary) {
  OracleRow row = Row(16, 1);
  const std::vector<TokenId> wild = {-1, 16, INT32_MAX, INT32_MIN, 3};
  row.params = {.temperature = 0,
                .repetition_penalty = 1.5f,
                .presence_penalty = 1.0f,
                .no_repeat_ngram_size = 1,
                .min_tokens = 100,
                .allowed_token_ids = wild,
                .bad_words = {{INT32_MIN}, {16}}};
  row.params.logit_bias = {{-1, 5.0f}, {16, 5.0f}};
  row.prompt = {-1, 16, INT32_MAX};
  row.output = {INT32_MIN, -1};
  row.stop.eos_token_ids = wild;
  SamplerScratch scratch;
  EXPECT_EQ(Sample(View(row), scratch).token, 3);
  row.params.temperature = 1;
  EXPECT_EQ(Sample(View(row), scratch).token, 3);
}

// A long n over a periodic context: plain comparison would need 5e4 * 5e4 steps for each token,
// 2.5e11 here, beyond the test's time limit.
TEST(Hostile, LongNgramsArePeriodic) {
  OracleRow row = Row(50, 1);
  row.prompt.assign(100000, 5);
  row.params = {.temperature = 0, .no_repeat_ngram_size = 50000};
  row.logits[5] = 100;
  SamplerScratch scratch;
  for (int i = 0; i < 100; ++i) ASSERT_NE(Sample(View(row), scratch).token, 5);
}

}  // namespace
}  // namespace quire
