#include "scheduler/draft_control.h"

#include <algorithm>

#include "base/status.h"

namespace quire {
namespace {

// What a try is worth after the next one; after about twenty the first guess is forgotten.
constexpr double kKeptByTry = 0.95;
// And after a step without a try, so that what was learnt in bad times fades.
constexpr double kKeptByStep = 0.99;
// How many tries what is assumed stands for.
constexpr double kPriorTries = 2;
// Of the tokens that the first chain misses, those that each further chain is assumed to get.
constexpr double kFurtherChain = 0.25;
constexpr int kMostRounds = 8;

}  // namespace

void DraftControl::Counts::Add(bool was_kept) {
  kept = kept * kKeptByTry + (was_kept ? 1 : 0);
  tried = tried * kKeptByTry + 1;
}

double DraftControl::First(const State& s, int32_t chain) {
  const Counts& c = s.first[static_cast<size_t>(chain)];
  if (chain == 0) return c.kept / c.tried;  // it begins with kPriorTries
  const double assumed = kFurtherChain * (1 - First(s, 0));
  return (kPriorTries * assumed + c.kept) / (kPriorTries + c.tried);
}

double DraftControl::Later(const State& s, int32_t position, double before) {
  const Counts& c = s.later[static_cast<size_t>(std::min(position, kDraftPositions - 1))];
  return (kPriorTries * before + c.kept) / (kPriorTries + c.tried);
}

double DraftControl::Acceptance(SequenceId seq, int32_t position) const {
  const auto it = states_.find(seq);
  if (it == states_.end()) return kFirstGuess;
  double p = First(it->second, 0);
  for (int32_t j = 1; j <= position; ++j) p = Later(it->second, j, p);
  return p;
}

void DraftControl::Choose(const State& s, double rate, DraftPlan& plan, double& tokens,
                          double& us) {
  plan.lengths.fill(0);
  double credit = s.credit_us;
  int32_t longest = plan.max_tokens;
  const int32_t chains = std::min(plan.max_chains, kMaxDraftChains);
  for (int32_t r = 0; r < chains && longest > 0; ++r) {
    int32_t& length = plan.lengths[static_cast<size_t>(r)];
    double p = First(s, r);
    double acceptance = First(s, 0);
    while (length < longest) {
      double cost = s.row_us;
      if (length == 0) cost += r == 0 ? s.start_us : s.chain_us;
      if (p <= rate * cost || credit < cost) break;
      ++length;
      credit -= cost;
      tokens += p;
      us += cost;
      acceptance = Later(s, length, acceptance);
      p *= acceptance;
    }
    longest = length;
  }
}

void DraftControl::Probe(State& s, double base_rate, DraftPlan& plan) {
  s.probing = false;
  if (s.wait > 0) {
    --s.wait;
    return;
  }
  if (base_rate * s.row_us > 1 - kWorthProbing) return;
  const double guesses = std::max(0.0, (s.credit_us - s.start_us) / s.row_us);
  const auto affordable = static_cast<int32_t>(std::min(2.0, guesses));
  plan.lengths[0] = std::min(affordable, plan.max_tokens);
  s.probing = plan.lengths[0] > 0;
}

void DraftControl::Plan(std::span<DraftPlan> plans, const StepCost& cost) {
  if (plans.empty()) return;
  CHECK(cost.fixed_us >= 0 && cost.per_token_us > 0 && cost.per_draft_us >= 0 &&
            cost.per_chain_us >= 0,
        "step cost fixed_us={} per_token_us={} per_draft_us={} per_chain_us={}", cost.fixed_us,
        cost.per_token_us, cost.per_draft_us, cost.per_chain_us);
  const auto n = static_cast<double>(plans.size());
  const double base_us = cost.fixed_us + n * cost.per_token_us;
  const double token_us = base_us / n;
  for (DraftPlan& plan : plans) {
    plan.lengths.fill(0);
    if (plan.max_tokens < 1) continue;
    const auto [it, is_new] = states_.try_emplace(plan.seq);
    State& s = it->second;
    if (is_new) {
      s.first[0] = {kFirstGuess * kPriorTries, kPriorTries};
      s.credit_us = kStartSteps * token_us;
    }
    s.token_us = token_us;
    s.row_us = cost.per_token_us + cost.per_draft_us;
    s.chain_us = cost.per_chain_us;
    s.start_us = plan.start_us;
    s.credit_us = std::min(s.credit_us + kWasteShare * token_us, kMostSteps * token_us);
  }
  double rate = n / base_us;
  for (int round = 0; round < kMostRounds; ++round) {
    double tokens = n;
    double us = base_us;
    for (DraftPlan& plan : plans) {
      if (plan.max_tokens > 0) Choose(states_.find(plan.seq)->second, rate, plan, tokens, us);
    }
    const double better = tokens / us;
    if (better <= rate) break;
    rate = better;
  }
  for (DraftPlan& plan : plans) {
    if (plan.max_tokens < 1) continue;
    State& s = states_.find(plan.seq)->second;
    if (plan.lengths[0] > 0) {
      s.probing = false;
    } else {
      Probe(s, n / base_us, plan);
    }
  }
}

void DraftControl::Trim(std::span<DraftPlan> plans, const std::function<double(int32_t)>& step_us,
                        double per_draft_us) {
  guesses_.clear();
  auto rows = static_cast<int32_t>(plans.size());
  for (size_t i = 0; i < plans.size(); ++i) {
    DraftPlan& plan = plans[i];
    if (plan.lengths[0] <= 0) continue;
    const State& s = states_.find(plan.seq)->second;
    if (s.probing) {
      rows += plan.lengths[0];
      continue;
    }
    for (size_t r = 0; r < plan.lengths.size(); ++r) {
      double acceptance = First(s, static_cast<int32_t>(r));
      double p = acceptance;
      for (int32_t j = 0; j < plan.lengths[r]; ++j) {
        guesses_.push_back({.p = p, .plan = i, .chain = r});
        acceptance = Later(s, j + 1, acceptance);
        p *= acceptance;
      }
      plan.lengths[r] = 0;
    }
  }
  if (guesses_.empty()) return;
  // Along a chain p never rises, so what is kept of it is a beginning.
  std::stable_sort(guesses_.begin(), guesses_.end(),
                   [](const Guess& a, const Guess& b) { return a.p > b.p; });
  const auto n = static_cast<double>(plans.size());
  double tokens = n;
  double best = n / step_us(rows);
  size_t kept = 0;
  for (size_t m = 0; m < guesses_.size(); ++m) {
    tokens += guesses_[m].p;
    const double us =
        step_us(rows + static_cast<int32_t>(m) + 1) + per_draft_us * static_cast<double>(m + 1);
    if (tokens / us <= best) continue;
    best = tokens / us;
    kept = m + 1;
  }
  for (size_t m = 0; m < kept; ++m) ++plans[guesses_[m].plan].lengths[guesses_[m].chain];
}

void DraftControl::OnVerified(SequenceId seq, std::span<const int32_t> drafted, int32_t chain,
                              int32_t accepted) {
  const auto it = states_.find(seq);
  if (it == states_.end() || drafted.empty() || drafted[0] < 1) return;
  State& s = it->second;
  CHECK(accepted >= 0 && drafted.size() <= static_cast<size_t>(kMaxDraftChains) &&
            (accepted == 0 || (chain >= 0 && static_cast<size_t>(chain) < drafted.size() &&
                               accepted <= drafted[static_cast<size_t>(chain)])),
        "{} guesses of chain {} kept, of {} chains", accepted, chain, drafted.size());
  const auto fade = [](Counts& c) {
    c.kept *= kKeptByStep;
    c.tried *= kKeptByStep;
  };
  for (size_t r = 1; r < s.first.size(); ++r) fade(s.first[r]);
  for (Counts& c : s.later) fade(c);

  int64_t rows = 0;
  int64_t chains = 0;
  for (size_t r = 0; r < drafted.size(); ++r) {
    if (drafted[r] < 1) continue;
    rows += drafted[r];
    ++chains;
    s.first[r].Add(accepted > 0 && chain == static_cast<int32_t>(r));
  }
  const int32_t length = accepted > 0 ? drafted[static_cast<size_t>(chain)] : 0;
  for (int32_t j = 1; j < length && j <= accepted; ++j) {
    s.later[static_cast<size_t>(std::min(j, kDraftPositions - 1))].Add(j < accepted);
  }
  s.credit_us += static_cast<double>(accepted) * s.token_us - static_cast<double>(rows) * s.row_us -
                 static_cast<double>(chains - 1) * s.chain_us;
  if (accepted > 0) {
    s.backoff = 1;
    s.wait = 0;
  } else if (s.probing) {
    s.backoff = std::min(2 * s.backoff, kMostWait);
    s.wait = s.backoff;
  }
  stats_.probes += s.probing;
  ++stats_.steps;
  stats_.drafted += rows;
  stats_.accepted += accepted;
  for (int32_t j = 0; j < accepted; ++j) {
    ++stats_.accepted_at[static_cast<size_t>(std::min(j, kDraftPositions - 1))];
  }
}

}  // namespace quire
