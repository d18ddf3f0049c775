// scheduler/commit.cc -- takes in what a step computed; the only place where branches fork and end.
#include <algorithm>

#include "sampling/grammar.h"
#include "scheduler/beam.h"
#include "scheduler/scheduler.h"

namespace quire {
namespace {

bool Contains(const std::vector<TokenId>& ids, TokenId token) {
  return std::find(ids.begin(), ids.end(), token) != ids.end();
}

int64_t Microseconds(Clock::time_point from, Clock::time_point to) {
  return std::max<int64_t>(
      0, std::chrono::duration_cast<std::chrono::microseconds>(to - from).count());
}

// The field whose ban the sequence's last token, `token`, breaks; empty if none. An end is none:
// where a grammar must end it may.
std::string_view BrokenBan(const Sequence& seq, TokenId token) {
  const SamplingParams& sampling = seq.request->sampling;
  const StopConditions& stop = seq.request->stop;
  if (Contains(stop.eos_token_ids, token) || Contains(stop.stop_token_ids, token)) return {};
  if (!sampling.allowed_token_ids.empty() && !Contains(sampling.allowed_token_ids, token)) {
    return "allowed_token_ids";
  }
  const std::vector<TokenId>& tokens = seq.tokens;
  for (const std::vector<TokenId>& word : sampling.bad_words) {
    if (word.size() <= tokens.size() && std::equal(word.rbegin(), word.rend(), tokens.rbegin())) {
      return "bad_words";
    }
  }
  return {};
}

}  // namespace

void Scheduler::Commit(const ScheduledBatch& batch, const StepOutput& output,
                       std::vector<TokenEvent>& events) {
  CHECK(in_flight_.size() == batch.seqs.size(), "batch of {} sequences, {} in flight",
        batch.seqs.size(), in_flight_.size());
  Measure(batch, output);
  std::vector<InFlight> in_flight;
  in_flight.swap(in_flight_);
  blocks_.Publish();
  // Where each sequence's rows begin; those of a fork are read with its main sequence.
  std::vector<size_t> first_row(batch.seqs.size() + 1);
  for (size_t i = 0; i < batch.seqs.size(); ++i) {
    const ScheduledSeq& s = batch.seqs[i];
    first_row[i + 1] = first_row[i] + static_cast<size_t>(s.num_samples + s.num_drafts);
  }
  CHECK(first_row.back() == output.rows.size(), "{} rows sampled, {} asked for", output.rows.size(),
        first_row.back());
  const auto rows_of = [&](size_t i) {
    return std::span<const SampledRow>(output.rows)
        .subspan(first_row[i], first_row[i + 1] - first_row[i]);
  };
  size_t prompt_row = 0;
  for (size_t i = 0; i < in_flight.size(); ++i) {
    const ScheduledSeq& planned = batch.seqs[i];
    CheckRows(i, planned, rows_of(i));
    if (in_flight[i].main != nullptr) continue;
    const LiveSeq s{in_flight[i].live, in_flight[i].seq};
    const auto num_prompt_rows = static_cast<size_t>(planned.num_prompt_logprobs);
    CHECK(prompt_row + num_prompt_rows <= output.prompt_rows.size(), "{} prompt rows, more asked",
          output.prompt_rows.size());
    SendPromptLogprobs(*s.live, std::span(output.prompt_rows).subspan(prompt_row, num_prompt_rows),
                       events);
    prompt_row += num_prompt_rows;
    if (planned.num_drafts > 0) {
      s.live->forked = true;  // only a single branch is guessed for before it has a token
      CommitDrafts(in_flight, i, rows_of, events);
      continue;
    }
    s.seq->num_computed_tokens += planned.num_tokens;
    blocks_.Commit(s.seq->tables, s.seq->tokens, s.seq->num_computed_tokens, s.seq->page_hashes);
    if (planned.num_samples == 0) continue;
    if (planned.num_candidates > 0) {
      TakeCandidates(s, rows_of(i)[0].sampled, events);
      continue;
    }
    if (!s.live->forked) ForkBranches(s);
    // A branch may end with its first token and take the request along, but never before the row of
    // the last open branch, so `live` is good for all rows.
    LiveRequest& live = *s.live;
    for (const SampledRow& row : rows_of(i)) {
      const auto branch = static_cast<size_t>(row.branch);
      AppendToken({&live, live.branches[branch].seq.get()}, row.sampled, events);
    }
  }
  draft_forks_.clear();
}

void Scheduler::CheckRows(size_t index, const ScheduledSeq& planned,
                          std::span<const SampledRow> rows) {
  for (size_t k = 0; k < rows.size(); ++k) {
    const SampledRow& r = rows[k];
    const auto at = static_cast<int32_t>(k);
    const int32_t branch = planned.seq->branch + (planned.num_drafts > 0 ? 0 : at);
    const int32_t draft = planned.num_drafts > 0 ? at : 0;
    CHECK(r.seq_index == static_cast<int32_t>(index) && r.branch == branch && r.draft == draft,
          "row of sequence {} branch {} draft {}, asked for {} branch {} draft {}", r.seq_index,
          r.branch, r.draft, index, branch, draft);
  }
}

// What steps cost, for choices that change no output.
void Scheduler::Measure(const ScheduledBatch& batch, const StepOutput& output) {
  const double us = std::chrono::duration<double, std::micro>(now_() - planned_at_).count();
  cost_.OnStep(batch.num_tokens, std::max(0.0, us - output.page_ops_us - propose_us_));
  const bool decodes = std::all_of(batch.seqs.begin(), batch.seqs.end(), [](const auto& s) {
    return s.num_samples == 1 && s.num_tokens == 1 + s.num_drafts;
  });
  const double own_us = us - output.page_ops_us - propose_us_;
  if (decodes && own_us > 0) cost_.OnDecodeStep(batch.num_tokens, own_us);
  cost_.OnPageOps(static_cast<int64_t>(batch.copies.size()), output.page_ops_us);
}

// The prompt is in the cache: the other branches become second owners of its pages.
void Scheduler::ForkBranches(const LiveSeq& parent) {
  LiveRequest& live = *parent.live;
  live.forked = true;  // n places for one sequence become one place for each of n
  for (int32_t b = 1; b < live.n(); ++b) {
    auto child = ForkSequence(live, *parent.seq, b);
    running_.emplace(live.key(*child), LiveSeq{&live, child.get()});
    live.branches[static_cast<size_t>(b)].seq = std::move(child);
    ++counters_.forks;
  }
}

// A second owner of a sequence's pages, in no set yet. If the parent waits, so does the fork: it
// has tokens only.
std::unique_ptr<Sequence> Scheduler::ForkSequence(LiveRequest& live, const Sequence& parent,
                                                  int32_t branch) {
  auto child = std::make_unique<Sequence>();
  child->id = next_sequence_++;
  child->request = live.request;
  child->branch = branch;
  child->tokens = parent.tokens;
  child->num_computed_tokens = parent.num_computed_tokens;
  child->status = parent.status;
  child->page_hashes = parent.page_hashes;
  if (parent.grammar != nullptr) {
    child->grammar = std::make_shared<GrammarMatcher>(parent.grammar->Fork());
  }
  if (parent.status == SequenceStatus::kRunning) child->tables = blocks_.Fork(parent.tables);
  return child;
}

void Scheduler::SendPromptLogprobs(LiveRequest& live, std::span<const PromptRow> rows,
                                   std::vector<TokenEvent>& events) {
  if (rows.empty()) return;
  TokenEvent event{.request = live.request->id, .kind = TokenEvent::Kind::kPromptLogprobs};
  for (const PromptRow& row : rows) {
    CHECK(row.position == ++live.num_prompt_logprobs, "prompt logprob of position {}, {} are sent",
          row.position, live.num_prompt_logprobs - 1);
    event.prompt_logprobs.push_back({.position = row.position, .logprob = row.logprob});
  }
  events.push_back(std::move(event));
}

void Scheduler::AppendToken(const LiveSeq& s, const Sampled& sampled,
                            std::vector<TokenEvent>& events) {
  const StopConditions& stop = s.live->request->stop;
  const Clock::time_point now = now_();
  if (s.live->first_token == Clock::time_point{}) s.live->first_token = now;
  s.live->last_token = now;
  ++counters_.generated_tokens;

  s.seq->tokens.push_back(sampled.token);
  queue_.OnServed(*s.live, 0, 1);
  Proposer* const proposer = proposers_[static_cast<size_t>(MethodFor(*s.live->request))];
  if (proposer != nullptr) proposer->OnTokens(*s.seq, std::span(s.seq->tokens).last(1));
  const int32_t branch = s.seq->branch;
  const int32_t num_output = s.seq->num_output_tokens();
  s.live->branches[static_cast<size_t>(branch)].num_output_tokens = num_output;
  TokenEvent event{.request = s.live->request->id,
                   .kind = TokenEvent::Kind::kToken,
                   .branch = branch,
                   .sampled = sampled,
                   .num_output_tokens = num_output};
  // The sampler bans stop tokens before min_tokens new ones; one that comes all the same (an
  // allow-list of nothing else) is a token like others.
  // With a grammar an end is only chosen where it may come, or where nothing else may.
  const bool may_stop =
      num_output > s.live->request->sampling.min_tokens || s.seq->grammar != nullptr;
  // First of all: a grammar that failed allows nothing but an end, which would look like a good
  // one.
  if (const absl::Status fits = FollowGrammar(*s.seq, sampled.token); !fits.ok()) {
    event.error = fits;
    EndBranch(*s.live, branch, FinishReason::kError, std::move(event), events);
  } else if (may_stop && (Contains(stop.eos_token_ids, sampled.token) ||
                          Contains(stop.stop_token_ids, sampled.token))) {
    event.stop_token = sampled.token;
    EndBranch(*s.live, branch, FinishReason::kStop, std::move(event), events);
  } else if (s.seq->grammar != nullptr && stop.eos_token_ids.empty() && s.seq->grammar->MustEnd()) {
    EndBranch(*s.live, branch, FinishReason::kStop, std::move(event), events);
  } else if (num_output >= stop.max_tokens) {
    EndBranch(*s.live, branch, FinishReason::kLength, std::move(event), events);
  } else {
    events.push_back(std::move(event));
  }
}

// ERRORS: kFailedPrecondition if the request's own bans left nothing that the grammar allows: the
// sampler then takes what the grammar has. kInternal: the token is not one that the grammar allows,
// which only a row without any usable logit brings. Whatever the matcher says of a grammar that
// costs too much.
absl::Status Scheduler::FollowGrammar(Sequence& seq, TokenId token) {
  if (seq.grammar == nullptr) return absl::OkStatus();
  RETURN_IF_ERROR(seq.grammar->status());
  const std::string_view broken = BrokenBan(seq, token);
  if (!broken.empty()) {
    return Error(absl::StatusCode::kFailedPrecondition,
                 "{} and guided leave no token after {} tokens of output; allow more tokens, or "
                 "give one of the two",
                 broken, seq.num_output_tokens() - 1);
  }
  if (!seq.grammar->Accept(token)) {
    RETURN_IF_ERROR(seq.grammar->status());
    return Error(absl::StatusCode::kInternal,
                 "no token that the grammar allows has a usable logit after {} tokens of output",
                 seq.num_output_tokens() - 1);
  }
  return seq.grammar->status();
}

// Sends `event` as the branch's last and frees its pages at once. With the last open branch the
// request is gone, and `live` with it.
void Scheduler::EndBranch(LiveRequest& live, int32_t branch, FinishReason reason, TokenEvent event,
                          std::vector<TokenEvent>& events) {
  LiveBranch& ended = live.branches[static_cast<size_t>(branch)];
  CHECK(ended.finish == FinishReason::kNone, "branch {} ended twice", branch);
  const RequestId id = live.request->id;
  DropSequence(live, branch);
  ended.finish = reason;
  --live.num_open;
  event.request = id;
  event.branch = branch;
  event.num_output_tokens = ended.num_output_tokens;
  event.finish = reason;
  if (live.num_open > 0) {
    events.push_back(std::move(event));
    return;
  }

  RequestStats& stats = live.stats;
  for (const LiveBranch& b : live.branches) stats.completion_tokens += b.num_output_tokens;
  if (!live.admitted) {
    stats.queue_us = Microseconds(live.request->arrival, now_());
    --queued_requests_;
    ++counters_.left_queue;
  } else if (live.first_token == Clock::time_point{}) {
    stats.prefill_us = Microseconds(live.first_scheduled, now_());
  } else {
    stats.prefill_us = Microseconds(live.first_scheduled, live.first_token);
    stats.decode_us = Microseconds(live.first_token, live.last_token);
  }
  event.request_done = true;
  event.stats = stats;
  events.push_back(std::move(event));
  ++counters_.finished[static_cast<size_t>(reason)];
  if (live.request->deadline != Clock::time_point::max()) {
    deadlines_.erase({live.request->deadline, id});
  }
  requests_.erase(id);
}

// Every open branch gets its last event; the last of them ends the request.
void Scheduler::EndRequest(LiveRequest& live, FinishReason reason, const absl::Status& why,
                           std::vector<TokenEvent>& events) {
  if (live.beam != nullptr) CollapseBeams(live);
  const int32_t n = live.n();
  int32_t open = live.num_open;
  for (int32_t b = 0; b < n && open > 0; ++b) {
    if (live.branches[static_cast<size_t>(b)].finish != FinishReason::kNone) continue;
    TokenEvent event{.kind = TokenEvent::Kind::kFinished, .error = why};
    EndBranch(live, b, reason, std::move(event), events);
    --open;
  }
}

// The one way out of the running set and the queue: its destructor gives back the pages.
void Scheduler::DropSequence(LiveRequest& live, int32_t branch) {
  if (live.branches[static_cast<size_t>(branch)].seq == nullptr) return;
  const std::unique_ptr<Sequence> seq = TakeOut(live, branch);
  for (Proposer* const proposer : proposers_) {
    if (proposer != nullptr) proposer->OnEnd(seq->id);
  }
  draft_control_.OnEnd(seq->id);
}

// Takes a sequence out of its set, with its pages.
std::unique_ptr<Sequence> Scheduler::TakeOut(LiveRequest& live, int32_t branch) {
  std::unique_ptr<Sequence> seq = std::move(live.branches[static_cast<size_t>(branch)].seq);
  if (seq->status == SequenceStatus::kRunning) {
    running_.erase(live.key(*seq));
    slots_taken_ -= live.slots();
  } else {
    blocked_.by_pages = false;  // it may have been the first
    if (live.admitted) {
      waiting_.erase(live.key(*seq));
    } else {
      queue_.Erase(live);
    }
  }
  return seq;
}

void Scheduler::Fail(const ScheduledBatch& batch, const absl::Status& why,
                     std::vector<TokenEvent>& events) {
  CHECK(in_flight_.size() == batch.seqs.size(), "batch of {} sequences, {} in flight",
        batch.seqs.size(), in_flight_.size());
  // By id: several sequences may be of one request.
  std::vector<RequestId> failed;
  for (const InFlight& s : in_flight_) failed.push_back(s.live->request->id);
  in_flight_.clear();
  draft_forks_.clear();
  blocks_.Abandon();
  for (const RequestId id : failed) {
    const auto it = requests_.find(id);
    if (it != requests_.end()) EndRequest(*it->second, FinishReason::kError, why, events);
  }
}

void Scheduler::EndAll(FinishReason reason, const absl::Status& why,
                       std::vector<TokenEvent>& events) {
  CHECK(in_flight_.empty(), "EndAll during a step");
  std::vector<std::pair<uint64_t, LiveRequest*>> all;
  all.reserve(requests_.size());
  for (const auto& [id, live] : requests_) all.emplace_back(live->order, live.get());
  std::sort(all.begin(), all.end());
  for (const auto& [order, live] : all) EndRequest(*live, reason, why, events);
}

}  // namespace quire
