// tests/support/engine_run.h -- requests through the real scheduler and executor on a real model,
// and what to compare of the outcome: tokens and the bits of their logprobs.
#pragma once

#include <bit>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "models/rope_config.h"
#include "scheduler/scheduler.h"
#include "tests/support/model_harness.h"

namespace quire {

struct BranchOutput {
  std::vector<TokenId> tokens;
  std::vector<uint32_t> logprob_bits;  // the sampled token's, then the top ones', in order
  FinishReason finish = FinishReason::kNone;
  friend bool operator==(const BranchOutput&, const BranchOutput&) = default;
};
using Outputs = std::map<std::pair<RequestId, int32_t>, BranchOutput>;
using Requests = std::vector<std::shared_ptr<const Request>>;

struct EngineSetup {
  HarnessOptions harness;
  int32_t max_num_seqs = 64;
  int32_t budget = 512;
  bool prefix_caching = false;
  SchedulingPolicy policy = SchedulingPolicy::kFcfs;
  PreemptionMode preemption = PreemptionMode::kRecompute;
  int32_t long_prefill_token_threshold = 0;
  // Guesses: who makes them, and the most in a step.
  SpeculationMethod speculation = SpeculationMethod::kNone;
  Proposer* proposer = nullptr;
  int32_t num_speculative_tokens = 0;
  TokenText token_text;  // for what grammars force
};

struct Outcome {
  Outputs outputs;
  SchedulerStats stats;
  std::map<RequestId, int32_t> cached_tokens;
  int32_t used_at_end = 0;
  int32_t num_groups = 0;
  int32_t num_pools = 0;
  // Null entries of windowed groups: the most that the sequences of one step had, and of those that
  // began with a prefix hit in that very step.
  int64_t most_given_back = 0;
  int64_t given_back_at_hit = 0;
  int64_t poisoned_pages = 0;
  std::map<std::pair<RequestId, int32_t>, float> scores;                   // of beams
  std::map<RequestId, std::vector<std::pair<int32_t, uint32_t>>> prompts;  // position, bits

  int64_t all_cached_tokens() const {
    int64_t sum = 0;
    for (const auto& entry : cached_tokens) sum += entry.second;
    return sum;
  }
};

// Runs one round of requests to its end.
inline void RunRound(ModelHarness& h, Scheduler& scheduler, const Requests& round, Outcome& run) {
  std::vector<TokenEvent> events;
  for (const auto& request : round) scheduler.Apply(Submit{request}, events);
  while (!scheduler.idle()) {
    const size_t before = events.size();
    const ScheduledBatch batch = scheduler.Schedule(events);
    if (batch.empty()) break;
    int64_t given_back = 0;
    for (const ScheduledSeq& s : batch.seqs) {
      const int64_t count = h.NumGivenBack(s.seq->tables);
      given_back += count;
      for (size_t i = before; i < events.size(); ++i) {
        if (events[i].kind == TokenEvent::Kind::kAccepted &&
            events[i].request == s.seq->request->id && events[i].stats.cached_tokens > 0) {
          run.given_back_at_hit += count;
        }
      }
    }
    run.most_given_back = std::max(run.most_given_back, given_back);
    run.poisoned_pages += h.PoisonFreed(batch.copies);
    absl::StatusOr<StepOutput> out = h.executor().Run(batch);
    CHECK(out.ok(), "{}", out.status().ToString());
    h.now += std::chrono::milliseconds(1);
    out->page_ops_us = 0;  // real time, which the clock here knows nothing of
    scheduler.Commit(batch, *out, events);
    run.poisoned_pages += h.PoisonFreed({});
    const absl::Status audit = scheduler.Audit();
    CHECK(audit.ok(), "{}", audit.ToString());
  }
  for (const TokenEvent& e : events) {
    CHECK(e.error.ok(), "{}", e.error.ToString());
    if (e.kind == TokenEvent::Kind::kAccepted) run.cached_tokens[e.request] = e.stats.cached_tokens;
    for (const PromptLogprob& p : e.prompt_logprobs) {
      std::vector<std::pair<int32_t, uint32_t>>& prompt = run.prompts[e.request];
      prompt.emplace_back(p.position, std::bit_cast<uint32_t>(p.logprob.logprob));
      for (const TokenLogprob& t : p.logprob.top) {
        prompt.emplace_back(t.token, std::bit_cast<uint32_t>(t.logprob));
      }
    }
    if (e.kind != TokenEvent::Kind::kToken) continue;
    if (e.finish != FinishReason::kNone) run.scores[{e.request, e.branch}] = e.score;
    BranchOutput& out = run.outputs[{e.request, e.branch}];
    out.tokens.push_back(e.sampled.token);
    out.logprob_bits.push_back(std::bit_cast<uint32_t>(e.sampled.logprob));
    for (const TokenLogprob& t : e.sampled.top) {
      out.logprob_bits.push_back(static_cast<uint32_t>(t.token));
      out.logprob_bits.push_back(std::bit_cast<uint32_t>(t.logprob));
    }
    out.finish = e.finish;
  }
}

// Each round runs to its end before the next one starts; all on one engine.
inline Outcome RunRounds(const std::string& model, EngineSetup setup,
                         const std::vector<Requests>& rounds) {
  setup.harness.max_tokens_per_step = setup.budget;
  setup.harness.max_seqs = setup.max_num_seqs;
  auto opened = ModelHarness::Open(model, setup.harness);
  CHECK(opened.ok(), "{}", opened.status().ToString());
  ModelHarness& h = **opened;
  SchedulerOptions options;
  options.max_num_seqs = setup.max_num_seqs;
  options.max_num_batched_tokens = setup.budget;
  options.max_model_len = LongestSequence(h.config());
  options.enable_prefix_caching = setup.prefix_caching;
  options.rope_regime = [&h](int32_t n) { return RopeRegime(h.config(), n); };
  options.policy = setup.policy;
  options.preemption = setup.preemption;
  options.long_prefill_token_threshold = setup.long_prefill_token_threshold;
  options.num_speculative_tokens = setup.num_speculative_tokens;
  // A step takes 1 ms, so that what depends on measured times is the same in each run.
  Scheduler scheduler(options, h.blocks(), [&h] { return h.now; });
  scheduler.SetProposer(setup.speculation, setup.proposer);
  scheduler.SetDefaultSpeculation(setup.speculation);
  scheduler.SetTokenText(setup.token_text);
  Outcome run;
  run.num_groups = static_cast<int32_t>(h.blocks().layout().groups.size());
  run.num_pools = static_cast<int32_t>(h.blocks().layout().pools.size());
  for (const Requests& round : rounds) RunRound(h, scheduler, round, run);
  run.stats = scheduler.stats();
  for (const PagePool& pool : h.blocks().pools()) run.used_at_end += pool.num_active();
  return run;
}

// The smallest pools in which the largest of `requests` can run.
inline std::vector<int32_t> TightPools(const std::string& model, EngineSetup setup,
                                       const Requests& requests) {
  setup.harness.max_tokens_per_step = setup.budget;
  auto opened = ModelHarness::Open(model, setup.harness);
  CHECK(opened.ok(), "{}", opened.status().ToString());
  std::vector<int32_t> most;
  for (const auto& r : requests) {
    const PageNeed need = (*opened)->blocks().WorstCasePages(
        static_cast<int32_t>(r->prompt.size()), r->stop.max_tokens,
        r->beam.on() ? r->beam.beam_width : r->sampling.n);
    most.resize(need.size());
    for (size_t i = 0; i < need.size(); ++i) most[i] = std::max(most[i], need[i]);
  }
  return most;
}

}  // namespace quire
