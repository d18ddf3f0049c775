// Perplexity, KL and agreement on distributions whose figures are known in closed form.
#include "bench/logit_stats.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace quire {
namespace {

std::vector<float> Logs(std::vector<double> p, double shift = 0) {
  std::vector<float> logits;
  for (const double x : p) logits.push_back(static_cast<float>(std::log(x) + shift));
  return logits;
}

TEST(LogitComparison, KnownDistributions) {
  const std::vector<float> p = Logs({0.5, 0.25, 0.25});
  const std::vector<float> q = Logs({0.25, 0.5, 0.25}, 7);  // a shift changes no probability
  ReferenceRow row;
  row.Set(p);
  LogitComparison c;
  c.Add(row, q, 0);
  const ComparisonResult r = c.Result();
  EXPECT_EQ(r.tokens, 1);
  // KL = 1/2 ln 2 - 1/4 ln 2.
  EXPECT_NEAR(r.mean_kl, std::log(2.0) / 4, 1e-6);
  EXPECT_NEAR(r.loss, std::log(4.0), 1e-6);
  EXPECT_NEAR(r.perplexity, 4, 1e-5);
  EXPECT_NEAR(r.loss_increase, std::log(2.0), 1e-6);
  EXPECT_EQ(r.same_best, 0);
}

TEST(LogitComparison, MeansOverTokens) {
  const std::vector<float> even = Logs({0.5, 0.5});
  const std::vector<float> skewed = Logs({0.75, 0.25});
  ReferenceRow row;
  LogitComparison c;
  row.Set(even);
  c.Add(row, skewed, 0);  // KL(even || skewed) = -ln(3/4) / 2
  c.Add(row, skewed, 1);
  row.Set(skewed);
  c.Add(row, skewed, 0);
  c.Add(row, skewed, 0);
  const ComparisonResult r = c.Result();
  const double kl = -std::log(0.75) / 2;
  EXPECT_NEAR(r.mean_kl, kl / 2, 1e-6);
  EXPECT_NEAR(r.max_kl, kl, 1e-6);
  EXPECT_NEAR(r.p99_kl, kl, 1e-6);
  EXPECT_NEAR(r.loss, -(3 * std::log(0.75) + std::log(0.25)) / 4, 1e-6);
  // Increases: ln(2/3), ln 2, 0, 0.
  const double a = std::log(2.0 / 3), b = std::log(2.0), mean = (a + b) / 4;
  EXPECT_NEAR(r.loss_increase, mean, 1e-6);
  const double variance = (a * a + b * b) / 4 - mean * mean;
  EXPECT_NEAR(r.increase_error, std::sqrt(variance / 3), 1e-6);
  EXPECT_EQ(r.same_best, 1);  // of equal logits the first is the best
}

TEST(LogitComparison, TheSameLogitsDifferInNothing) {
  const std::vector<float> logits = {-80, 3, 2.5, 90, 1e-3f};
  ReferenceRow row;
  row.Set(logits);
  LogitComparison c;
  c.Add(row, logits, 2);
  const ComparisonResult r = c.Result();
  EXPECT_EQ(r.mean_kl, 0);
  EXPECT_EQ(r.loss_increase, 0);
  EXPECT_EQ(r.same_best, 1);
  EXPECT_NEAR(r.loss, 87.5, 1e-9);
}

TEST(LogitComparison, NaNIsSeen) {
  const std::vector<float> p = Logs({0.5, 0.5});
  const std::vector<float> q = {0, std::numeric_limits<float>::quiet_NaN()};
  ReferenceRow row;
  row.Set(p);
  LogitComparison c;
  c.Add(row, q, 0);
  EXPECT_TRUE(std::isnan(c.Result().mean_kl));
  EXPECT_TRUE(std::isnan(c.Result().loss));
}

TEST(LogitComparison, NothingAdded) {
  EXPECT_EQ(LogitComparison().Result().tokens, 0);
  EXPECT_EQ(LogitComparison().Result().loss, 0);
}

}  // namespace
}  // namespace quire
