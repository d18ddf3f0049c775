// What a step is said to take: the features of a batch, the fit, and its file.
#include "bench/simulation/step_cost.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "bench/simulation/random.h"
#include "scheduler/sequence.h"

namespace quire {
namespace {

std::vector<double> Coefficients(const StepCostModel& cost) {
  std::vector<double> values;
  StepCostModel::VisitFields(cost,
                             [&](const char*, double v, const auto&) { values.push_back(v); });
  return values;
}

// Steps of all kinds with the time that `cost` says.
std::vector<MeasuredStep> Synthetic(const StepCostModel& cost, int count, double noise = 0) {
  Random random(7);
  std::vector<MeasuredStep> steps;
  for (int i = 0; i < count; ++i) {
    StepShape s;
    const int32_t decodes = random.Between(0, i % 3 == 0 ? 3 : 64),
                  prompts = random.Between(decodes == 0, 4);
    for (int32_t d = 0; d < decodes; ++d) {
      ++s.decode_tokens;
      s.decode_keys += random.Between(1, 4000);
      ++s.rows;
    }
    for (int32_t p = 0; p < prompts; ++p) {
      const int32_t tokens = random.Between(2, 128), context = random.Between(0, 4000);
      s.prefill_tokens += tokens;
      s.prefill_keys += tokens * context + tokens * (tokens + 1) / 2.0;
      s.rows += random.Between(0, 1);
    }
    s.seqs = decodes + prompts;
    s.copies = random.Between(0, 20);
    const double us = cost.StepUs(s) * (1 + noise * (random.Uniform() - 0.5));
    steps.push_back({.name = "s", .shape = s, .us = us});
  }
  return steps;
}

TEST(StepCost, ShapeOfCountsTokensKeysRows) {
  Sequence seq;
  ScheduledBatch batch;
  batch.seqs.push_back({.seq = &seq, .first_pos = 10, .num_tokens = 1, .num_samples = 1});
  // Three guesses behind the known token: a decode, with four rows.
  batch.seqs.push_back(
      {.seq = &seq, .first_pos = 20, .num_tokens = 4, .num_samples = 1, .num_drafts = 3});
  batch.seqs.push_back({.seq = &seq, .first_pos = 4, .num_tokens = 3, .num_samples = 0});
  batch.copies.resize(5);
  const StepShape s = ShapeOf(batch);
  EXPECT_EQ(s.decode_tokens, 1 + 4);
  EXPECT_EQ(s.prefill_tokens, 3);
  EXPECT_EQ(s.seqs, 3);
  EXPECT_EQ(s.rows, 1 + 4);
  EXPECT_EQ(s.decode_keys, 11 + (21 + 22 + 23 + 24));
  EXPECT_EQ(s.prefill_keys, 5 + 6 + 7);
  EXPECT_EQ(s.copies, 5);
}

// A line through measured points: what a step of so many tokens takes beside all else.
TEST(StepCost, FewTokensCostWhatTheyCost) {
  const StepCostModel cost{
      .fixed = 100, .tokens_2 = 1, .tokens_3 = 20, .tokens_8 = 40, .tokens_64 = 320, .token = 7};
  const std::vector<std::pair<double, double>> points = {
      {1, 100},  {2, 101},  {3, 121},  {4, 121},  {6, 141},           {8, 161},
      {32, 161}, {40, 241}, {64, 481}, {65, 488}, {100, 481 + 36 * 7}};
  for (const auto& [tokens, us] : points) {
    EXPECT_DOUBLE_EQ(cost.StepUs({.decode_tokens = tokens}), us) << tokens;
    EXPECT_DOUBLE_EQ(cost.StepUs({.prefill_tokens = tokens - 1, .decode_tokens = 1}), us) << tokens;
  }
}

TEST(StepCost, TheFitFindsTheCoefficientsThatMadeTheData) {
  const StepCostModel truth{.fixed = 2400,
                            .tokens_2 = 900,
                            .tokens_3 = 30,
                            .tokens_4 = 70,
                            .tokens_8 = 200,
                            .tokens_16 = 1000,
                            .tokens_32 = 800,
                            .tokens_64 = 4000,
                            .token = 55,
                            .prefill_token = 30,
                            .seq = 40,
                            .row = 310,
                            .prefill_key = 0.03,
                            .decode_key = 0.2,
                            .copy = 7};
  const auto fit = FitStepCost(Synthetic(truth, 200));
  ASSERT_TRUE(fit.ok()) << fit.status();
  const std::vector<double> want = Coefficients(truth), got = Coefficients(fit->cost);
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-3 * want[i]) << i;
  EXPECT_LT(fit->max_error, 1e-5);
  // Of a cost without some parts, these are found to be zero or next to it.
  const StepCostModel sparse{.fixed = 900, .token = 12, .decode_key = 0.05};
  const auto sparse_fit = FitStepCost(Synthetic(sparse, 200));
  ASSERT_TRUE(sparse_fit.ok());
  EXPECT_NEAR(sparse_fit->cost.row, 0, 0.01);
  EXPECT_NEAR(sparse_fit->cost.prefill_key, 0, 1e-6);
  EXPECT_NEAR(sparse_fit->cost.fixed, 900, 1);
}

TEST(StepCost, NoiseOfTenPercentMovesPredictionsByLittle) {
  const StepCostModel truth{
      .fixed = 2400, .token = 700, .row = 310, .prefill_key = 0.03, .decode_key = 0.2};
  const auto fit = FitStepCost(Synthetic(truth, 400, /*noise=*/0.2));
  ASSERT_TRUE(fit.ok());
  for (const MeasuredStep& step : Synthetic(truth, 50)) {
    EXPECT_NEAR(fit->cost.StepUs(step.shape) / step.us, 1, 0.06);
  }
}

// The Karush-Kuhn-Tucker conditions say what a minimum is, however it was found.
TEST(StepCost, NonNegativeLeastSquaresIsAMinimum) {
  int zeros = 0;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    Random random(seed);
    const size_t n = 6, m = 30;
    std::vector<double> a(n * m), b(m);
    for (double& v : a) v = random.Uniform();
    for (double& v : b) v = 2 * random.Uniform() - 0.5;
    const std::vector<double> x = NonNegativeLeastSquares(a, n, b);
    std::vector<double> residual = b;
    for (size_t r = 0; r < m; ++r) {
      for (size_t i = 0; i < n; ++i) residual[r] -= a[r * n + i] * x[i];
    }
    for (size_t i = 0; i < n; ++i) {
      double gradient = 0;
      for (size_t r = 0; r < m; ++r) gradient += a[r * n + i] * residual[r];
      ASSERT_GE(x[i], 0);
      if (x[i] > 0) {
        EXPECT_NEAR(gradient, 0, 1e-6) << "seed " << seed;
      } else {
        EXPECT_LE(gradient, 1e-6) << "seed " << seed;
        ++zeros;
      }
    }
  }
  EXPECT_GT(zeros, 100);  // the bound was met
}

TEST(StepCost, TooFewStepsAndStepsWithoutTimeAreRefused) {
  const StepCostModel truth{.fixed = 1};
  EXPECT_EQ(FitStepCost(Synthetic(truth, 3)).status().code(), absl::StatusCode::kInvalidArgument);
  std::vector<MeasuredStep> steps = Synthetic(truth, 50);
  steps[7].us = 0;
  EXPECT_FALSE(FitStepCost(steps).ok());
}

TEST(StepCost, TheFileIsReadAsItWasWritten) {
  const StepCostModel cost{.fixed = 2400.25, .token = 1.0 / 3, .copy = 7};
  const auto read = ParseStepCost(StepCostJson(cost, "model \"x\""));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(Coefficients(*read), Coefficients(cost));
}

TEST(StepCost, MalformedFilesAreRefusedByName) {
  const std::string good = StepCostJson({.fixed = 10}, "m");
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    const size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return text.replace(at, from.size(), to);
  };
  for (const auto& [text, says] : std::vector<std::pair<std::string, std::string>>{
           {"", "byte"},
           {"[]", "format"},
           {with("cost 2", "cost 1"), "format"},
           {with("\"fixed_us\":10.0", "\"fixed_us\":-1"), "fixed_us=-1"},
           {with("\"fixed_us\":10.0", "\"fixed_us\":\"10\""), "fixed_us"},
           {with("\"fixed_us\":10.0", "\"fixed_us\":1e13"), "fixed_us"},
           {with("\"fixed_us\":10.0", "\"fixed_us\":0"), "must take time"},
           {with("\"fixed_us\":10.0,", ""), "fixed_us"},
           {with("\"fixed_us\":10.0", "\"fixed_us\":10.0,\"more\":1"), "members"},
       }) {
    const auto read = ParseStepCost(text);
    ASSERT_FALSE(read.ok()) << text;
    EXPECT_EQ(read.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(Message(read.status()).find(says), std::string::npos) << read.status();
  }
  EXPECT_EQ(ReadStepCost("no/such/file").status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace quire
