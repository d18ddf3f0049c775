// scheduler/schedule.cc -- plans one step: who computes how many tokens, and who must give way.
#include <algorithm>

#include "scheduler/scheduler.h"

namespace quire {

ScheduledBatch Scheduler::Schedule(std::vector<TokenEvent>& events) {
  CHECK(in_flight_.empty(), "the step before was neither committed nor failed");
  ExpireDeadlines(events);
  blocks_.SetTime(now_ms());
  ScheduledBatch batch;
  // When somebody lacked pages, those that are free now are his: the victim, first in the queue,
  // would only take them back.
  if (ScheduleRunning(batch)) ScheduleWaiting(batch, events);
  CHECK(!batch.empty() || idle(), "I10: nothing can run, {} requests wait", requests_.size());
  if (batch.empty()) return batch;  // what operators caused stays due
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

bool Scheduler::ScheduleRunning(ScheduledBatch& batch) {
  bool all_fit = true;
  for (auto it = running_.begin(); it != running_.end(); ++it) {
    const LiveSeq s = it->second;
    const int32_t num_tokens =
        std::min(s.num_remaining(), options_.max_num_batched_tokens - batch.num_tokens);
    const int32_t first = s.seq->num_computed_tokens;
    bool fits = blocks_.Grow(s.seq->tables, first, first + num_tokens, batch.copies);
    while (!fits && std::next(it) != running_.end()) {
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
  while (!waiting_.empty() && batch.num_tokens < options_.max_num_batched_tokens &&
         StartFirstWaiting(batch, events)) {
  }
}

// Moves the first of the queue to the running set if there is a place for all its branches and
// pages for all its known tokens; else changes nothing.
bool Scheduler::StartFirstWaiting(ScheduledBatch& batch, std::vector<TokenEvent>& events) {
  const LiveSeq s = waiting_.begin()->second;
  Sequence& seq = *s.seq;
  const Request& request = *s.live->request;
  if (slots_taken_ + s.live->slots() > options_.max_num_seqs) return false;

  std::optional<PrefixHit> hit = FindInCache(s);
  bool fits = false;
  int32_t num_tokens = 0;
  if (hit) {
    seq.tables = std::move(hit->tables);
    seq.num_computed_tokens = hit->num_tokens;
    const bool waits = hit->num_tokens_next_step > hit->num_tokens && !batch.empty();
    fits = !waits && (running_.empty() || FitsNow(s));
    if (fits && !seq.swapped) {
      const int32_t more = blocks_.ExtendPartially(seq.tables, seq.tokens);
      seq.num_computed_tokens += more;
      hit->num_tokens += more;
    }
    num_tokens = std::min(s.num_remaining(), options_.max_num_batched_tokens - batch.num_tokens);
    fits = fits && blocks_.Grow(seq.tables, seq.num_computed_tokens,
                                seq.num_computed_tokens + num_tokens, batch.copies);
  }
  if (!fits) {
    CHECK(!running_.empty(), "I10: request {} doesn't fit alone", request.id);
    seq.tables = SequenceTables{};
    seq.num_computed_tokens = 0;
    return false;
  }

  waiting_.erase(waiting_.begin());
  running_.emplace(s.live->key(seq), s);
  seq.status = SequenceStatus::kRunning;
  slots_taken_ += s.live->slots();
  if (seq.swapped) {
    counters_.swap_ins += seq.num_computed_tokens == seq.swapped->num_computed;
    seq.swapped.reset();
  }
  if (s.live->admitted) {
    counters_.resume_hit_tokens += hit->num_tokens;
  } else {
    s.live->admitted = true;
    s.live->first_scheduled = now_();
    --queued_requests_;
    ++counters_.left_queue;
    counters_.prefix_query_tokens += seq.num_prompt_tokens();
    counters_.prefix_hit_tokens += hit->num_tokens;
    RequestStats& stats = s.live->stats;
    stats.cached_tokens = hit->num_tokens;
    stats.queue_us = std::max<int64_t>(0, std::chrono::duration_cast<std::chrono::microseconds>(
                                              s.live->first_scheduled - request.arrival)
                                              .count());
    events.push_back({.request = request.id, .kind = TokenEvent::Kind::kAccepted, .stats = stats});
  }
  AddToBatch(s, num_tokens, batch);
  return true;
}

// What the cache has of the first waiting sequence. nullopt: it was swapped out, and there is no
// room to load it.
std::optional<PrefixHit> Scheduler::FindInCache(const LiveSeq& s) {
  Sequence& seq = *s.seq;
  const Request& request = *s.live->request;
  // The root is looked up each time: it may have gone with the last page of a preempted request.
  const RootId root =
      blocks_.InternRoot(RootKey(request), /*keep=*/SharesPrefixes(request), request.cache_salt);
  const SequenceSpec spec{.prompt_tokens = seq.num_prompt_tokens(), .retention = request.retention};
  blocks_.ExtendChain(root, seq.tokens, seq.page_hashes);
  if (!seq.swapped) return blocks_.MatchPrefix(root, seq.tokens, seq.page_hashes, spec);
  return blocks_.SwapIn(root, seq.tokens, seq.page_hashes, *seq.swapped, spec);
}

// Whether `next` can be computed up to its known tokens and begin its branches, with the watermark
// left. An estimate that spares a fight for pages step by step; Grow has the last word.
bool Scheduler::FitsNow(const LiveSeq& next) const {
  PageNeed need = blocks_.WorstCasePages(next.seq->num_tokens(), 1, next.live->slots());
  const std::vector<GroupLayout>& groups = blocks_.layout().groups;
  for (size_t g = 0; g < groups.size(); ++g) {
    const std::span<const PageId> held = next.seq->tables.groups[g].ids();
    need[static_cast<size_t>(groups[g].pool)] -= static_cast<int32_t>(
        std::count_if(held.begin(), held.end(), [](PageId page) { return page != kNullPage; }));
  }
  const std::span<const PagePool> pools = std::as_const(blocks_).pools();
  for (size_t i = 0; i < pools.size(); ++i) {
    const auto kept = static_cast<int32_t>(options_.watermark * pools[i].num_usable());
    if (std::max(0, need[i]) > pools[i].num_available() - kept) return false;
  }
  return true;
}

void Scheduler::AddToBatch(const LiveSeq& s, int32_t num_tokens, ScheduledBatch& batch) {
  const bool reaches_end = num_tokens == s.num_remaining();
  blocks_.Announce(s.seq->tables, s.seq->tokens, s.seq->num_computed_tokens + num_tokens,
                   s.seq->page_hashes);
  batch.seqs.push_back({.seq = s.seq,
                        .first_pos = s.seq->num_computed_tokens,
                        .num_tokens = num_tokens,
                        .num_samples = reaches_end ? s.live->slots() : 0});
  batch.num_tokens += num_tokens;
  in_flight_.push_back(s);
}

// Its tokens and page hashes stay; pages that are still cached are found again when it comes back,
// and those that were saved are loaded.
void Scheduler::Preempt(SeqSet::iterator victim) {
  const LiveSeq s = victim->second;
  const OrderKey key = victim->first;
  running_.erase(victim);
  slots_taken_ -= s.live->slots();
  if (options_.preemption == PreemptionMode::kSwap) {
    s.seq->swapped = blocks_.SwapOut(s.seq->tables, s.seq->num_computed_tokens);
    counters_.swapped_preemptions += s.seq->swapped.has_value();
  }
  s.seq->tables = SequenceTables{};
  s.seq->num_computed_tokens = 0;
  s.seq->status = SequenceStatus::kWaiting;
  waiting_.emplace(key, s);
  ++s.live->stats.preemptions;
  ++counters_.preemptions;
}

}  // namespace quire
