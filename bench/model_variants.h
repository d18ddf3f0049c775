// bench/model_variants.h -- ways of serving on one model that take turns, for branching_bench.cc.
//
// A variant is a scheduler with its proposers on a runtime that the others use, too, one after the
// other. Nothing is cached when a run begins, and nothing has been learnt from earlier outputs;
// what was measured of steps stays, as in a daemon. Errors end the program.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bench/statistics.h"
#include "models/draft_proposer.h"
#include "models/runtime.h"
#include "scheduler/ngram_proposer.h"
#include "scheduler/suffix_proposer.h"

namespace quire {

inline constexpr int32_t kSpeculativeTokens = 16;

inline double Seconds(Clock::time_point from) {
  return std::chrono::duration<double>(Clock::now() - from).count();
}
[[noreturn]] inline void Die(const absl::Status& why) {
  std::fprintf(stderr, "%s\n", Message(why).c_str());
  std::exit(1);
}

using Requests = std::vector<std::shared_ptr<const Request>>;

struct RunResult {
  std::map<std::pair<RequestId, int32_t>, std::vector<TokenId>> tokens;
  std::map<std::pair<RequestId, int32_t>, std::vector<uint32_t>> bits;  // of logprobs, if asked
  double total_s = 0;
  double decode_s = 0;  // after the step in which the last request got its first token
  int64_t decoded = 0;  // tokens in that time
  int32_t peak_pages = 0;
  int64_t steps = 0;
  int64_t drafted = 0, accepted = 0;
  double rate() const { return static_cast<double>(decoded) / decode_s; }
};

class Variant {
 public:
  Variant(std::string name, ModelRuntime& runtime, SpeculationMethod method)
      : name_(std::move(name)), runtime_(runtime), method_(method) {
    SchedulerOptions options;
    options.max_model_len = runtime.max_model_len();
    options.num_speculative_tokens = method == SpeculationMethod::kNone ? 0 : kSpeculativeTokens;
    scheduler_ = std::make_unique<Scheduler>(options, runtime.block_manager());
    scheduler_->SetProposer(SpeculationMethod::kNgram, &ngram_);
    scheduler_->SetProposer(SpeculationMethod::kSuffix, &suffix_);
    scheduler_->SetProposer(SpeculationMethod::kDraft, runtime.draft_model());
    scheduler_->SetDefaultSpeculation(method);
  }
  const std::string& name() const { return name_; }
  SpeculationMethod method() const { return method_; }

  RunResult Run(const Requests& requests) {
    BlockManager& blocks = runtime_.block_manager();
    blocks.Flush();
    suffix_.Flush(nullptr);
    const SchedulerStats before = scheduler_->stats();
    RunResult result;
    std::vector<TokenEvent> events;
    const Clock::time_point start = Clock::now();
    Clock::time_point all_began = start;
    size_t began = 0;
    for (const auto& request : requests) scheduler_->Apply(Submit{request}, events);
    while (!scheduler_->idle()) {
      const ScheduledBatch batch = scheduler_->Schedule(events);
      Note(result.peak_pages);
      auto output = runtime_.executor().Run(batch);
      if (!output.ok()) Die(output.status());
      scheduler_->Commit(batch, *output, events);
      Note(result.peak_pages);
      const bool all_had_begun = began == requests.size();
      for (const TokenEvent& e : events) {
        if (!e.error.ok()) Die(e.error);
        if (e.kind != TokenEvent::Kind::kToken) continue;
        std::vector<TokenId>& tokens = result.tokens[{e.request, e.branch}];
        if (tokens.empty() && e.branch == 0) ++began;
        tokens.push_back(e.sampled.token);
        result.bits[{e.request, e.branch}].push_back(std::bit_cast<uint32_t>(e.sampled.logprob));
        result.decoded += all_had_begun;
      }
      if (!all_had_begun && began == requests.size()) all_began = Clock::now();
      events.clear();
    }
    result.total_s = Seconds(start);
    result.decode_s = Seconds(all_began);
    const SchedulerStats after = scheduler_->stats();
    result.steps = after.steps - before.steps;
    result.drafted = after.draft_tokens - before.draft_tokens;
    result.accepted = after.accepted_draft_tokens - before.accepted_draft_tokens;
    return result;
  }
  SchedulerStats stats() const { return scheduler_->stats(); }

 private:
  void Note(int32_t& peak) const {
    peak = std::max(peak, std::as_const(runtime_.block_manager()).pools()[0].num_active());
  }

  const std::string name_;
  ModelRuntime& runtime_;
  const SpeculationMethod method_;
  NgramProposer ngram_;
  SuffixProposer suffix_;
  std::unique_ptr<Scheduler> scheduler_;
};

inline void MustBeSame(const RunResult& a, const RunResult& b, bool bits, const std::string& what) {
  if (a.tokens == b.tokens && (!bits || a.bits == b.bits)) return;
  std::fprintf(stderr, "%s: other outputs than without guesses\n", what.c_str());
  std::exit(1);
}

// Runs `make(round)` on all variants, the first of which guesses nothing.
inline void Compare(const std::string& title, std::vector<std::unique_ptr<Variant>>& variants,
                    int rounds, const std::function<Requests(int round, bool logprobs)>& make) {
  std::vector<std::vector<double>> rates(variants.size()), ratios(variants.size());
  std::vector<RunResult> sums(variants.size());
  for (int round = -1; round < rounds; ++round) {
    const Requests requests = make(round, /*logprobs=*/round < 0);
    std::vector<RunResult> results(variants.size());
    for (size_t k = 0; k < variants.size(); ++k) {
      // Who is first in a round is last in the next one.
      const size_t v = round % 2 == 0 ? k : variants.size() - 1 - k;
      results[v] = variants[v]->Run(requests);
    }
    for (size_t v = 0; v < variants.size(); ++v) {
      MustBeSame(results[0], results[v], round < 0, title + " " + variants[v]->name());
      sums[v].steps += results[v].steps;
      sums[v].drafted += results[v].drafted;
      sums[v].accepted += results[v].accepted;
      if (round < 0) continue;
      rates[v].push_back(results[v].rate());
      ratios[v].push_back(results[v].rate() / results[0].rate());
    }
  }
  for (size_t v = 0; v < variants.size(); ++v) {
    const RunResult& r = sums[v];
    std::printf("%-10s %-8s %9.1f %7.2f  (%.2f to %.2f) %9.2f %8.0f%% %9.0f %9.0f\n", title.c_str(),
                variants[v]->name().c_str(), Median(rates[v]), Median(ratios[v]),
                *std::min_element(ratios[v].begin(), ratios[v].end()),
                *std::max_element(ratios[v].begin(), ratios[v].end()),
                static_cast<double>(r.drafted) / static_cast<double>(r.steps),
                r.drafted > 0
                    ? 100.0 * static_cast<double>(r.accepted) / static_cast<double>(r.drafted)
                    : 0.0,
                variants[v]->stats().step_fixed_us, variants[v]->stats().step_us_per_token);
  }
  std::fflush(stdout);
}

inline void PrintHead() {
  std::printf("%-10s %-8s %9s %7s  %14s %9s %9s %9s %9s\n", "load", "guesses", "tokens/s", "ratio",
              "of rounds", "per step", "right", "fixed us", "us/row");
}

}  // namespace quire
