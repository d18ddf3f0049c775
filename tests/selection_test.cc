// Linear-time selection against full sorts, and the exponential against the C library's in double.
#include "sampling/selection.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

namespace quire {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

TEST(ExpWeights, RelativeError) {
  std::mt19937 random(1);
  double worst = 0;
  for (float span : {1e-3f, 0.5f, 5.0f, 86.9f}) {
    for (size_t size = 1; size < 400; ++size) {  // every tail
      std::vector<float> x(size), w(size);
      for (float& v : x) v = -span * static_cast<float>(random() % 100001) / 100000;
      ExpWeights(x, 0, 1, w);
      for (size_t i = 0; i < size; ++i) {
        worst = std::max(worst, std::fabs(w[i] / std::exp(double{x[i]}) - 1));
      }
      std::vector<float> in_place = x;
      ExpWeights(in_place, 0, 1, in_place);
      ASSERT_EQ(in_place, w);
    }
  }
  EXPECT_LT(worst, 3e-7);
  EXPECT_GT(worst, 1e-9);
}

TEST(ExpWeights, Edges) {
  std::vector<float> w(6);
  ExpWeights(std::vector<float>{5, 4, -kInf, std::nanf(""), -3e38f, 5}, 5, 0.5f, w);
  EXPECT_EQ(w[0], 1.0f);
  EXPECT_NEAR(w[1], std::exp(-2.0), 1e-7);
  EXPECT_EQ(w[2], 0.0f);
  EXPECT_EQ(w[3], 0.0f);
  EXPECT_EQ(w[4], 0.0f);
  EXPECT_EQ(w[5], 1.0f);
  ExpWeights(std::vector<float>{3e38f, -3e38f}, 3e38f, 1e-30f, w);  // the distance overflows
  EXPECT_EQ(w[0], 1.0f);
  EXPECT_EQ(w[1], 0.0f);
}

TEST(Keys, KeepTheOrder) {
  const std::vector<float> ascending = {-kInf, -3e38f, -1, -1e-45f, 0, 1e-45f, 1, 1.0000001f, kInf};
  for (size_t i = 1; i < ascending.size(); ++i) {
    EXPECT_LT(AscendingKey(ascending[i - 1]), AscendingKey(ascending[i]));
    EXPECT_GT(DescendingKey(ascending[i - 1]), DescendingKey(ascending[i]));
  }
  EXPECT_EQ(AscendingKey(-0.0f), AscendingKey(0.0f));
}

TEST(SelectTop, EqualsAFullSort) {
  std::mt19937 random(2);
  for (int trial = 0; trial < 500; ++trial) {
    std::vector<float> values(1 + random() % 300);
    for (float& v : values)
      v = random() % 20 == 0 ? std::nanf("") : static_cast<float>(random() % 50);
    std::vector<TokenId> ranked(values.size());
    std::iota(ranked.begin(), ranked.end(), 0);
    const auto value = [&](TokenId id) { return std::isnan(values[id]) ? -kInf : values[id]; };
    std::stable_sort(ranked.begin(), ranked.end(),
                     [&](TokenId a, TokenId b) { return value(a) > value(b); });
    const size_t k = random() % 330;
    std::vector<TokenLogprob> best;
    SelectTop(values, k, best);
    ASSERT_EQ(best.size(), std::min(k, values.size()));
    for (size_t i = 0; i < best.size(); ++i) {
      ASSERT_EQ(best[i].token, ranked[i]);
      ASSERT_EQ(best[i].logprob, value(ranked[i]));
    }
  }
}

// Weights are small integers: sums are exact in every order, so the cut must be the sort's.
TEST(SelectMass, EqualsAFullSort) {
  std::mt19937 random(3);
  int ties = 0;
  for (int trial = 0; trial < 1000; ++trial) {
    std::vector<uint32_t> keys(1 + random() % 400);
    std::vector<float> weights(keys.size());
    // Keys that differ in high, middle or low bits only.
    const uint32_t mask[] = {0xFFFFFFFFu, 0x7u, 0xF00u, 0xF0000000u};
    for (uint32_t& key : keys) key = static_cast<uint32_t>(random()) & mask[trial % 4];
    double total = 0;
    for (float& w : weights) total += w = static_cast<float>(random() % 4);
    if (total == 0) continue;
    std::vector<size_t> order(keys.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return keys[a] < keys[b]; });
    const double target = 1 + static_cast<double>(random() % static_cast<uint32_t>(total));
    double mass = 0;
    size_t n = 0;
    while (mass < target) mass += weights[order[n++]];
    const MassCut cut = SelectMass(
        keys, [&](size_t i) { return weights[i]; }, [&](double m) { return m >= target; });
    ASSERT_EQ(cut.key, keys[order[n - 1]]);
    ASSERT_EQ(cut.index, order[n - 1]);
    ties += n < order.size() && keys[order[n]] == cut.key ? 1 : 0;
    // Never enough: everything with weight is in.
    const MassCut all = SelectMass(
        keys, [&](size_t i) { return weights[i]; }, [](double) { return false; });
    for (size_t i = 0; i < keys.size(); ++i) {
      if (weights[i] > 0) {
        ASSERT_TRUE(keys[i] < all.key || (keys[i] == all.key && i <= all.index));
      }
    }
  }
  EXPECT_GT(ties, 100);
}

}  // namespace
}  // namespace quire
