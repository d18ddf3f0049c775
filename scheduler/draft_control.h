// scheduler/draft_control.h -- how many guesses are worth computing, from what became of earlier
// ones.
//
// Model of a step: it costs fixed_us plus per_token_us for each row. With n sequences that decode
// and no guesses it takes fixed + n * per_token and brings n tokens. A guess is one more row, and
// makes per_draft_us of work for the proposer. It brings a token if it and all before it in its
// chain are kept, with probability p = product of the acceptances up to it.
//
// Rule: take the guesses that maximise expected tokens per time of the whole step,
//     (n + sum of p) / (fixed + (n + rows) * per_token + rows * per_draft).
// As p falls along a chain, those are the ones with p > rate * cost of the row, where the rate is
// the maximum itself; it is found from the rate without guesses in a few rounds (Dinkelbach 1967).
// With one stream rows are cheap beside the fixed part, and chains get long; with many streams a
// row costs almost what a token costs, and only near certainty pays.
//
// Acceptance: for each sequence and position in a chain, kept and tried guesses, older ones
// counting less. Positions with little evidence take after the one before them; the first starts at
// kFirstGuess, so a text that repeats itself gains from its first steps on.
//
// Bound: each sequence has an account in microseconds. It starts with kStartSteps of the time that
// one of its tokens takes (a step / n), gains kWasteShare of that with each step and all of it with
// each token that a guess brought, and pays for each row guessed. Without credit there is no guess,
// whatever the estimate; credit is capped at kMostSteps. So, as far as the model of cost is right,
// guesses never waste more than kStartSteps tokens' time at once plus kWasteShare for ever.
//
// Off and on: if nothing pays, a probe of one or two guesses is made after 2, 4, ... kMostWait
// steps, doubling with each that brings nothing, if there is credit, and if a sure guess would save
// kWorthProbing of a token's time at all: at high load it doesn't, and everything is off.
//
// Pure arithmetic on what is told; the same calls give the same plans. Thread: engine thread.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "scheduler/sequence.h"

namespace quire {

// As measured by the caller; microseconds.
struct StepCost {
  double fixed_us = 0;      // of a step, whatever is in it
  double per_token_us = 0;  // of each row
  double per_draft_us = 0;  // of making a guess; 0 for lookups
  double per_chain_us = 0;  // of each chain but a sequence's first: tables forked, a page copied
};

constexpr int32_t kMaxDraftChains = 8;
constexpr int32_t kDraftPositions = 16;  // told apart; those beyond are like the last

struct DraftPlan {
  SequenceId seq = 0;
  int32_t max_tokens = 0;  // per chain; 0: this one wants no guesses
  int32_t max_chains = 1;
  // Before its first guess, besides the cost of a guess: a draft model that has to catch up.
  double start_us = 0;
  // Out: longest worth computing of each chain, the best first; never more than the one before it.
  std::array<int32_t, kMaxDraftChains> lengths{};
};

// Since start.
struct DraftStats {
  int64_t steps = 0;                                   // of sequences, with guesses
  int64_t drafted = 0;                                 // guesses computed
  int64_t accepted = 0;                                // of these kept
  int64_t probes = 0;                                  // of steps: plans made only to find out
  std::array<int64_t, kDraftPositions> accepted_at{};  // by position in the chain
};

class DraftControl {
 public:
  static constexpr double kFirstGuess = 0.8;
  static constexpr double kStartSteps = 1.25;
  static constexpr double kMostSteps = 4;
  static constexpr double kWasteShare = 0.01;
  static constexpr double kWorthProbing = 0.2;
  static constexpr int32_t kMostWait = 64;

  // Once per step, with all sequences that decode in it, those included that want no guesses.
  void Plan(std::span<DraftPlan> plans, const StepCost& cost);

  // After Plan, for steps whose time is no straight line of their rows: of all planned guesses, the
  // most likely first, keeps those with which a step brings most tokens per time. Probes stay.
  // step_us(rows): time of a step that decodes so many rows; per_draft_us: of each guess beside.
  void Trim(std::span<DraftPlan> plans, const std::function<double(int32_t)>& step_us,
            double per_draft_us);

  // After a step with guesses: how many were computed in each chain (the proposer may have had
  // fewer than planned, or none), and how many were kept, all of one chain. accepted 0: `chain` is
  // not looked at.
  void OnVerified(SequenceId seq, std::span<const int32_t> drafted, int32_t chain,
                  int32_t accepted);
  void OnEnd(SequenceId seq) { states_.erase(seq); }

  const DraftStats& stats() const { return stats_; }
  size_t num_sequences() const { return states_.size(); }
  // Of a chain's token at `position`, given that those before it were kept.
  double Acceptance(SequenceId seq, int32_t position) const;

 private:
  struct Counts {
    double kept = 0;
    double tried = 0;
    void Add(bool was_kept);
  };
  struct State {
    // The first token of each chain, which is tried in every step; then later positions.
    std::array<Counts, kMaxDraftChains> first;
    std::array<Counts, kDraftPositions> later;
    double credit_us = 0;
    double token_us = 0;  // of the last plan: a step without guesses / sequences
    double row_us = 0;    // of the last plan
    double chain_us = 0;
    double start_us = 0;
    int32_t wait = 0;     // steps until a probe is due
    int32_t backoff = 1;  // of the last probe
    bool probing = false;
  };

  static double First(const State& s, int32_t chain);
  static double Later(const State& s, int32_t position, double before);
  // Chains whose guesses are worth `rate` tokens per microsecond and within the credit. Adds their
  // expected tokens and their cost.
  static void Choose(const State& s, double rate, DraftPlan& plan, double& tokens, double& us);
  static void Probe(State& s, double base_rate, DraftPlan& plan);

  struct Guess {
    double p = 0;  // that it and all before it in its chain are kept
    size_t plan = 0;
    size_t chain = 0;
  };

  absl::flat_hash_map<SequenceId, State> states_;
  DraftStats stats_;
  std::vector<Guess> guesses_;  // reused
};

}  // namespace quire
