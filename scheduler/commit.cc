// scheduler/commit.cc -- takes in what a step computed; the only place where branches fork and end.
#include <algorithm>

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

}  // namespace

void Scheduler::Commit(const ScheduledBatch& batch, const StepOutput& output,
                       std::vector<TokenEvent>& events) {
  CHECK(in_flight_.size() == batch.seqs.size(), "batch of {} sequences, {} in flight",
        batch.seqs.size(), in_flight_.size());
  std::vector<LiveSeq> in_flight;
  in_flight.swap(in_flight_);
  blocks_.Publish();
  size_t row = 0;
  for (size_t i = 0; i < in_flight.size(); ++i) {
    const LiveSeq s = in_flight[i];
    const int32_t num_samples = batch.seqs[i].num_samples;
    s.seq->num_computed_tokens += batch.seqs[i].num_tokens;
    blocks_.Commit(s.seq->tables, s.seq->tokens, s.seq->num_computed_tokens, s.seq->page_hashes);
    if (num_samples == 0) continue;
    if (!s.live->forked) ForkBranches(s);
    // A branch may end with its first token and take the request along, but never before the row of
    // the last open branch, so `live` is good for all rows.
    LiveRequest& live = *s.live;
    const int32_t first_branch = s.seq->branch;
    for (int32_t k = 0; k < num_samples; ++k, ++row) {
      CHECK(row < output.rows.size(), "{} rows sampled, more were asked for", output.rows.size());
      const SampledRow& r = output.rows[row];
      const int32_t branch = first_branch + k;
      CHECK(r.seq_index == static_cast<int32_t>(i) && r.branch == branch,
            "row {} is of sequence {} branch {}, asked for {} branch {}", row, r.seq_index,
            r.branch, i, branch);
      AppendToken({&live, live.branches[static_cast<size_t>(branch)].seq.get()}, r.sampled, events);
    }
  }
  CHECK(row == output.rows.size(), "{} rows sampled, {} asked for", output.rows.size(), row);
}

// The prompt is in the cache: the other branches become second owners of its pages.
void Scheduler::ForkBranches(const LiveSeq& parent) {
  LiveRequest& live = *parent.live;
  live.forked = true;  // n places for one sequence become one place for each of n
  for (int32_t b = 1; b < live.n(); ++b) {
    auto child = std::make_unique<Sequence>();
    child->id = next_sequence_++;
    child->request = live.request;
    child->branch = b;
    child->tokens = parent.seq->tokens;
    child->num_computed_tokens = parent.seq->num_computed_tokens;
    child->status = SequenceStatus::kRunning;
    child->page_hashes = parent.seq->page_hashes;
    child->tables = blocks_.Fork(parent.seq->tables);
    running_.emplace(live.key(*child), LiveSeq{&live, child.get()});
    live.branches[static_cast<size_t>(b)].seq = std::move(child);
    ++counters_.forks;
  }
}

void Scheduler::AppendToken(const LiveSeq& s, const Sampled& sampled,
                            std::vector<TokenEvent>& events) {
  const StopConditions& stop = s.live->request->stop;
  const Clock::time_point now = now_();
  if (s.live->first_token == Clock::time_point{}) s.live->first_token = now;
  s.live->last_token = now;
  ++counters_.generated_tokens;

  s.seq->tokens.push_back(sampled.token);
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
  const bool may_stop = num_output > s.live->request->sampling.min_tokens;
  if (may_stop && (Contains(stop.eos_token_ids, sampled.token) ||
                   Contains(stop.stop_token_ids, sampled.token))) {
    event.stop_token = sampled.token;
    EndBranch(*s.live, branch, FinishReason::kStop, std::move(event), events);
  } else if (num_output >= stop.max_tokens) {
    EndBranch(*s.live, branch, FinishReason::kLength, std::move(event), events);
  } else {
    events.push_back(std::move(event));
  }
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
  std::unique_ptr<Sequence> seq = std::move(live.branches[static_cast<size_t>(branch)].seq);
  if (seq == nullptr) return;
  if (seq->status == SequenceStatus::kRunning) {
    running_.erase(live.key(*seq));
    slots_taken_ -= live.slots();
  } else {
    waiting_.erase(live.key(*seq));
  }
}

void Scheduler::Fail(const ScheduledBatch& batch, const absl::Status& why,
                     std::vector<TokenEvent>& events) {
  CHECK(in_flight_.size() == batch.seqs.size(), "batch of {} sequences, {} in flight",
        batch.seqs.size(), in_flight_.size());
  // By id: several sequences may be of one request.
  std::vector<RequestId> failed;
  for (const LiveSeq& s : in_flight_) failed.push_back(s.live->request->id);
  in_flight_.clear();
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
