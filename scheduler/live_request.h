// scheduler/live_request.h -- the scheduler's own record of a request, from Submit to its last
// event.
#pragma once

#include <compare>
#include <cstdint>
#include <memory>
#include <vector>

#include "scheduler/request.h"
#include "scheduler/sequence.h"

namespace quire {

class BeamSearch;

// The policy's order. Smaller = served first, preempted last. Total and fixed while a request runs:
// `rank` is what the policy says (see request_queue.h), `order` counts Submit commands.
struct OrderKey {
  int64_t rank = 0;
  uint64_t order = 0;
  int32_t branch = 0;
  friend auto operator<=>(const OrderKey&, const OrderKey&) = default;
};

struct LiveBranch {
  std::unique_ptr<Sequence> seq;  // null before the fork and after the end
  int32_t num_output_tokens = 0;
  FinishReason finish = FinishReason::kNone;
  // Of a beam that has its candidates and waits for its siblings, best first.
  std::vector<TokenLogprob> candidates;
  bool has_candidates = false;
};

struct LiveRequest {
  LiveRequest();
  ~LiveRequest();

  std::shared_ptr<const Request> request;
  int64_t rank = 0;
  uint64_t order = 0;
  Clock::time_point submitted{};
  std::vector<LiveBranch>
      branches;           // [n]; only branch 0 has a sequence until the prompt is computed
  int32_t num_open = 0;   // branches without a finish reason
  bool admitted = false;  // has been scheduled once; kAccepted was sent
  bool forked = false;    // the prompt is computed and every open branch has a sequence
  std::unique_ptr<BeamSearch> beam;  // null: sampling
  int32_t num_prompt_logprobs = 0;   // sent, of request->prompt.size() - 1
  int32_t num_overtaken = 0;         // prefix_aware: by requests that came later
  RequestStats stats;
  Clock::time_point first_scheduled{};
  Clock::time_point first_token{};  // set once: a preemption doesn't move it
  Clock::time_point last_token{};

  int32_t n() const { return static_cast<int32_t>(branches.size()); }
  OrderKey key(const Sequence& seq) const { return {rank, order, seq.branch}; }
  // Places in the running set that `seq` takes: before the fork those of all its branches.
  int32_t slots() const { return forked ? 1 : n(); }
  bool wants_prompt_logprobs() const {
    return request->prompt_logprobs >= 0 &&
           num_prompt_logprobs + 1 < static_cast<int32_t>(request->prompt.size());
  }
};

// A sequence in one of the scheduler's two sets, with its owner.
struct LiveSeq {
  LiveRequest* live = nullptr;
  Sequence* seq = nullptr;
  int32_t num_remaining() const { return seq->num_tokens() - seq->num_computed_tokens; }
  // A beam that waits for its siblings: it has nothing to compute.
  bool parked() const { return live->branches[static_cast<size_t>(seq->branch)].has_candidates; }
};

}  // namespace quire
