// tests/draft_control_test.cc -- adaptive draft lengths in simulated steps with known acceptance,
// against the best fixed length, which is computed by enumeration.
#include "scheduler/draft_control.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <random>
#include <vector>

namespace quire {
namespace {

constexpr int32_t kMostDrafts = 16;
// Figures like a small model on two cores, and like a large one on an accelerator.
constexpr StepCost kCpu{.fixed_us = 4000, .per_token_us = 1500};
constexpr StepCost kGpu{.fixed_us = 20000, .per_token_us = 100};

struct Outcome {
  double us = 0;
  double tokens = 0;
  int64_t rows = 0;
  double rate() const { return tokens / us; }
};

// `acceptance(seq, step)`: of each guess, given that those before it were kept.
Outcome Simulate(DraftControl& control, int32_t num_seqs, int steps, const StepCost& cost,
                 const std::function<double(int32_t, int)>& acceptance, uint32_t seed,
                 int32_t max_tokens = kMostDrafts) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> uniform(0, 1);
  Outcome total;
  for (int step = 0; step < steps; ++step) {
    std::vector<DraftPlan> plans;
    for (int32_t s = 0; s < num_seqs; ++s) {
      plans.push_back({.seq = static_cast<SequenceId>(s + 1), .max_tokens = max_tokens});
    }
    control.Plan(plans, cost);
    int64_t rows = 0;
    for (int32_t s = 0; s < num_seqs; ++s) {
      const int32_t length = plans[static_cast<size_t>(s)].lengths[0];
      EXPECT_LE(length, max_tokens);
      int32_t kept = 0;
      while (kept < length && uniform(random) < acceptance(s, step)) ++kept;
      if (length > 0) control.OnVerified(static_cast<SequenceId>(s + 1), {&length, 1}, 0, kept);
      rows += length;
      total.tokens += 1 + kept;
    }
    total.us += cost.fixed_us + static_cast<double>(num_seqs + rows) * cost.per_token_us +
                static_cast<double>(rows) * cost.per_draft_us;
    total.rows += rows;
  }
  return total;
}

double Without(int32_t num_seqs, const StepCost& cost) {
  return num_seqs / (cost.fixed_us + num_seqs * cost.per_token_us);
}

// Expected tokens per time with k guesses for every sequence in every step.
double WithLength(int32_t k, double a, int32_t num_seqs, const StepCost& cost) {
  double tokens = 1, p = 1;
  for (int32_t j = 0; j < k; ++j) tokens += p *= a;
  return num_seqs * tokens /
         (cost.fixed_us + num_seqs * ((k + 1) * cost.per_token_us + k * cost.per_draft_us));
}

double Best(double a, int32_t num_seqs, const StepCost& cost) {
  double best = 0;
  for (int32_t k = 0; k <= kMostDrafts; ++k)
    best = std::max(best, WithLength(k, a, num_seqs, cost));
  return best;
}

TEST(DraftControl, ComesCloseToTheBestFixedLength) {
  int off = 0, on = 0;
  for (const StepCost& cost : {kCpu, kGpu}) {
    for (int32_t num_seqs : {1, 2, 8, 64}) {
      for (double a : {0.0, 0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.97, 1.0}) {
        DraftControl control;
        const Outcome got = Simulate(
            control, num_seqs, 2000, cost, [&](int32_t, int) { return a; }, 7);
        const double best = Best(a, num_seqs, cost);
        EXPECT_GT(got.rate(), 0.93 * best)
            << "acceptance " << a << ", " << num_seqs << " sequences, row " << cost.per_token_us
            << " us; without guesses " << Without(num_seqs, cost) / best << " of the best";
        EXPECT_GT(got.rate(), 0.97 * Without(num_seqs, cost)) << a << " " << num_seqs;
        off += best < 1.001 * Without(num_seqs, cost);
        on += best > 1.5 * Without(num_seqs, cost);
      }
    }
  }
  EXPECT_GT(off, 10);
  EXPECT_GT(on, 15);
}

// Even a short answer, from its first token on.
TEST(DraftControl, NeverBelow97PercentWhenGuessesAreWrong) {
  for (const StepCost& cost : {kCpu, kGpu}) {
    for (int32_t num_seqs : {1, 4, 16, 64}) {
      for (int steps : {64, 128, 1024}) {
        for (double a : {0.0, 0.05, 0.2}) {
          DraftControl control;
          const Outcome got = Simulate(
              control, num_seqs, steps, cost, [&](int32_t, int) { return a; }, 3);
          EXPECT_GE(got.rate(), 0.97 * Without(num_seqs, cost))
              << a << ", " << num_seqs << " sequences, " << steps << " steps";
          EXPECT_EQ(got.rows > 0, num_seqs == 1 || cost.fixed_us > 4000 || num_seqs <= 4);
        }
      }
    }
  }
}

TEST(DraftControl, OffWhereARowCostsWhatATokenCosts) {
  DraftControl control;
  const Outcome got = Simulate(
      control, 64, 500, kCpu, [](int32_t, int) { return 1.0; }, 1);
  EXPECT_EQ(got.rows, 0);
}

// A text that repeats itself gains at once: 32 tokens in a fraction of 32 steps.
TEST(DraftControl, EditingGainsFromTheFirstSteps) {
  DraftControl control;
  double tokens = 0, us = 0;
  for (uint32_t seed = 0; tokens < 32; ++seed) {
    const Outcome step = Simulate(
        control, 1, 1, kCpu, [](int32_t, int) { return 0.98; }, seed);
    tokens += step.tokens;
    us += step.us;
  }
  EXPECT_GT(tokens / us, 1.8 * Without(1, kCpu));
}

TEST(DraftControl, FollowsATextThatChanges) {
  const auto phases = [](int32_t, int step) { return step / 300 % 2 == 0 ? 0.95 : 0.0; };
  DraftControl control;
  const Outcome got = Simulate(control, 1, 6000, kCpu, phases, 5);
  // Per step, so that the phases weigh as they are: what an oracle would take for the same tokens.
  const double best = [&] {
    double most = 0;
    for (int32_t k = 0; k <= kMostDrafts; ++k) most = std::max(most, WithLength(k, 0.95, 1, kCpu));
    return most;
  }();
  const double without = Without(1, kCpu);
  // Steps of good phases bring tokens at the best rate, those of bad ones at the plain rate.
  DraftControl oracle_good;
  const Outcome good = Simulate(
      oracle_good, 1, 3000, kCpu, [](int32_t, int) { return 0.95; }, 5);
  EXPECT_GT(good.rate(), 0.93 * best);
  const double ideal_us = good.us + 3000 / without;
  EXPECT_GT(got.rate(), 0.85 * (good.tokens + 3000) / ideal_us);
}

TEST(DraftControl, ProbesBackOffAndAreNotForgotten) {
  DraftControl control;
  Simulate(
      control, 1, 200, kCpu, [](int32_t, int) { return 0.0; }, 1);
  const int64_t before = control.stats().drafted;
  const Outcome idle = Simulate(
      control, 1, 2000, kCpu, [](int32_t, int) { return 0.0; }, 2);
  EXPECT_GT(control.stats().drafted, before);
  EXPECT_GT(control.stats().probes, 0);
  // At most one probe of two guesses in kMostWait steps.
  EXPECT_LE(idle.rows, 2 * (2000 / DraftControl::kMostWait + 1));
  // The text turns good: it is found out within two waits, and then it pays.
  const int64_t accepted = control.stats().accepted;
  Simulate(
      control, 1, 2 * DraftControl::kMostWait, kCpu, [](int32_t, int) { return 1.0; }, 3);
  EXPECT_GT(control.stats().accepted, accepted + DraftControl::kMostWait);
}

// By hand: acceptance 0.8 everywhere at first. One sequence, fixed 4, row 1.5: the rate without
// guesses is 1 / 5.5 = 0.182. k guesses bring 1 + 0.8 + ... + 0.8^k in 5.5 + 1.5 k: 0.257, 0.287,
// 0.295, 0.292 for k = 1 to 4. So three.
TEST(DraftControl, TheFirstPlanByHand) {
  DraftControl control;
  DraftPlan plan{.seq = 1, .max_tokens = 16};
  control.Plan({&plan, 1}, kCpu);
  EXPECT_EQ(plan.lengths[0], 3);
  EXPECT_EQ(plan.lengths[1], 0);
  // Room for two only.
  DraftControl other;
  plan = {.seq = 1, .max_tokens = 2};
  other.Plan({&plan, 1}, kCpu);
  EXPECT_EQ(plan.lengths[0], 2);
  // A draft model that has to catch up for more than the account holds.
  DraftControl third;
  plan = {.seq = 1, .max_tokens = 16, .start_us = 1e6};
  third.Plan({&plan, 1}, kCpu);
  EXPECT_EQ(plan.lengths[0], 0);
  // Guesses that cost as much as tokens.
  DraftControl fourth;
  plan = {.seq = 1, .max_tokens = 16};
  fourth.Plan({&plan, 1}, {.fixed_us = 4000, .per_token_us = 1500, .per_draft_us = 5000});
  EXPECT_EQ(plan.lengths[0], 0);
}

TEST(DraftControl, ChainsBesideTheFirst) {
  // The truth begins half the time with the first chain's token, else with the second's.
  DraftControl control;
  std::mt19937 random(1);
  int64_t second_rows = 0, second_kept = 0, third_rows = 0;
  for (int step = 0; step < 2000; ++step) {
    DraftPlan plan{.seq = 1, .max_tokens = 8, .max_chains = 3};
    control.Plan({&plan, 1}, {.fixed_us = 20000, .per_token_us = 1000});
    EXPECT_GE(plan.lengths[0], plan.lengths[1]);
    EXPECT_GE(plan.lengths[1], plan.lengths[2]);
    const int32_t right = random() % 2 == 0 ? 0 : 1;
    const int32_t kept = std::min(plan.lengths[static_cast<size_t>(right)], 3);
    if (plan.lengths[0] == 0) continue;
    control.OnVerified(1, plan.lengths, right, kept);
    second_rows += plan.lengths[1];
    second_kept += right == 1 ? kept : 0;
    if (step > 1000) third_rows += plan.lengths[2];
  }
  EXPECT_GT(second_rows, 2000);
  EXPECT_GT(second_kept, 2000);
  EXPECT_LT(third_rows, 100);
}

TEST(DraftControl, StatsAndEnd) {
  DraftControl control;
  DraftPlan plan{.seq = 9, .max_tokens = 16};
  control.Plan({&plan, 1}, kCpu);
  const int32_t drafted[] = {3, 2};
  control.OnVerified(9, drafted, 1, 2);
  const int32_t again[] = {2};
  control.OnVerified(9, again, 0, 1);
  control.OnVerified(9, std::vector<int32_t>{0}, 0, 0);  // the proposer had nothing: no step
  EXPECT_EQ(control.stats().steps, 2);
  EXPECT_EQ(control.stats().drafted, 7);
  EXPECT_EQ(control.stats().accepted, 3);
  EXPECT_EQ(control.stats().accepted_at[0], 2);
  EXPECT_EQ(control.stats().accepted_at[1], 1);
  EXPECT_EQ(control.num_sequences(), 1u);
  control.OnEnd(9);
  control.OnEnd(10);
  EXPECT_EQ(control.num_sequences(), 0u);
  control.OnVerified(9, again, 0, 1);  // of an ended one: nothing
  EXPECT_EQ(control.stats().steps, 2);
}

TEST(DraftControl, TheSameCallsGiveTheSamePlans) {
  const auto run = [](uint32_t seed) {
    DraftControl control;
    Simulate(
        control, 5, 300, kCpu, [](int32_t s, int) { return 0.2 * s; }, seed);
    return std::make_pair(control.stats().drafted, control.stats().accepted);
  };
  EXPECT_EQ(run(1), run(1));
  EXPECT_NE(run(1), run(2));
}

// Times that bend after four rows: of a long plan with certain guesses, what pays is kept, found by
// trying every length.
TEST(DraftControl, TrimKeepsWhatPaysWhereTimesBend) {
  const auto step_us = [](int32_t rows) { return rows <= 4 ? 6400.0 + 200 * rows : 2000.0 * rows; };
  for (const double acceptance : {0.3, 0.6, 0.9, 1.0}) {
    DraftControl control;
    std::mt19937 rng(1);
    std::uniform_real_distribution<double> uniform(0, 1);
    DraftPlan plan{.seq = 1, .max_tokens = 12};
    for (int i = 0; i < 400; ++i) {  // what is learnt: each guess is kept by chance
      control.Plan({&plan, 1}, {.fixed_us = 6400, .per_token_us = 20});
      if (plan.lengths[0] == 0) continue;
      int32_t kept = 0;
      while (kept < plan.lengths[0] && uniform(rng) < acceptance) ++kept;
      const int32_t drafted = plan.lengths[0];
      control.OnVerified(1, {&drafted, 1}, 0, kept);
    }
    control.Plan({&plan, 1}, {.fixed_us = 6400, .per_token_us = 20});
    const int32_t planned = plan.lengths[0];
    double best = 1 / step_us(1), tokens = 1, p = 1;
    int32_t want = 0;
    for (int32_t k = 1; k <= planned; ++k) {
      p *= control.Acceptance(1, k - 1);
      tokens += p;
      if (tokens / step_us(1 + k) <= best) continue;
      best = tokens / step_us(1 + k);
      want = k;
    }
    control.Trim({&plan, 1}, step_us, 0);
    EXPECT_EQ(plan.lengths[0], want) << acceptance << " planned " << planned;
    if (acceptance >= 0.6) {
      EXPECT_GT(want, 0);
      EXPECT_GT(planned, 3);
    }
  }
}

}  // namespace
}  // namespace quire
