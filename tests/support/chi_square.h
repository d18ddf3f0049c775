// tests/support/chi_square.h -- Pearson's test of counts against exact probabilities.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace quire {

// P(a chi-square variable of that many degrees > x): 1 - the regularised lower incomplete gamma
// function of (degrees / 2, x / 2), by its series (Abramowitz and Stegun, 6.5.29). Good to about
// 1e-12, which is plenty beside the 1e-6 that tests ask for.
inline double ChiSquareUpperTail(double x, double degrees) {
  if (x <= 0) return 1;
  const double a = degrees / 2;
  const double h = x / 2;
  double term = 1 / a;
  double sum = term;
  for (int n = 1; n < 100000 && term > sum * 1e-17; ++n) {
    term *= h / (a + n);
    sum += term;
  }
  return std::fmax(0, 1 - sum * std::exp(a * std::log(h) - h - std::lgamma(a)));
}

// Cells that expect fewer than five are pooled. What has no probability must not occur at all.
inline double ChiSquareP(const std::vector<double>& counts, const std::vector<double>& probs) {
  double draws = 0;
  for (const double n : counts) draws += n;
  double chi2 = 0, few = 0, few_expected = 0;
  int cells = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    const double expected = probs[i] * draws;
    EXPECT_TRUE(probs[i] > 0 || counts[i] == 0) << "cell " << i << " has no probability";
    if (expected < 5) {
      few += counts[i];
      few_expected += expected;
    } else {
      chi2 += (counts[i] - expected) * (counts[i] - expected) / expected;
      ++cells;
    }
  }
  if (few_expected >= 1) {
    chi2 += (few - few_expected) * (few - few_expected) / few_expected;
    ++cells;
  }
  return cells < 2 ? 1 : ChiSquareUpperTail(chi2, cells - 1);
}

}  // namespace quire
