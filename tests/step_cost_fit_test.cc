// tests/step_cost_fit_test.cc -- the fit of what steps cost: made-up steps of known cost.
#include "scheduler/step_cost_fit.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <random>

namespace quire {
namespace {

TEST(StepCostFit, NothingIsKnownBeforeTheFirstStep) {
  const StepCostFit fit;
  EXPECT_EQ(fit.fixed_us(), 0);
  EXPECT_EQ(fit.us_per_token(), 0);
  EXPECT_EQ(fit.TokensWithin(100), INT32_MAX);
}

TEST(StepCostFit, FindsWhatStepsWereMadeOf) {
  std::mt19937 rng(1);
  StepCostFit fit;
  for (int i = 0; i < 300; ++i) {
    const auto tokens = static_cast<int32_t>(1 + rng() % 500);
    const double noise = 1.0 + (static_cast<double>(rng() % 2001) - 1000) * 1e-5;  // 1%
    fit.OnStep(tokens, (4000 + 900.0 * tokens) * noise);
  }
  EXPECT_NEAR(fit.us_per_token(), 900, 20);
  EXPECT_NEAR(fit.fixed_us(), 4000, 4000);  // small beside most of these steps
  EXPECT_NEAR(fit.TokensWithin(94'000), 100, 6);
}

TEST(StepCostFit, OneSizeOnlyIsMostlyFixed) {
  StepCostFit fit;
  for (int i = 0; i < 50; ++i) fit.OnStep(1, 5000);
  EXPECT_NEAR(fit.fixed_us() + fit.us_per_token(), 5000, 1);
  EXPECT_NEAR(fit.us_per_token(), 625, 1);
  // The first steps of another size tell.
  for (int i = 0; i < 5; ++i) fit.OnStep(5, 5000 + 4 * 100);
  EXPECT_NEAR(fit.us_per_token(), 100, 5);
}

TEST(StepCostFit, AStoppedProcessMovesItLittle) {
  StepCostFit fit;
  for (int i = 0; i < 100; ++i) {
    fit.OnStep(1, 1010);
    fit.OnStep(101, 2010);
  }
  const double before = fit.us_per_token();
  EXPECT_NEAR(before, 10, 0.1);
  fit.OnStep(101, 5e6);
  EXPECT_LT(fit.us_per_token(), 5 * before);
  for (int i = 0; i < 200; ++i) {
    fit.OnStep(1, 1010);
    fit.OnStep(101, 2010);
  }
  EXPECT_NEAR(fit.us_per_token(), 10, 0.5) << "and it is forgotten";
}

TEST(StepCostFit, FollowsAMachineThatBecameSlower) {
  StepCostFit fit;
  for (int i = 0; i < 200; ++i) fit.OnStep(1 + i % 50, 100 + 10 * (1 + i % 50));
  for (int i = 0; i < 300; ++i) fit.OnStep(1 + i % 50, 300 + 30 * (1 + i % 50));
  EXPECT_NEAR(fit.us_per_token(), 30, 1);
  EXPECT_NEAR(fit.fixed_us(), 300, 30);
}

// Rows up to 4 cost little, then more: what was measured counts, not a line through prompts.
TEST(StepCostFit, DecodeStepsAreRememberedBySize) {
  StepCostFit fit;
  for (int i = 0; i < 100; ++i) fit.OnStep(1 + i % 500, 10'000 + 770.0 * (1 + i % 500));
  EXPECT_NEAR(fit.DecodeUs(3), 10'000 + 770 * 3, 200) << "nothing else is known";
  for (int i = 0; i < 20; ++i) {
    fit.OnDecodeStep(1, 6600);
    fit.OnDecodeStep(4, 7400);
    fit.OnDecodeStep(8, 15'900);
  }
  EXPECT_EQ(fit.DecodeUs(1), 6600);
  EXPECT_EQ(fit.DecodeUs(4), 7400);
  EXPECT_NEAR(fit.DecodeUs(2), 6600 + 800.0 / 3, 1);
  EXPECT_NEAR(fit.DecodeUs(6), (7400 + 15'900) / 2.0, 1);
  EXPECT_NEAR(fit.DecodeUs(10), 15'900 + 2 * 770, 100);
  fit.OnDecodeStep(4, 1e6);  // a stopped process
  EXPECT_LE(fit.DecodeUs(4), 2 * 7400);
  for (int i = 0; i < 30; ++i) fit.OnDecodeStep(4, 7400);
  EXPECT_NEAR(fit.DecodeUs(4), 7400, 10);
  // A size that was not seen for long is not known any more: it is tried again.
  for (int i = 0; i < 1100; ++i) fit.OnDecodeStep(1, 6600);
  EXPECT_NEAR(fit.DecodeUs(8), 6600 + 7 * 770, 400);
}

TEST(StepCostFit, PageOperationsAreApart) {
  StepCostFit fit;
  for (int i = 0; i < 100; ++i) fit.OnPageOps(10, 800);
  EXPECT_NEAR(fit.us_per_page_op(), 80, 1);
  fit.OnPageOps(0, 0);
  EXPECT_NEAR(fit.us_per_page_op(), 80, 1);
}

}  // namespace
}  // namespace quire
