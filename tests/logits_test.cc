// Row passes of the sampler against plain loops and float64, bit for bit across instruction sets.
#include "kernels/logits.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <vector>

#include "kernels/cpu_isa.h"

namespace quire::kernels {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

void WithEachIsa(const std::function<void(const char*)>& check) {
  for (const char* isa : {"portable", "avx2", "avx512"}) {
    if (!SelectIsa(isa).ok()) {
      std::printf("[ not run here ] %s\n", isa);
      continue;
    }
    check(isa);
  }
  CHECK(SelectIsa("auto").ok());
}

// Few distinct values, so that there are ties; some NaN and infinities. `kind` 1 has no value above
// -infinity.
std::vector<float> Row(size_t n, int kind, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<float> x(n);
  for (float& v : x) {
    v = kind == 1 ? -kInf : static_cast<float>(random() % 40) - 30.0f;
    if (kind != 2 && random() % 9 == 0) v = NAN;
    if (kind == 0 && random() % 9 == 0) v = -kInf;
    if (kind == 3 && random() % 200 == 0) v = kInf;
  }
  return x;
}

// Sizes around lanes, steps of 64 and blocks of 4096.
constexpr size_t kSizes[] = {1, 2, 15, 16, 17, 63, 64, 65, 200, 4095, 4096, 4097, 8192, 9000};

TEST(Logits, EqualPlainLoops) {
  WithEachIsa([](const char* isa) {
    for (const size_t n : kSizes) {
      for (int kind = 0; kind < 4; ++kind) {
        const std::vector<float> x = Row(n, kind, static_cast<uint32_t>(n) * 7 + kind);
        int32_t best = -1;
        for (size_t i = 0; i < n; ++i) {
          if (x[i] > (best < 0 ? -kInf : x[best])) best = static_cast<int32_t>(i);
        }
        ASSERT_EQ(ArgMax(x), best) << isa << " n=" << n << " kind=" << kind;
        for (const float floor : {-kInf, -31.0f, 0.0f, 8.0f, 9.0f, kInf}) {
          size_t above = 0, equal = 0;
          std::vector<float> values;
          std::vector<int32_t> ids;
          std::vector<size_t> next(n + 1, n);
          for (size_t i = n; i-- > 0;) next[i] = x[i] > floor ? i : next[i + 1];
          for (size_t i = 0; i < n; ++i) {
            equal += x[i] == floor ? 1 : 0;
            if (!(x[i] > floor)) continue;
            ++above;
            values.push_back(x[i]);
            ids.push_back(static_cast<int32_t>(i));
          }
          ASSERT_EQ(CountAbove(x, floor), above) << isa << " n=" << n << " floor=" << floor;
          ASSERT_EQ(CountEqual(x, floor), equal) << isa << " n=" << n << " floor=" << floor;
          for (size_t i = 0; i <= n; i += 1 + n / 11) ASSERT_EQ(FirstAbove(x, i, floor), next[i]);
          std::vector<float> got(n);
          std::vector<int32_t> got_ids(n);
          const size_t kept = KeepAbove(x, floor, got.data(), got_ids.data());
          ASSERT_EQ(kept, above);
          got.resize(kept);
          got_ids.resize(kept);
          ASSERT_EQ(got, values);
          ASSERT_EQ(got_ids, ids);
        }
      }
    }
  });
}

TEST(Logits, KeepAtLeastInPlace) {
  WithEachIsa([](const char* isa) {
    for (const size_t n : kSizes) {
      for (const float cut : {-kInf, -40.0f, 0.0f, 9.0f, 10.0f}) {
        std::vector<float> x = Row(n, 0, static_cast<uint32_t>(n));
        std::vector<int32_t> ids(n);
        std::vector<float> want;
        std::vector<int32_t> want_ids;
        for (size_t i = 0; i < n; ++i) {
          ids[i] = static_cast<int32_t>(3 * i);
          if (!(x[i] >= cut)) continue;
          want.push_back(x[i]);
          want_ids.push_back(ids[i]);
        }
        const size_t kept = KeepAtLeast(cut, n, x.data(), ids.data());
        x.resize(kept);
        ids.resize(kept);
        ASSERT_EQ(x, want) << isa << " n=" << n << " cut=" << cut;
        ASSERT_EQ(ids, want_ids);
      }
    }
  });
}

// Sums against float64 within the roundings of n additions; weights within 2e-7 (the C library's
// exp); all of them the same bits everywhere.
TEST(Logits, SumsAndWeights) {
  for (const size_t n : kSizes) {
    const std::vector<float> x = Row(n, 0, static_cast<uint32_t>(n) + 1);
    const int32_t at = ArgMax(x);
    if (at < 0) continue;
    const float best = x[at];
    for (const float temperature : {1.0f, 0.3f, 2.0f}) {
      std::vector<float> want;
      double want_sum = 0, want_exp = 0;
      bool first = true;
      WithEachIsa([&](const char* isa) {
        std::vector<float> w(n);
        ExpWeights(x, best, temperature, w);
        const double sum = Sum(w), exp = SumExp(x, best);
        if (first) {
          want = w;
          want_sum = sum;
          want_exp = exp;
          first = false;
          return;
        }
        ASSERT_EQ(w, want) << isa << " n=" << n;
        ASSERT_EQ(sum, want_sum) << isa << " n=" << n;
        ASSERT_EQ(exp, want_exp) << isa << " n=" << n;
      });
      double total = 0, total_exp = 0;
      for (size_t i = 0; i < n; ++i) {
        total += double{want[i]};
        if (std::isnan(x[i])) {
          ASSERT_EQ(want[i], 0.0f);
          continue;
        }
        total_exp += std::exp(double{x[i]} - best);
        const double exact = std::exp(double{(x[i] - best) / temperature});
        ASSERT_NEAR(want[i], exact, 2e-7 * exact + 2e-38) << x[i] << " " << best;
      }
      ASSERT_NEAR(want_sum, total, 1e-12 * total);
      ASSERT_NEAR(want_exp, total_exp, 2e-7 * total_exp);
      if (temperature == 1.0f) {
        ASSERT_EQ(want_exp, want_sum);
      }
    }
  }
}

}  // namespace
}  // namespace quire::kernels
