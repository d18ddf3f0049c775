// scheduler/stats.h -- what the scheduler counts. Copied out once per step; plain data.
//
// Gauges describe now. Counters only grow, whatever is preempted, recomputed or truncated.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "scheduler/request.h"

namespace quire {

inline constexpr size_t kNumFinishReasons = static_cast<size_t>(FinishReason::kError) + 1;

struct SchedulerStats {
  // Gauges.
  int32_t running_seqs =
      0;  // branches with pages; an n > 1 request is one until its prompt is done
  int32_t waiting_seqs = 0;     // queued requests and preempted branches
  int32_t live_requests = 0;    // accepted and not ended
  int32_t queued_requests = 0;  // accepted and never scheduled yet

  // Counters of requests. submitted == live_requests + sum(finished).
  int64_t submitted = 0;
  int64_t left_queue = 0;                             // first scheduled, or ended before that
  std::array<int64_t, kNumFinishReasons> finished{};  // one outcome per request: its last branch's

  // Counters of work.
  int64_t steps = 0;
  int64_t scheduled_tokens = 0;  // rows computed, recomputed ones included
  int64_t generated_tokens = 0;  // sampled
  int64_t preemptions = 0;
  int64_t swapped_preemptions = 0;  // of these, by swap
  int64_t swap_ins = 0;             // of these, resumed without computing anything again
  int64_t forks = 0;                // branches split off a computed prompt
  int64_t page_copies = 0;          // copy-on-write
  int64_t policy_changes = 0;
  int64_t beam_steps = 0;    // all beams of a request advanced
  int64_t beam_forks = 0;    // beams that share their parent's pages with a sibling
  int64_t draft_tokens = 0;  // guesses computed
  int64_t accepted_draft_tokens = 0;
  int64_t forced_draft_tokens = 0;  // of draft_tokens: what grammars forced
  int64_t draft_chains = 0;         // second and further chains of trees
  double step_fixed_us = 0;         // as fitted: see StepCost
  double step_us_per_token = 0;
  // Prefix cache, in tokens; each request is counted once, when it is first scheduled.
  int64_t prefix_query_tokens = 0;  // prompt tokens asked for
  int64_t prefix_hit_tokens = 0;    // found
  int64_t resume_hit_tokens = 0;    // found again by preempted branches; in neither of the above

  int64_t num_finished(FinishReason reason) const { return finished[static_cast<size_t>(reason)]; }
};

}  // namespace quire
