// scheduler/beams.cc -- branches that are beams: they wait for each other, then fork and reorder.
#include <algorithm>

#include "sampling/grammar.h"
#include "scheduler/beam.h"
#include "scheduler/scheduler.h"

namespace quire {

LiveRequest::LiveRequest() = default;
LiveRequest::~LiveRequest() = default;

// A beam has what it was computed for. It stays where it is, with its pages, until its siblings
// have theirs, too.
void Scheduler::TakeCandidates(const LiveSeq& s, const Sampled& sampled,
                               std::vector<TokenEvent>& events) {
  LiveRequest& live = *s.live;
  LiveBranch& branch = live.branches[static_cast<size_t>(s.seq->branch)];
  branch.candidates = sampled.top;
  branch.has_candidates = true;
  if (live.first_token == Clock::time_point{}) live.first_token = now_();
  live.last_token = now_();
  for (const LiveBranch& b : live.branches) {
    if (b.seq != nullptr && !b.has_candidates) return;
  }
  AdvanceBeams(live, events);
}

// The next beams, each with the pages of its parent. Only tables change hands: whoever writes into
// a page that a sibling still needs copies it then (contract C3).
void Scheduler::AdvanceBeams(LiveRequest& live, std::vector<TokenEvent>& events) {
  std::vector<std::vector<TokenLogprob>> rows;
  std::vector<std::unique_ptr<Sequence>> parents;
  for (int32_t b = 0; b < live.n(); ++b) {
    LiveBranch& branch = live.branches[static_cast<size_t>(b)];
    if (branch.seq == nullptr) continue;
    rows.push_back(std::move(branch.candidates));
    branch.candidates.clear();
    branch.has_candidates = false;
    std::unique_ptr<Sequence> seq = TakeOut(live, b);
    parents.push_back(std::move(seq));
  }
  live.forked = true;
  for (const std::unique_ptr<Sequence>& seq : parents) {
    if (seq->grammar == nullptr || seq->grammar->status().ok()) continue;
    const absl::Status why = seq->grammar->status();
    parents.clear();
    EndRequest(live, FinishReason::kError, why, events);
    return;
  }
  const std::vector<NextBeam> next = live.beam->Advance(rows);
  ++counters_.beam_steps;
  counters_.generated_tokens += static_cast<int64_t>(next.size());
  queue_.OnServed(live, 0, static_cast<int32_t>(next.size()));
  if (next.empty()) {
    parents.clear();
    EndBeams(live, events);
    return;
  }
  std::vector<int32_t> heirs(parents.size());
  for (const NextBeam& beam : next) ++heirs[static_cast<size_t>(beam.parent)];
  for (size_t i = 0; i < next.size(); ++i) {
    const auto p = static_cast<size_t>(next[i].parent);
    const auto branch = static_cast<int32_t>(i);
    std::unique_ptr<Sequence> seq;
    if (--heirs[p] > 0) {
      seq = ForkSequence(live, *parents[p], branch);
      ++counters_.beam_forks;
    } else {
      seq = std::move(parents[p]);
      seq->branch = branch;
    }
    seq->tokens.push_back(next[i].token);
    if (const absl::Status fits = FollowGrammar(*seq, next[i].token); !fits.ok()) {
      seq.reset();
      parents.clear();
      EndRequest(live, FinishReason::kError, fits, events);
      return;
    }
    PutIn(live, std::move(seq));
  }
  for (LiveBranch& branch : live.branches) {
    branch.num_output_tokens = 0;  // what is returned is decided in the end
  }
}

// Into its set, by its branch. Without a place it waits: some of its siblings had been put back, so
// the others have more heirs than places.
void Scheduler::PutIn(LiveRequest& live, std::unique_ptr<Sequence> seq) {
  const OrderKey key = live.key(*seq);
  if (seq->status == SequenceStatus::kRunning && slots_taken_ >= options_.max_num_seqs &&
      !running_.empty()) {
    seq->tables = SequenceTables{};
    seq->num_computed_tokens = 0;
    seq->status = SequenceStatus::kWaiting;
  }
  if (seq->status == SequenceStatus::kRunning) {
    running_.emplace(key, LiveSeq{&live, seq.get()});
    slots_taken_ += live.slots();
  } else {
    waiting_.emplace(key, LiveSeq{&live, seq.get()});
    blocked_.by_pages = false;
  }
  live.branches[static_cast<size_t>(seq->branch)].seq = std::move(seq);
}

// The search is over: its best sequences are the request's outputs, told token by token like
// others.
void Scheduler::EndBeams(LiveRequest& live, std::vector<TokenEvent>& events) {
  const std::vector<Hypothesis> best = live.beam->Best();
  if (best.empty()) {
    // Without any ban no logit was usable, which is no fault of the request's.
    const Request& request = *live.request;
    const bool is_bound = request.grammar != nullptr || !request.sampling.bad_words.empty() ||
                          !request.sampling.allowed_token_ids.empty();
    EndRequest(live, FinishReason::kError,
               Error(is_bound ? absl::StatusCode::kFailedPrecondition : absl::StatusCode::kInternal,
                     "no token may follow: all are banned by bad_words, allowed_token_ids or "
                     "guided; allow more"),
               events);
    return;
  }
  CollapseBeams(live);
  const RequestId id = live.request->id;
  const int32_t outputs = live.n();
  for (int32_t b = 0; b < outputs; ++b) {
    TokenEvent event{.request = id, .kind = TokenEvent::Kind::kFinished, .branch = b};
    if (b >= static_cast<int32_t>(best.size())) {  // there are no more different sequences
      EndBranch(live, b, FinishReason::kLength, std::move(event), events);
      continue;
    }
    const Hypothesis& h = best[static_cast<size_t>(b)];
    LiveBranch& branch = live.branches[static_cast<size_t>(b)];
    for (size_t i = 0; i < h.tokens.size(); ++i) {
      event = {.request = id, .kind = TokenEvent::Kind::kToken, .branch = b};
      event.sampled.token = h.tokens[i];
      event.sampled.logprob = h.logprobs[i];
      event.num_output_tokens = branch.num_output_tokens = static_cast<int32_t>(i) + 1;
      if (i + 1 < h.tokens.size()) events.push_back(event);
    }
    event.score = h.score;
    event.stop_token = h.stop_token;
    EndBranch(live, b, h.finish, std::move(event), events);
  }
}

// From beams to outputs: no sequence is left, and num_return_sequences branches are open.
void Scheduler::CollapseBeams(LiveRequest& live) {
  for (int32_t b = 0; b < live.n(); ++b) DropSequence(live, b);
  live.branches.clear();
  live.branches.resize(static_cast<size_t>(live.request->beam.num_return_sequences));
  live.num_open = live.n();
}

}  // namespace quire
