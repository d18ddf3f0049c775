// tests/rejection_test.cc -- what comes out of accept-or-resample has the target's distribution:
// chi-square with fixed seeds, p > 1e-6, against exact probabilities.
#include "sampling/rejection.h"

#include <algorithm>
#include <random>

#include "tests/support/chi_square.h"
#include "tests/support/sampling_oracle.h"

namespace quire {
namespace {

constexpr double kSmallestP = 1e-6;
constexpr int kDraws = 50000;

TEST(ChiSquare, KnownQuantiles) {
  // Tables of the chi-square distribution.
  EXPECT_NEAR(ChiSquareUpperTail(3.841459, 1), 0.05, 1e-7);
  EXPECT_NEAR(ChiSquareUpperTail(18.307038, 10), 0.05, 1e-7);
  EXPECT_NEAR(ChiSquareUpperTail(149.449253, 100), 0.001, 1e-8);
}

struct Dense {
  std::vector<TokenId> ids;
  std::vector<float> weights;
  TokenWeights view() const { return {ids, weights}; }
};

// Of [vocab] weights, without those that are 0.
Dense Sparse(const std::vector<float>& weights) {
  Dense d;
  for (size_t i = 0; i < weights.size(); ++i) {
    if (weights[i] == 0) continue;
    d.ids.push_back(static_cast<TokenId>(i));
    d.weights.push_back(weights[i]);
  }
  return d;
}

std::vector<double> Normalised(const std::vector<float>& weights) {
  double sum = 0;
  for (const float w : weights) sum += w;
  std::vector<double> p;
  for (const float w : weights) p.push_back(w / sum);
  return p;
}

TEST(Rejection, TheOutputHasTheTargetsDistribution) {
  for (uint32_t seed = 0; seed < 24; ++seed) {
    std::mt19937 random(seed);
    const size_t vocab = seed % 2 == 0 ? 8 : 50;
    std::vector<float> p(vocab), q(vocab);
    const auto weight = [&](int zero_of) {
      if (static_cast<int>(random() % 8) < zero_of) return 0.0f;
      const auto u = static_cast<float>(random() % 1000 + 1) / 1000;
      return u * u * u;  // some large, many small
    };
    for (float& w : p) w = weight(static_cast<int>(seed % 3));
    for (float& w : q) w = weight(static_cast<int>(seed % 4));
    if (seed % 6 == 5) q = p;
    p[0] = 0.5f;
    q[1] = 0.5f;
    const std::vector<double> want = Normalised(p), proposal = Normalised(q);
    const Dense target = Sparse(p), proposed = Sparse(q);
    std::discrete_distribution<TokenId> draw(q.begin(), q.end());
    std::vector<double> counts(vocab);
    double accepted = 0;
    for (int i = 0; i < kDraws; ++i) {
      const TokenId guess = draw(random);
      const DraftVerdict v = VerifyDraft(target.view(), proposed.view(), guess, seed * 1000003 + i,
                                         static_cast<int32_t>(i % 3), static_cast<uint32_t>(i % 5));
      EXPECT_TRUE(!v.accepted || v.token == guess);
      ++counts[static_cast<size_t>(v.token)];
      accepted += v.accepted;
    }
    EXPECT_GT(ChiSquareP(counts, want), kSmallestP) << "seed " << seed;
    double overlap = 0;
    for (size_t t = 0; t < vocab; ++t) overlap += std::min(want[t], proposal[t]);
    // Five standard deviations.
    EXPECT_NEAR(accepted / kDraws, overlap, 5 * std::sqrt(0.25 / kDraws)) << "seed " << seed;
  }
}

TEST(Rejection, AGuessThatWasNotDrawn) {
  const std::vector<float> p{0.4f, 0.0f, 0.1f, 0.3f, 0.2f};
  const Dense target = Sparse(p);
  for (const TokenId guess : {0, 1, 3}) {
    std::vector<double> counts(p.size());
    double accepted = 0;
    for (int i = 0; i < kDraws; ++i) {
      const DraftVerdict v = VerifyPointDraft(target.view(), guess, 77 + i, 0, 9);
      ++counts[static_cast<size_t>(v.token)];
      accepted += v.accepted;
    }
    EXPECT_GT(ChiSquareP(counts, Normalised(p)), kSmallestP) << "guess " << guess;
    EXPECT_NEAR(accepted / kDraws, p[static_cast<size_t>(guess)], 5 * std::sqrt(0.25 / kDraws));
  }
}

TEST(Rejection, EqualDistributionsAcceptEverything) {
  const Dense d = Sparse({0.3f, 0.1f, 0.6f});
  for (int i = 0; i < 1000; ++i) {
    EXPECT_TRUE(VerifyDraft(d.view(), d.view(), i % 3, i, 0, 0).accepted);
  }
}

TEST(Rejection, NoOverlapNeverAccepts) {
  const Dense p = Sparse({0.5f, 0.5f, 0, 0}), q = Sparse({0, 0, 0.5f, 0.5f});
  for (int i = 0; i < 1000; ++i) {
    const DraftVerdict v = VerifyDraft(p.view(), q.view(), 2 + i % 2, i, 0, 0);
    EXPECT_FALSE(v.accepted);
    EXPECT_LT(v.token, 2);
  }
}

// The fault that this rule invites, and that the test above would not let through: the draft's
// favourite, accepted by its soft probability.
TEST(Rejection, AFavouriteAcceptedByItsSoftProbabilityIsBiasedAndSeen) {
  const std::vector<float> p{0.4f, 0.3f, 0.3f}, q{0.5f, 0.3f, 0.2f};
  const Dense target = Sparse(p), proposed = Sparse(q);
  std::vector<double> wrong(3), right(3);
  for (int i = 0; i < kDraws; ++i) {
    ++wrong[static_cast<size_t>(
        VerifyDraft(target.view(), proposed.view(), /*guess=*/0, 5 + i, 0, 0).token)];
    ++right[static_cast<size_t>(VerifyPointDraft(target.view(), /*guess=*/0, 5 + i, 0, 0).token)];
  }
  EXPECT_LT(ChiSquareP(wrong, Normalised(p)), kSmallestP);
  EXPECT_GT(ChiSquareP(right, Normalised(p)), kSmallestP);
}

// A model of eight tokens: its logits depend on the last one.
constexpr int kVocab = 8;
using Table = std::vector<std::vector<float>>;

Table RandomTable(uint32_t seed, float scale) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, scale);
  Table table(kVocab);
  for (auto& row : table) {
    for (int i = 0; i < kVocab; ++i) row.push_back(normal(random));
  }
  return table;
}

struct Case {
  const char* name;
  SamplingParams params;
};

std::vector<Case> Cases() {
  return {{"plain", {}},
          {"top_p", {.top_p = 0.8f}},
          {"min_p", {.min_p = 0.15f}},
          {"penalties",
           {.repetition_penalty = 1.3f, .presence_penalty = 0.5f, .frequency_penalty = 1.0f}},
          {"several", {.temperature = 0.7f, .top_k = 5, .logit_bias = {{2, 1.5f}, {3, -100.0f}}}}};
}

class TinyModel {
 public:
  TinyModel(Table table, const SamplingParams& params)
      : table_(std::move(table)), params_(params) {}

  SampleRow Row(const std::vector<TokenId>& output, uint64_t seed) const {
    const TokenId last = output.empty() ? prompt_.back() : output.back();
    return {.logits = table_[static_cast<size_t>(last)],
            .params = &params_,
            .stop = &stop_,
            .prompt = prompt_,
            .output = output,
            .seed = seed};
  }
  std::vector<double> Exact(const std::vector<TokenId>& output) const {
    const TokenId last = output.empty() ? prompt_.back() : output.back();
    return OracleProbs({.logits = table_[static_cast<size_t>(last)],
                        .params = params_,
                        .stop = stop_,
                        .prompt = prompt_,
                        .output = output});
  }
  // Of the first two tokens, [first * kVocab + second].
  std::vector<double> ExactPairs() const {
    std::vector<double> joint;
    const std::vector<double> first = Exact({});
    for (TokenId t = 0; t < kVocab; ++t) {
      for (const double second : Exact({t})) {
        joint.push_back(first[static_cast<size_t>(t)] * second);
      }
    }
    return joint;
  }
  uint32_t position(size_t output) const { return static_cast<uint32_t>(prompt_.size() + output); }

 private:
  const Table table_;
  const SamplingParams params_;
  const StopConditions stop_;
  const std::vector<TokenId> prompt_{1, 6, 1};
};

size_t Cell(TokenId a, TokenId b) {
  return static_cast<size_t>(a) * kVocab + static_cast<size_t>(b);
}

// Two guesses of a draft model that samples with the target's own seed, as DraftModelProposer does;
// then accept or resample. Against the product of the exact conditionals.
TEST(Rejection, I02_TheFirstTwoTokensWithADraftModel) {
  for (const Case& c : Cases()) {
    const TinyModel target(RandomTable(1, 1.5f), c.params);
    const TinyModel draft(RandomTable(2, 1.0f), c.params);
    SamplerScratch scratch, draft_scratch;
    std::vector<double> counts(kVocab * kVocab);
    int accepted = 0, rejected = 0;
    for (int i = 0; i < kDraws; ++i) {
      const uint64_t seed = 1000 + static_cast<uint64_t>(i);
      const TokenId d1 = Sample(draft.Row({}, seed), scratch).token;
      const TokenId d2 = Sample(draft.Row({d1}, seed), scratch).token;
      const DraftVerdict first = VerifyDraft(DistributionOf(target.Row({}, seed), scratch),
                                             DistributionOf(draft.Row({}, seed), draft_scratch), d1,
                                             seed, 0, target.position(0));
      TokenId second;
      if (first.accepted) {
        second = VerifyDraft(DistributionOf(target.Row({d1}, seed), scratch),
                             DistributionOf(draft.Row({d1}, seed), draft_scratch), d2, seed, 0,
                             target.position(1))
                     .token;
      } else {
        second = Sample(target.Row({first.token}, seed), scratch).token;  // the next step's
      }
      ++(first.accepted ? accepted : rejected);
      ++counts[Cell(first.token, second)];
    }
    EXPECT_GT(ChiSquareP(counts, target.ExactPairs()), kSmallestP) << c.name;
    EXPECT_GT(accepted, 1000) << c.name;
    EXPECT_GT(rejected, 1000) << c.name;
  }
}

// The default: a guess is kept if it is the sample. Lookups and a draft model's favourites; the
// same distribution, and the very tokens that come without guesses.
TEST(Rejection, I02_TheFirstTwoTokensByEquality) {
  for (const Case& c : Cases()) {
    const TinyModel target(RandomTable(1, 1.5f), c.params);
    SamplerScratch scratch;
    std::vector<double> counts(kVocab * kVocab), point_counts(kVocab * kVocab);
    int kept = 0;
    const std::vector<double> p = target.Exact({});
    const auto guess = static_cast<TokenId>(std::max_element(p.begin(), p.end()) - p.begin());
    for (int i = 0; i < kDraws; ++i) {
      const uint64_t seed = 500000 + static_cast<uint64_t>(i);
      const TokenId first = Sample(target.Row({}, seed), scratch).token;
      const TokenId after_guess = Sample(target.Row({guess}, seed), scratch).token;  // same step
      const TokenId second =
          first == guess ? after_guess : Sample(target.Row({first}, seed), scratch).token;
      kept += first == guess;
      ++counts[Cell(first, second)];
      // The same guess by the ratio rule: another token for a seed, the same distribution.
      const DraftVerdict v = VerifyPointDraft(DistributionOf(target.Row({}, seed), scratch), guess,
                                              seed, 0, target.position(0));
      ++point_counts[Cell(v.token, Sample(target.Row({v.token}, seed), scratch).token)];
    }
    EXPECT_GT(ChiSquareP(counts, target.ExactPairs()), kSmallestP) << c.name;
    EXPECT_GT(ChiSquareP(point_counts, target.ExactPairs()), kSmallestP) << c.name;
    EXPECT_GT(kept, 100) << c.name;
    EXPECT_LT(kept, kDraws) << c.name;
  }
}

TEST(Rejection, GreedyAndRowsWithoutLogits) {
  SamplingParams greedy;
  greedy.temperature = 0;
  const StopConditions stop;
  const std::vector<float> logits{1, 3, 2};
  SamplerScratch scratch;
  TokenWeights d = DistributionOf({.logits = logits, .params = &greedy, .stop = &stop}, scratch);
  ASSERT_EQ(d.ids.size(), 1u);
  EXPECT_EQ(d.ids[0], 1);
  EXPECT_TRUE(VerifyPointDraft(d, 1, 1, 0, 0).accepted);
  const DraftVerdict v = VerifyPointDraft(d, 2, 1, 0, 0);
  EXPECT_FALSE(v.accepted);
  EXPECT_EQ(v.token, 1);
  const std::vector<float> nothing(3, kOracleNone);
  const SamplingParams plain;
  d = DistributionOf({.logits = nothing, .params = &plain, .stop = &stop}, scratch);
  ASSERT_EQ(d.ids.size(), 1u);
  EXPECT_EQ(d.ids[0], 0);
}

}  // namespace
}  // namespace quire
