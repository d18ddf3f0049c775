// scheduler/schedule.cc -- plans one step: who computes how many tokens, and who must give way.
#include <algorithm>

#include "scheduler/beam.h"
#include "scheduler/scheduler.h"

namespace quire {
namespace {

// With a step time goal a prompt still gets so many tokens in a step: smaller chunks cost more than
// they save.
constexpr int32_t kLeastChunk = 16;

}  // namespace

ScheduledBatch Scheduler::Schedule(std::vector<TokenEvent>& events) {
  CHECK(in_flight_.empty(), "the step before was neither committed nor failed");
  ExpireDeadlines(events);
  blocks_.SetTime(now_ms());
  ScheduledBatch batch;
  if (paused_ || idle()) return batch;
  planned_at_ = now_();
  rows_used_ = 0;
  propose_us_ = 0;
  if (queue_.may_preempt()) PreemptForPriority();
  step_budget_ = StepBudget();
  // When somebody lacked pages, those that are free now are his: the victim, first in the queue,
  // would only take them back.
  const bool all_fit = ScheduleRunning(batch);
  if (all_fit) ScheduleWaiting(batch, events);
  if (batch.empty()) MakeWay(batch, events);
  if (all_fit) PlanDrafts(batch);
  // Of those who found something in the host tier and had to wait all the same.
  for (const PageCopy& op : blocks_.TakeOps()) batch.copies.push_back(op);
  ++counters_.steps;
  counters_.scheduled_tokens += batch.num_tokens;
  counters_.page_copies += std::count_if(batch.copies.begin(), batch.copies.end(),
                                         [](const PageCopy& c) { return c.op == PageOp::kCopy; });
  return batch;
}

void Scheduler::ExpireDeadlines(std::vector<TokenEvent>& events) {
  if (deadlines_.empty()) return;
  const Clock::time_point now = now_();
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    const auto it = requests_.find(deadlines_.begin()->second);
    EndRequest(*it->second, FinishReason::kDeadline, absl::OkStatus(), events);
  }
}

// Tokens of this step: each running sequence gets one, whatever the goal.
int32_t Scheduler::StepBudget() const {
  int32_t budget = options_.max_num_batched_tokens;
  const auto running = static_cast<int32_t>(running_.size());
  if (options_.target_step_ms > 0 && counters_.steps > 0) {
    const int32_t within = cost_.TokensWithin(options_.target_step_ms * 1e3);
    budget = std::clamp(within, std::min(running + kLeastChunk, budget), budget);
  }
  return std::max(budget, running);
}

// How many tokens of `s` a step with so much left computes.
int32_t Scheduler::TokensNow(const LiveSeq& s, int32_t budget_left, int32_t rows_left) const {
  int32_t num_tokens = std::min(s.num_remaining(), budget_left);
  if (options_.long_prefill_token_threshold > 0) {
    num_tokens = std::min(num_tokens, options_.long_prefill_token_threshold);
  }
  // Each prompt token that is asked about takes a row of logits; some are left for those that wait.
  if (s.live->wants_prompt_logprobs()) {
    const bool others = !waiting_.empty() || !queue_.empty();
    num_tokens = std::min(num_tokens, std::max(1, rows_left - (others ? max_rows_ / 4 : 0)));
    num_tokens = std::min(num_tokens, rows_left);
  }
  return num_tokens;
}

int32_t Scheduler::RowsOf(const LiveRequest& live, int32_t first_pos, int32_t num_tokens,
                          bool reaches_end) {
  int32_t rows = reaches_end ? 1 : 0;
  if (live.wants_prompt_logprobs()) {
    const int32_t prompt = static_cast<int32_t>(live.request->prompt.size());
    const int32_t first = std::max(first_pos, live.num_prompt_logprobs);
    rows += std::max(0, std::min(first_pos + num_tokens, prompt - 1) - first);
  }
  return rows;
}

bool Scheduler::ScheduleRunning(ScheduledBatch& batch) {
  bool all_fit = true;
  int32_t behind = 0;  // running sequences that were not served yet
  for (const auto& [key, s] : running_) behind += !s.parked();
  for (auto it = running_.begin(); it != running_.end(); ++it) {
    const LiveSeq s = it->second;
    if (s.parked()) continue;
    --behind;
    const int32_t num_tokens =
        TokensNow(s, step_budget_ - batch.num_tokens - behind, max_rows_ - rows_used_ - behind);
    CHECK(num_tokens > 0, "request {} gets no token of {}", s.live->request->id, step_budget_);
    const int32_t first = s.seq->num_computed_tokens;
    bool fits = blocks_.Grow(s.seq->tables, first, first + num_tokens, batch.copies);
    while (!fits && std::next(it) != running_.end()) {
      behind -= !std::prev(running_.end())->second.parked();
      Preempt(std::prev(running_.end()));
      all_fit = false;
      fits = blocks_.Grow(s.seq->tables, first, first + num_tokens, batch.copies);
    }
    if (fits) {
      AddToBatch(s, num_tokens, batch);
    } else {
      // The last in order keeps its pages and waits for those before it; they will preempt it if
      // they need them. Alone it can't fail: its worst case fits in the pool.
      CHECK(it != running_.begin(), "I10: request {} doesn't fit alone", s.live->request->id);
      all_fit = false;
    }
  }
  return all_fit;
}

void Scheduler::ScheduleWaiting(ScheduledBatch& batch, std::vector<TokenEvent>& events) {
  if (IsBlockedStill()) return;
  while (batch.num_tokens < step_budget_ && slots_taken_ < options_.max_num_seqs) {
    const std::optional<LiveSeq> next = NextWaiting();
    if (!next || !Start(*next, batch, events)) return;
  }
}

// Nobody who runs has anything to compute, or room for it: parked beams hold the places or pages
// that their siblings need. The last in order give way until the next can start; alone it can.
void Scheduler::MakeWay(ScheduledBatch& batch, std::vector<TokenEvent>& events) {
  while (batch.empty()) {
    const std::optional<LiveSeq> next = NextWaiting();
    CHECK(next, "I10: nothing can run, {} requests wait", requests_.size());
    if (Start(*next, batch, events)) return;
    CHECK(!running_.empty(), "I10: request {} doesn't fit alone", next->live->request->id);
    Preempt(std::prev(running_.end()));
  }
}

void Scheduler::AddToBatch(const LiveSeq& s, int32_t num_tokens, ScheduledBatch& batch) {
  const bool reaches_end = num_tokens == s.num_remaining();
  const int32_t first = s.seq->num_computed_tokens;
  blocks_.Announce(s.seq->tables, s.seq->tokens, first + num_tokens, s.seq->page_hashes);
  const bool beams = s.live->beam != nullptr;
  const int32_t rows = RowsOf(*s.live, first, num_tokens, reaches_end);
  batch.seqs.push_back({.seq = s.seq,
                        .first_pos = first,
                        .num_tokens = num_tokens,
                        .num_samples = !reaches_end ? 0
                                       : beams      ? 1
                                                    : s.live->slots(),
                        .num_candidates = reaches_end && beams ? s.live->beam->num_candidates() : 0,
                        .first_prompt_logprob = std::max(first, s.live->num_prompt_logprobs),
                        .num_prompt_logprobs = rows - (reaches_end ? 1 : 0)});
  batch.num_tokens += num_tokens;
  rows_used_ += rows;
  in_flight_.push_back({s.live, s.seq});
}

// Its tokens, page hashes and candidates stay; pages that are still cached are found again when it
// comes back, and those that were saved are loaded.
void Scheduler::Preempt(SeqSet::iterator victim) {
  const LiveSeq s = victim->second;
  const OrderKey key = victim->first;
  running_.erase(victim);
  slots_taken_ -= s.live->slots();
  if (options_.preemption == PreemptionMode::kSwap ||
      (options_.preemption == PreemptionMode::kAuto && SwapPays(*s.seq))) {
    s.seq->swapped = blocks_.SwapOut(s.seq->tables, s.seq->num_computed_tokens);
    counters_.swapped_preemptions += s.seq->swapped.has_value();
  }
  s.seq->tables = SequenceTables{};
  s.seq->num_computed_tokens = 0;
  s.seq->status = SequenceStatus::kWaiting;
  waiting_.emplace(key, s);
  blocked_.by_pages = false;
  ++s.live->stats.preemptions;
  ++counters_.preemptions;
}

// Whether writing the sequence's pages out and back takes less time than computing them again.
bool Scheduler::SwapPays(const Sequence& seq) const {
  int64_t pages = 0;
  for (const PageTable& table : seq.tables.groups) pages += table.num_pages();
  const double swap_us = 2.0 * static_cast<double>(pages) * cost_.us_per_page_op();
  return swap_us < seq.num_computed_tokens * cost_.us_per_token();
}

}  // namespace quire
