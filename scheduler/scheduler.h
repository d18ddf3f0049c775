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
// Who is started next is the policy's to say (request_queue.h). Once started, a request has a fixed
// place in one total order (OrderKey), then by branch.
//   - Each step serves running sequences in order. One token of the budget is kept for each that
//     comes behind, so decodes never wait for prompts and every sequence moves in every step; what
//     is left goes to prompts, the first in order before the others.
//   - Then waiting ones, while places and pages allow: those that were put back before the queue,
//     or by rank. The first that doesn't fit stops the search: nobody overtakes, so a large request
//     can't starve (and light ones may wait for it).
//   - A running sequence that can't grow preempts the last in order, never one before itself. It
//     keeps what it has if there is nobody left behind it, and waits for those before it to finish.
//   - A preempted sequence gives back all pages, keeps its tokens, and is computed again later, or
//     loaded from the host tier. A step in which somebody lacked pages admits nobody.
//   - Under `priority` the next request also preempts running ones of lower priority, if that makes
//     room for it.
//   - Who is admitted shares at once what those before it compute in the same step.
//   - What is left of budget, rows and pages goes to guesses (speculative.h); they never preempt.
// So the first in order can always go on, with every page if need be, and whatever was admitted
// ends (contract C5): what could never fit alone is refused at Submit. Preemptions can't go round
// in circles: a victim always stands behind its preemptor in the order.
//
// Beams (beam.h) are branches that wait for each other: one that has its candidates is parked until
// all have theirs, then the next beams fork from this step's. A parked beam that is preempted keeps
// its candidates. If only parked beams run while their siblings wait, the last in order gives way.
//
// Invariants, checked by Audit() on top of the cache's own:
//   S1  a running sequence has something left to compute, or is parked; a waiting one holds no
//       pages, at most slots of the host tier. Between steps there are no guesses.
//   S2  every open branch is in exactly one of running, waiting and queue, and nothing else is.
//   S3  under fcfs every running sequence comes before every waiting one; beams may stand on both
//       sides of their siblings.
//   S4  places taken are counted right and at most max_num_seqs (or what they were when that was
//       lowered); a request that will fork holds n of them.
//   S6  the queue's counters are those of its requests.
//   I10 the worst case of the first in order fits in every pool.
//
// Thread: engine thread only. Cost of a step: O(running + tokens scheduled), whatever is queued.
// Source: continuous batching after Orca (Yu et al., OSDI 2022), chunked prefill after
// Sarathi-Serve (arXiv:2403.02310), recompute preemption after Kwon et al. 2023 (arXiv:2309.06180)
// section 4.5.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "paged_cache/block_manager.h"
#include "sampling/forced_tokens.h"
#include "scheduler/batch.h"
#include "scheduler/draft_control.h"
#include "scheduler/live_request.h"
#include "scheduler/options.h"
#include "scheduler/request.h"
#include "scheduler/request_queue.h"
#include "scheduler/speculative.h"
#include "scheduler/stats.h"
#include "scheduler/step_cost_fit.h"

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
  // left, or while paused. REQUIRES: the batch before was given to Commit or Fail.
  [[nodiscard]] ScheduledBatch Schedule(std::vector<TokenEvent>& events);

  // Takes in what the step computed and sampled. REQUIRES: output has exactly the asked rows.
  void Commit(const ScheduledBatch& batch, const StepOutput& output,
              std::vector<TokenEvent>& events);

  // Instead of Commit: the step failed, so the requests in it end with kError.
  void Fail(const ScheduledBatch& batch, const absl::Status& why, std::vector<TokenEvent>& events);

  // Ends every request (drain deadline, device lost). Not between Schedule and Commit.
  void EndAll(FinishReason reason, const absl::Status& why, std::vector<TokenEvent>& events);

  bool idle() const { return requests_.empty(); }

  // While paused nothing is computed; requests are taken in, and their deadlines hold.
  void SetPaused(bool paused) { paused_ = paused; }
  bool paused() const { return paused_; }
  // The first deadline of a live request; max() if there is none.
  Clock::time_point next_deadline() const {
    return deadlines_.empty() ? Clock::time_point::max() : deadlines_.begin()->first;
  }

  // Between steps; all or nothing. A lower max_num_seqs preempts nobody. ERRORS: kInvalidArgument
  // naming field, value and limit: places and tokens of a step can't be more than at the start, as
  // the memory of a step was sized for these.
  absl::Status Update(const SchedulerUpdate& update);

  // Who guesses for requests of `method`; null takes it away. `proposer` outlives the scheduler or
  // is taken away. default_method: of requests that don't say.
  void SetProposer(SpeculationMethod method, Proposer* proposer);
  void SetDefaultSpeculation(SpeculationMethod method) { default_speculation_ = method; }
  // How text becomes tokens, for what grammars force (jump-forward); without it nothing is jumped.
  void SetTokenText(TokenText token_text) { token_text_ = std::move(token_text); }

  SchedulerStats stats() const;
  const DraftStats& draft_stats() const { return draft_control_.stats(); }
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

  // Recomputes the cache's invariants and S1-S4, S6, I10. Between steps. ERRORS: kInternal naming
  // the invariant and the values.
  absl::Status Audit() const;

 private:
  using SeqSet = std::map<OrderKey, LiveSeq>;
  // Who is in the batch, by its index.
  struct InFlight {
    LiveRequest* live = nullptr;
    Sequence* seq = nullptr;
    const Sequence* main = nullptr;  // of a fork that computes another chain of guesses for it
    int32_t chain = 0;               // which one
    bool forced = false;             // its guesses are what its grammar forces
  };

  // admission.cc: from a command to the queue, and out of it.
  void Admit(Submit submit, std::vector<TokenEvent>& events);
  absl::Status CanEverRun(const Request& request) const;
  static int32_t NumBranches(const Request& request);
  void CutBranch(const Finish& finish, std::vector<TokenEvent>& events);
  bool SharesPrefixes(const Request& request) const;
  std::string RootKey(const Request& request) const;
  std::string RootKey(const std::string& cache_salt, int32_t prompt_tokens,
                      RequestId private_to) const;
  RootId InternRoot(const Request& request);
  PageNeed WorstCase(const Request& request) const;

  // schedule.cc: one step.
  void ExpireDeadlines(std::vector<TokenEvent>& events);
  int32_t StepBudget() const;
  bool ScheduleRunning(ScheduledBatch& batch);  // false if somebody lacked pages
  void ScheduleWaiting(ScheduledBatch& batch, std::vector<TokenEvent>& events);
  void MakeWay(ScheduledBatch& batch, std::vector<TokenEvent>& events);
  int32_t TokensNow(const LiveSeq& s, int32_t budget_left, int32_t rows_left) const;
  static int32_t RowsOf(const LiveRequest& live, int32_t first_pos, int32_t num_tokens,
                        bool reaches_end);
  void AddToBatch(const LiveSeq& s, int32_t num_tokens, ScheduledBatch& batch);
  void Preempt(SeqSet::iterator victim);
  bool SwapPays(const Sequence& seq) const;

  // start.cc: from waiting to running.
  std::optional<LiveSeq> NextWaiting();
  bool Start(const LiveSeq& next, ScheduledBatch& batch, std::vector<TokenEvent>& events);
  void PreemptForPriority();
  bool IsBlockedStill();
  void NoteBlocked();
  std::optional<PrefixHit> FindInCache(const LiveSeq& s);
  PageNeed NeedToStart(const LiveSeq& next) const;
  bool FitsNow(const LiveSeq& next) const;
  int32_t KeptFree(size_t pool) const;
  int32_t CachedTokens(LiveRequest& live);

  // drafts.cc: guesses, in the batch and out of it.
  void PlanDrafts(ScheduledBatch& batch);
  void AddForced(size_t index, ScheduledBatch& batch);
  void Propose(SpeculationMethod method, ScheduledBatch& batch);
  void AddDrafts(size_t index, std::span<const DraftChain> chains, ScheduledBatch& batch);
  void CommitDrafts(std::span<const InFlight> in_flight, size_t index,
                    const std::function<std::span<const SampledRow>(size_t)>& rows_of,
                    std::vector<TokenEvent>& events);
  SpeculationMethod MethodFor(const Request& request) const;

  // commit.cc: what a step brought.
  void Measure(const ScheduledBatch& batch, const StepOutput& output);
  static void CheckRows(size_t index, const ScheduledSeq& planned,
                        std::span<const SampledRow> rows);
  void ForkBranches(const LiveSeq& parent);
  std::unique_ptr<Sequence> ForkSequence(LiveRequest& live, const Sequence& parent, int32_t branch);
  void AppendToken(const LiveSeq& s, const Sampled& sampled, std::vector<TokenEvent>& events);
  static absl::Status FollowGrammar(Sequence& seq, TokenId token);
  void SendPromptLogprobs(LiveRequest& live, std::span<const PromptRow> rows,
                          std::vector<TokenEvent>& events);
  void EndBranch(LiveRequest& live, int32_t branch, FinishReason reason, TokenEvent event,
                 std::vector<TokenEvent>& events);
  void EndRequest(LiveRequest& live, FinishReason reason, const absl::Status& why,
                  std::vector<TokenEvent>& events);
  void DropSequence(LiveRequest& live, int32_t branch);
  std::unique_ptr<Sequence> TakeOut(LiveRequest& live, int32_t branch);

  // beams.cc: branches that are beams.
  void TakeCandidates(const LiveSeq& s, const Sampled& sampled, std::vector<TokenEvent>& events);
  void AdvanceBeams(LiveRequest& live, std::vector<TokenEvent>& events);
  void EndBeams(LiveRequest& live, std::vector<TokenEvent>& events);
  void CollapseBeams(LiveRequest& live);
  void PutIn(LiveRequest& live, std::unique_ptr<Sequence> seq);

  SchedulerOptions options_;
  const int32_t max_seqs_at_start_;  // max_num_seqs
  const int32_t max_rows_;           // of logits in a step
  const int32_t max_step_tokens_;    // max_num_batched_tokens at the start
  BlockManager& blocks_;
  const Now now_;
  const Clock::time_point start_;

  absl::flat_hash_map<RequestId, std::unique_ptr<LiveRequest>> requests_;
  SeqSet running_;
  SeqSet waiting_;                                               // was running before
  RequestQueue queue_;                                           // never ran
  std::set<std::pair<Clock::time_point, RequestId>> deadlines_;  // of live requests that have one
  bool paused_ = false;
  // Whether the first that waits lacked pages, and how many were free then. Who is first may change
  // by commands and preemptions: then it is asked anew.
  static constexpr int32_t kStepsBlocked = 16;
  struct {
    bool by_pages = false;
    int32_t steps = 0;
    PageNeed available;
  } blocked_;

  // Between Schedule and Commit.
  std::vector<InFlight> in_flight_;
  int32_t step_budget_ = 0;
  int32_t rows_used_ = 0;
  Clock::time_point planned_at_{};

  StepCostFit cost_;
  SpeculationMethod default_speculation_ = SpeculationMethod::kNone;
  std::array<Proposer*, kNumSpeculationMethods> proposers_{};
  DraftControl draft_control_;
  TokenText token_text_;
  std::array<double, kNumSpeculationMethods> us_per_draft_{};  // what a guess takes a proposer
  double propose_us_ = 0;                                      // of this step
  std::vector<DraftPlan> draft_plans_;        // by index in the batch; reused every step
  std::vector<DraftRequest> draft_requests_;  // and these
  std::vector<size_t> draft_indices_;
  std::vector<std::unique_ptr<Sequence>> draft_forks_;  // between Schedule and Commit

  uint64_t next_order_ = 0;
  SequenceId next_sequence_ = 1;
  int32_t slots_taken_ = 0;  // places of the running set, see LiveRequest::slots
  int32_t queued_requests_ = 0;
  SchedulerStats counters_;  // gauges in it are unused
};

}  // namespace quire
