// scheduler/start.cc -- from waiting to running: who is next, what the cache has of him, and
// whether there is room.
#include <algorithm>

#include "scheduler/scheduler.h"

namespace quire {

// The first of those that were put back, or of the queue. A beam that was put back with its
// candidates needs nothing until its siblings have theirs, but nobody passes it: its request would
// wait for him later. So then only its siblings are next.
std::optional<LiveSeq> Scheduler::NextWaiting() {
  if (waiting_.empty()) {
    LiveRequest* const fresh = queue_.Next();
    if (fresh == nullptr) return std::nullopt;
    return LiveSeq{fresh, fresh->branches[0].seq.get()};
  }
  const auto& [first_key, first] = *waiting_.begin();
  if (!queue_.admitted_first()) {
    LiveRequest* const fresh = queue_.Next();
    if (fresh != nullptr) {
      const LiveSeq s{fresh, fresh->branches[0].seq.get()};
      if (fresh->key(*s.seq) < first_key) return s;
    }
  }
  for (auto it = waiting_.begin(); it != waiting_.end() && it->second.live == first.live; ++it) {
    if (!it->second.parked()) return it->second;
  }
  return std::nullopt;
}

// Moves `next` to the running set if there is a place for all its branches and pages for all its
// known tokens; else changes nothing.
bool Scheduler::Start(const LiveSeq& next, ScheduledBatch& batch, std::vector<TokenEvent>& events) {
  LiveRequest& live = *next.live;
  Sequence& seq = *next.seq;
  const Request& request = *live.request;
  if (slots_taken_ + live.slots() > options_.max_num_seqs && !running_.empty()) return false;

  std::optional<PrefixHit> hit = FindInCache(next);
  bool fits = false;
  bool lacks_pages = !hit;
  int32_t num_tokens = 0;
  if (hit) {
    seq.tables = std::move(hit->tables);
    seq.num_computed_tokens = hit->num_tokens;
    const bool waits = hit->num_tokens_next_step > hit->num_tokens && !batch.empty();
    // SwapIn has seen to the room already.
    const bool swapped_in = seq.swapped && hit->num_tokens == seq.swapped->num_computed;
    lacks_pages = !waits && !swapped_in && !running_.empty() && !FitsNow(next);
    if (!waits && !lacks_pages) {
      if (!seq.swapped && !live.wants_prompt_logprobs()) {
        const int32_t more = blocks_.ExtendPartially(seq.tables, seq.tokens);
        seq.num_computed_tokens += more;
        hit->num_tokens += more;
      }
      num_tokens = TokensNow(next, step_budget_ - batch.num_tokens, max_rows_ - rows_used_);
      const int32_t rows =
          RowsOf(live, seq.num_computed_tokens, num_tokens, num_tokens == next.num_remaining());
      if (num_tokens > 0 && rows_used_ + rows <= max_rows_) {
        fits = blocks_.Grow(seq.tables, seq.num_computed_tokens,
                            seq.num_computed_tokens + num_tokens, batch.copies);
        lacks_pages = !fits;
      }
    }
  }
  if (!fits) {
    CHECK(!running_.empty(), "I10: request {} doesn't fit alone", request.id);
    seq.tables = SequenceTables{};
    seq.num_computed_tokens = 0;
    if (lacks_pages) NoteBlocked();
    return false;
  }

  if (live.admitted) {
    waiting_.erase(live.key(seq));
    counters_.resume_hit_tokens += hit->num_tokens;
  } else {
    queue_.Erase(live);
    queue_.OnAdmitted(live);
    live.admitted = true;
    live.first_scheduled = now_();
    --queued_requests_;
    ++counters_.left_queue;
    counters_.prefix_query_tokens += seq.num_prompt_tokens();
    counters_.prefix_hit_tokens += hit->num_tokens;
    queue_.OnServed(live, seq.num_prompt_tokens() - hit->num_tokens, 0);
    RequestStats& stats = live.stats;
    stats.cached_tokens = hit->num_tokens;
    stats.queue_us = std::max<int64_t>(0, std::chrono::duration_cast<std::chrono::microseconds>(
                                              live.first_scheduled - request.arrival)
                                              .count());
    events.push_back({.request = request.id, .kind = TokenEvent::Kind::kAccepted, .stats = stats});
  }
  blocked_.by_pages = false;
  running_.emplace(live.key(seq), next);
  seq.status = SequenceStatus::kRunning;
  slots_taken_ += live.slots();
  if (seq.swapped) {
    counters_.swap_ins += seq.num_computed_tokens == seq.swapped->num_computed;
    seq.swapped.reset();
  }
  AddToBatch(next, num_tokens, batch);
  return true;
}

// Looking up a long prompt costs much more than a step's plan, and most steps give nothing back. So
// who didn't fit is looked at again when pages became free, and now and then: others may have
// computed what it needs. Without this the count of lookups would be of steps, too.
bool Scheduler::IsBlockedStill() {
  if (!blocked_.by_pages || running_.empty() || ++blocked_.steps >= kStepsBlocked) return false;
  const std::span<const PagePool> pools = std::as_const(blocks_).pools();
  for (size_t i = 0; i < pools.size(); ++i) {
    if (pools[i].num_available() > blocked_.available[i]) return false;
  }
  return true;
}

void Scheduler::NoteBlocked() {
  blocked_.by_pages = true;
  blocked_.steps = 0;
  blocked_.available.clear();
  for (const PagePool& pool : std::as_const(blocks_).pools()) {
    blocked_.available.push_back(pool.num_available());
  }
}

RootId Scheduler::InternRoot(const Request& request) {
  return blocks_.InternRoot(RootKey(request), /*keep=*/SharesPrefixes(request), request.cache_salt);
}

// What the cache has of a waiting sequence. nullopt: it was swapped out, and there is no room to
// load it.
std::optional<PrefixHit> Scheduler::FindInCache(const LiveSeq& s) {
  Sequence& seq = *s.seq;
  const Request& request = *s.live->request;
  // The root is looked up each time: it may have gone with the last page of a preempted request.
  const RootId root = InternRoot(request);
  const SequenceSpec spec{.prompt_tokens = seq.num_prompt_tokens(), .retention = request.retention};
  blocks_.ExtendChain(root, seq.tokens, seq.page_hashes);
  // Logits that a client waits for must be computed, whatever is cached.
  std::span<const TokenId> tokens = seq.tokens;
  if (s.live->wants_prompt_logprobs()) {
    tokens = tokens.first(static_cast<size_t>(s.live->num_prompt_logprobs) + 1);
  }
  const std::span<const PrefixHash> chain =
      std::span<const PrefixHash>(seq.page_hashes)
          .first(tokens.size() / static_cast<size_t>(blocks_.block_size()));
  if (!seq.swapped) return blocks_.MatchPrefix(root, tokens, chain, spec);
  // What must be free beside it: the pages of its next token, and the watermark.
  PageNeed spare(blocks_.pools().size());
  if (!running_.empty()) {
    for (size_t i = 0; i < spare.size(); ++i) spare[i] = KeptFree(i);
    for (const GroupLayout& g : blocks_.layout().groups) ++spare[static_cast<size_t>(g.pool)];
  }
  return blocks_.SwapIn(root, tokens, chain, *seq.swapped, spec, spare);
}

int32_t Scheduler::KeptFree(size_t pool) const {
  return static_cast<int32_t>(options_.watermark *
                              std::as_const(blocks_).pools()[pool].num_usable());
}

// Pages to compute `next` up to its known tokens and begin its branches.
PageNeed Scheduler::NeedToStart(const LiveSeq& next) const {
  return blocks_.WorstCasePages(next.seq->num_tokens(), 1, next.live->slots());
}

// Whether there is room for `next`, less what it holds, with the watermark left. An estimate that
// spares a fight for pages step by step; Grow has the last word.
bool Scheduler::FitsNow(const LiveSeq& next) const {
  PageNeed need = NeedToStart(next);
  const std::vector<GroupLayout>& groups = blocks_.layout().groups;
  for (size_t g = 0; g < groups.size() && !next.seq->tables.groups.empty(); ++g) {
    const std::span<const PageId> held = next.seq->tables.groups[g].ids();
    need[static_cast<size_t>(groups[g].pool)] -= static_cast<int32_t>(
        std::count_if(held.begin(), held.end(), [](PageId page) { return page != kNullPage; }));
  }
  const std::span<const PagePool> pools = std::as_const(blocks_).pools();
  for (size_t i = 0; i < pools.size(); ++i) {
    if (std::max(0, need[i]) > pools[i].num_available() - KeptFree(i)) return false;
  }
  return true;
}

// Before the step is planned: running sequences of lower priority than the next request, last in
// order first, make room for it; but only if that can be enough.
void Scheduler::PreemptForPriority() {
  const std::optional<LiveSeq> next = NextWaiting();
  if (!next) return;
  const OrderKey key = next->live->key(*next->seq);
  const int32_t priority = next->live->request->priority;
  const auto is_lower = [&](SeqSet::const_iterator it) {
    return it->first > key && it->second.live->request->priority < priority;
  };
  const auto has_room = [&] {
    return slots_taken_ + next->live->slots() <= options_.max_num_seqs && FitsNow(*next);
  };
  if (running_.empty() || !is_lower(std::prev(running_.end())) || has_room()) return;
  int32_t slots = options_.max_num_seqs - slots_taken_;
  const std::span<const PagePool> pools = std::as_const(blocks_).pools();
  PageNeed pages(pools.size());
  for (size_t i = 0; i < pools.size(); ++i) pages[i] = pools[i].num_available() - KeptFree(i);
  for (auto it = running_.end(); it != running_.begin() && is_lower(std::prev(it)); --it) {
    const LiveSeq& s = std::prev(it)->second;
    slots += s.live->slots();
    for (size_t g = 0; g < s.seq->tables.groups.size(); ++g) {
      const auto p = static_cast<size_t>(blocks_.layout().groups[g].pool);
      // What others hold, too, may stay with them: not counted, though they may all have to go.
      for (const PageId page : s.seq->tables.groups[g].ids()) {
        pages[p] += page != kNullPage && pools[p].refs(page) == 1;
      }
    }
  }
  const PageNeed need = NeedToStart(*next);
  if (slots < next->live->slots()) return;
  for (size_t i = 0; i < pools.size(); ++i) {
    if (need[i] > pages[i]) return;
  }
  while (!running_.empty() && is_lower(std::prev(running_.end())) && !has_room()) {
    Preempt(std::prev(running_.end()));
  }
}

// For the policy prefix_aware: blocks of the prompt that are in the index.
int32_t Scheduler::CachedTokens(LiveRequest& live) {
  if (live.wants_prompt_logprobs()) return 0;  // all of it is computed
  Sequence& seq = *live.branches[0].seq;
  const RootId root = InternRoot(*live.request);
  blocks_.ExtendChain(root, seq.tokens, seq.page_hashes);
  return blocks_.KnownTokens(root, seq.tokens, seq.page_hashes);
}

}  // namespace quire
