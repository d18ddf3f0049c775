// scheduler/scheduler.h -- decides, step by step, which tokens of which sequences are computed.
//
// There is no prefill or decode phase: every sequence lets num_computed_tokens catch up with its
// tokens under a token budget. A prompt over the budget is computed in chunks; a sequence with one
// token to go is what others call a decode.
//
//            Submit                 first in order, place and pages        last token
//   (edge) ---------> waiting ----------------------------------> running -----------> gone
//                        ^                                           |
//                        +------ preempted: pages given back --------+
//
// Policy: strict first come, first served. The order is that of the Submit commands, then by
// branch.
//   - Each step serves running sequences in order, one token for those that have one to go. A
//   prompt
//     over the budget is always the last of them (S5: nobody joins while it takes all that is
//     left), so decodes never wait for it; and as the budget is at least max_num_seqs, it gets a
//     token in every step, too.
//   - Then waiting ones in order, while places and pages allow. The first that doesn't fit stops
//   the
//     search: nobody overtakes, so a large request can't starve (and light ones may wait for it).
//   - A running sequence that can't grow preempts the last in order, never one before itself. It
//     keeps what it has if there is nobody left behind it, and waits for those before it to finish.
//   - A preempted sequence gives back all pages, keeps its tokens, and is computed again later, or
//     loaded from the host tier. A step in which somebody lacked pages admits nobody.
//   - Who is admitted shares at once what those before it compute in the same step.
// So the first in order can always go on, with every page if need be, and whatever was admitted
// ends (contract C5): what could never fit alone is refused at Submit.
//
// Invariants, checked by Audit() on top of the cache's own:
//   S1  a running sequence has something left to compute; a waiting one holds no pages, at most
//       slots of the host tier.
//   S2  every open branch is in exactly one of the two sets, and nothing else is.
//   S3  every running sequence comes before every waiting one in the policy's order.
//   S4  places taken <= max_num_seqs; a request that will fork holds n of them.
//   S5  only the last running sequence may have more than one token to compute.
//   I10 the worst case of the first in order fits in every pool.
//
// Thread: engine thread only. Cost of a step: O(running + tokens scheduled), whatever is queued.
// Source: continuous batching after Orca (Yu et al., OSDI 2022), chunked prefill after
// Sarathi-Serve (arXiv:2403.02310), recompute preemption after Kwon et al. 2023 (arXiv:2309.06180)
// section 4.5.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "paged_cache/block_manager.h"
#include "scheduler/batch.h"
#include "scheduler/live_request.h"
#include "scheduler/options.h"
#include "scheduler/request.h"
#include "scheduler/stats.h"

namespace quire {

class Scheduler {
 public:
  using Now = std::function<Clock::time_point()>;

  // REQUIRES: Validate(options) is OK; `blocks` outlives the scheduler.
  Scheduler(SchedulerOptions options, BlockManager& blocks, Now now = Clock::now);
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // Between steps. What is refused, cancelled or cut is told in `events` at once; commands for
  // requests and branches that are gone are ignored.
  void Apply(Command command, std::vector<TokenEvent>& events);

  // Ends what is past its deadline, then plans one step. The batch is empty only if no request is
  // left. REQUIRES: the batch before was given to Commit or Fail.
  [[nodiscard]] ScheduledBatch Schedule(std::vector<TokenEvent>& events);

  // Takes in what the step computed and sampled. REQUIRES: output has exactly the asked rows.
  void Commit(const ScheduledBatch& batch, const StepOutput& output,
              std::vector<TokenEvent>& events);

  // Instead of Commit: the step failed, so the requests in it end with kError.
  void Fail(const ScheduledBatch& batch, const absl::Status& why, std::vector<TokenEvent>& events);

  // Ends every request (drain deadline, device lost). Not between Schedule and Commit.
  void EndAll(FinishReason reason, const absl::Status& why, std::vector<TokenEvent>& events);

  bool idle() const { return requests_.empty(); }

  SchedulerStats stats() const;
  const SchedulerOptions& options() const { return options_; }
  BlockManager& blocks() { return blocks_; }
  const BlockManager& blocks() const { return blocks_; }

  // Between steps, for operators. A pool's size from now on; what is admitted stays able to finish.
  // retired: pages whose memory is not needed any more, once the page operations that are due have
  // run. ERRORS: kInvalidArgument naming the least that is possible now.
  absl::Status ResizePool(size_t pool, int32_t num_blocks, std::vector<PageId>& retired);
  // Keeps what is cached of a prompt. ERRORS: as BlockManager::Pin.
  absl::StatusOr<PinInfo> PinPrefix(const std::vector<TokenId>& tokens,
                                    const std::string& cache_salt, int64_t ttl_ms);
  // Forgets all prefixes, or those of one salt.
  void FlushPrefixes(const std::optional<std::string>& cache_salt);
  // What the largest live request may ever hold, per pool.
  PageNeed LargestAdmittedNeed() const;
  // visit(request, branch, sequence or null) for every open branch.
  void ForEachBranch(
      const std::function<void(const LiveRequest&, int32_t, const Sequence*)>& visit) const;
  int64_t now_ms() const;  // of the clock that retentions and pins are in

  // Recomputes the cache's invariants and S1-S5, I10. Between steps. ERRORS: kInternal naming the
  // invariant and the values.
  absl::Status Audit() const;

 private:
  using SeqSet = std::map<OrderKey, LiveSeq>;

  // admission.cc: from a command to the queue, and out of it.
  void Admit(Submit submit, std::vector<TokenEvent>& events);
  absl::Status CanEverRun(const Request& request) const;
  void CutBranch(const Finish& finish, std::vector<TokenEvent>& events);
  bool SharesPrefixes(const Request& request) const;
  std::string RootKey(const Request& request) const;
  std::string RootKey(const std::string& cache_salt, int32_t prompt_tokens,
                      RequestId private_to) const;
  PageNeed WorstCase(const Request& request) const;

  // schedule.cc: one step.
  void ExpireDeadlines(std::vector<TokenEvent>& events);
  bool ScheduleRunning(ScheduledBatch& batch);  // false if somebody lacked pages
  void ScheduleWaiting(ScheduledBatch& batch, std::vector<TokenEvent>& events);
  bool StartFirstWaiting(ScheduledBatch& batch, std::vector<TokenEvent>& events);
  std::optional<PrefixHit> FindInCache(const LiveSeq& s);
  bool FitsNow(const LiveSeq& next) const;
  void AddToBatch(const LiveSeq& s, int32_t num_tokens, ScheduledBatch& batch);
  void Preempt(SeqSet::iterator victim);

  // commit.cc: what a step brought.
  void ForkBranches(const LiveSeq& parent);
  void AppendToken(const LiveSeq& s, const Sampled& sampled, std::vector<TokenEvent>& events);
  void EndBranch(LiveRequest& live, int32_t branch, FinishReason reason, TokenEvent event,
                 std::vector<TokenEvent>& events);
  void EndRequest(LiveRequest& live, FinishReason reason, const absl::Status& why,
                  std::vector<TokenEvent>& events);
  void DropSequence(LiveRequest& live, int32_t branch);

  const SchedulerOptions options_;
  BlockManager& blocks_;
  const Now now_;
  const Clock::time_point start_;

  absl::flat_hash_map<RequestId, std::unique_ptr<LiveRequest>> requests_;
  SeqSet running_;
  SeqSet waiting_;
  std::set<std::pair<Clock::time_point, RequestId>> deadlines_;  // of live requests that have one
  std::vector<LiveSeq> in_flight_;  // owners of ScheduledBatch::seqs, between Schedule and Commit
  uint64_t next_order_ = 0;
  SequenceId next_sequence_ = 1;
  int32_t slots_taken_ = 0;  // places of the running set, see LiveRequest::slots
  int32_t queued_requests_ = 0;
  SchedulerStats counters_;  // gauges in it are unused
};

}  // namespace quire
