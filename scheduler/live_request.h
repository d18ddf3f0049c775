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

// The policy's order: first come, first served, then by branch. Smaller = served first, preempted
// last. `order` counts Submit commands, so it is total and does not depend on clocks.
struct OrderKey {
  uint64_t order = 0;
  int32_t branch = 0;
  friend auto operator<=>(const OrderKey&, const OrderKey&) = default;
};

struct LiveBranch {
  std::unique_ptr<Sequence> seq;  // null before the fork and after the end
  int32_t num_output_tokens = 0;
  FinishReason finish = FinishReason::kNone;
};

struct LiveRequest {
  std::shared_ptr<const Request> request;
  uint64_t order = 0;
  std::vector<LiveBranch>
      branches;           // [n]; only branch 0 has a sequence until the prompt is computed
  int32_t num_open = 0;   // branches without a finish reason
  bool admitted = false;  // has been scheduled once; kAccepted was sent
  bool forked = false;    // the prompt is computed and every open branch has a sequence
  RequestStats stats;
  Clock::time_point first_scheduled{};
  Clock::time_point first_token{};  // set once: a preemption doesn't move it
  Clock::time_point last_token{};

  int32_t n() const { return static_cast<int32_t>(branches.size()); }
  OrderKey key(const Sequence& seq) const { return {order, seq.branch}; }
  // Places in the running set that `seq` takes: before the fork those of all its branches.
  int32_t slots() const { return forked ? 1 : n(); }
};

// A sequence in one of the scheduler's two sets, with its owner.
struct LiveSeq {
  LiveRequest* live = nullptr;
  Sequence* seq = nullptr;
  int32_t num_remaining() const { return seq->num_tokens() - seq->num_computed_tokens; }
};

}  // namespace quire
