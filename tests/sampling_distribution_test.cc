// Frequencies of draws against exact probabilities: chi-square with fixed seeds, p > 1e-6.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "sampling/sampler.h"
#include "tests/support/sampling_oracle.h"

namespace quire {
namespace {

constexpr double kSmallestP = 1e-6;

// Upper tail of the chi-square distribution: the regularised incomplete gamma function Q(k/2, x/2),
// by its series below the mean and by its continued fraction (modified Lentz) above.
double ChiSquareTail(double chi2, double degrees) {
  const double a = degrees / 2, x = chi2 / 2;
  if (x <= 0) return 1;
  const double front = std::exp(a * std::log(x) - x - std::lgamma(a));
  if (x < a + 1) {
    double term = 1 / a, sum = term;
    for (int n = 1; n < 10000 && term > sum * 1e-15; ++n) {
      term *= x / (a + n);
      sum += term;
    }
    return 1 - front * sum;
  }
  double b = x + 1 - a, c = 1e300, d = 1 / b, h = d;
  for (int n = 1; n < 10000; ++n) {
    const double an = -n * (n - a);
    b += 2;
    d = 1 / (an * d + b);
    c = b + an / c;
    h *= d * c;
    if (std::fabs(d * c - 1) < 1e-15) break;
  }
  return front * h;
}

// Cells that expect fewer than 5 are put together.
double PValue(const std::vector<double>& counts, const std::vector<double>& probs) {
  double draws = 0, chi2 = 0, rare_count = 0, rare_expected = 0;
  int cells = 0;
  for (double n : counts) draws += n;
  for (size_t i = 0; i < counts.size(); ++i) {
    const double expected = probs[i] * draws;
    EXPECT_TRUE(probs[i] > 0 || counts[i] == 0) << "token " << i << " must never be drawn";
    if (expected < 5) {
      rare_count += counts[i];
      rare_expected += expected;
      continue;
    }
    chi2 += (counts[i] - expected) * (counts[i] - expected) / expected;
    ++cells;
  }
  if (rare_expected > 1) {
    chi2 += (rare_count - rare_expected) * (rare_count - rare_expected) / rare_expected;
    ++cells;
  }
  return cells < 2 ? 1 : ChiSquareTail(chi2, cells - 1);
}

TEST(ChiSquareTail, KnownQuantiles) {
  // Tables of the chi-square distribution.
  EXPECT_NEAR(ChiSquareTail(3.841459, 1), 0.05, 1e-7);
  EXPECT_NEAR(ChiSquareTail(18.307038, 10), 0.05, 1e-7);
  EXPECT_NEAR(ChiSquareTail(2.558212, 10), 0.99, 1e-7);
  EXPECT_NEAR(ChiSquareTail(149.449253, 100), 0.001, 1e-8);
  // A bias of a twentieth is seen.
  EXPECT_LT(PValue({25500, 24500}, {0.5, 0.5}), 1e-5);
}

std::vector<OracleRow> Rows() {
  OracleRow base;
  std::mt19937 random(8);
  std::normal_distribution<float> normal(0, 1.5f);
  for (int i = 0; i < 40; ++i) base.logits.push_back(normal(random));
  base.prompt = {1, 2, 3};
  base.output = {4, 4, 5};
  std::vector<SamplingParams> all = {
      {},
      {.temperature = 0.3f},
      {.temperature = 3.0f},
      {.top_p = 0.8f},
      {.top_k = 10},
      {.min_p = 0.1f},
      {.typical_p = 0.7f},
      {.top_n_sigma = 1.0f},
      {.repetition_penalty = 1.4f, .presence_penalty = 0.5f, .frequency_penalty = 0.5f},
      {.temperature = 0.7f, .top_p = 0.9f, .top_k = 20, .min_p = 0.02f},
      {.logit_bias = {{7, 1.5f}}, .bad_words = {{0}}},
  };
  std::vector<OracleRow> rows;
  for (const SamplingParams& params : all) {
    rows.push_back(base);
    rows.back().params = params;
  }
  return rows;
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

// Many requests with a seed each, and many branches of one request.
TEST(Distribution, EqualsTheExactOne) {
  constexpr int kDraws = 50000;
  SamplerScratch scratch;
  int number = 0;
  for (const OracleRow& row : Rows()) {
    SCOPED_TRACE(number++);
    const std::vector<double> probs = OracleProbs(row);
    std::vector<double> by_seed(40), by_branch(40);
    for (int i = 0; i < kDraws; ++i) {
      ++by_seed[Draw(row, i, 0, scratch).token];
      ++by_branch[Draw(row, 12345, i, scratch).token];
    }
    EXPECT_GT(PValue(by_seed, probs), kSmallestP);
    EXPECT_GT(PValue(by_branch, probs), kSmallestP);
  }
}

// Neighbouring positions, branches and seeds are independent: joint counts of two draws from 8
// tokens against the product of their exact probabilities.
TEST(Distribution, NeighboursAreIndependent) {
  OracleRow first{.logits = {0, 1, -1, 0.5f, 2, 0, -2, 1}};
  OracleRow second{.logits = {1, 0, 0, -1, 1, 2, 0.5f, 0}};
  second.output = {0};  // one position on
  const std::vector<double> p = OracleProbs(first), q = OracleProbs(second);
  std::vector<double> joint;
  for (double a : p) {
    for (double b : q) joint.push_back(a * b);
  }
  SamplerScratch scratch;
  std::vector<double> positions(64), branches(64), seeds(64);
  for (int i = 0; i < 50000; ++i) {
    const TokenId a = Draw(first, i, 0, scratch).token;
    ++positions[a * 8 + Draw(second, i, 0, scratch).token];
    second.output.clear();
    ++branches[a * 8 + Draw(second, i, 1, scratch).token];
    ++seeds[a * 8 + Draw(second, i + 1, 0, scratch).token];
    second.output = {0};
  }
  EXPECT_GT(PValue(positions, joint), kSmallestP);
  EXPECT_GT(PValue(branches, joint), kSmallestP);
  EXPECT_GT(PValue(seeds, joint), kSmallestP);
}

// One seeded stream over a million positions: 256 equal tokens.
TEST(Distribution, OneStreamIsUniform) {
  std::vector<double> counts(256);
  for (uint32_t position = 0; position < 1000000; ++position) {
    ++counts[static_cast<size_t>(PhiloxUniform(42, 0, position, 0) * 256)];
  }
  EXPECT_GT(PValue(counts, std::vector<double>(256, 1 / 256.0)), kSmallestP);
}

}  // namespace
}  // namespace quire
