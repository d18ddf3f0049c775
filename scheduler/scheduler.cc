#include "scheduler/scheduler.h"

#include "absl/container/flat_hash_set.h"
#include "scheduler/beam.h"
#include "scheduler/root_key.h"

namespace quire {

Scheduler::Scheduler(SchedulerOptions options, BlockManager& blocks, Now now)
    : options_(std::move(options)),
      max_seqs_at_start_(options_.max_num_seqs),
      max_rows_(std::max(options_.max_logit_rows, options_.max_num_seqs)),
      max_step_tokens_(options_.max_num_batched_tokens),
      blocks_(blocks),
      now_(std::move(now)),
      start_(now_()),
      queue_(options_, start_, [this](LiveRequest& live) { return CachedTokens(live); }) {
  const absl::Status valid = Validate(options_);
  CHECK(valid.ok(), "{}", Message(valid));
}

SchedulerStats Scheduler::stats() const {
  SchedulerStats stats = counters_;
  stats.running_seqs = static_cast<int32_t>(running_.size());
  stats.waiting_seqs = static_cast<int32_t>(waiting_.size() + queue_.size());
  stats.live_requests = static_cast<int32_t>(requests_.size());
  stats.queued_requests = queued_requests_;
  stats.step_fixed_us = cost_.fixed_us();
  stats.step_us_per_token = cost_.us_per_token();
  return stats;
}

int64_t Scheduler::now_ms() const {
  return std::chrono::duration_cast<std::chrono::milliseconds>(now_() - start_).count();
}

PageNeed Scheduler::LargestAdmittedNeed() const {
  PageNeed most(blocks_.pools().size());
  for (const auto& [id, live] : requests_) {
    const PageNeed need = WorstCase(*live->request);
    for (size_t i = 0; i < most.size(); ++i) most[i] = std::max(most[i], need[i]);
  }
  return most;
}

absl::Status Scheduler::ResizePool(size_t pool, int32_t num_blocks, std::vector<PageId>& retired) {
  CHECK(in_flight_.empty(), "ResizePool during a step");
  if (pool >= blocks_.pools().size()) {
    return InvalidArgument("pool={} must be below {}", pool, blocks_.pools().size());
  }
  return blocks_.Resize(pool, num_blocks, LargestAdmittedNeed()[pool], retired);
}

absl::StatusOr<PinInfo> Scheduler::PinPrefix(const std::vector<TokenId>& tokens,
                                             const std::string& cache_salt, int64_t ttl_ms) {
  CHECK(in_flight_.empty(), "PinPrefix during a step");
  blocks_.SetTime(now_ms());
  const RootId root =
      blocks_.InternRoot(RootKey(cache_salt, static_cast<int32_t>(tokens.size()), /*private_to=*/0),
                         /*keep=*/true, cache_salt);
  return blocks_.Pin(root, tokens, ttl_ms, LargestAdmittedNeed());
}

void Scheduler::FlushPrefixes(const std::optional<std::string>& cache_salt) {
  CHECK(in_flight_.empty(), "FlushPrefixes during a step");
  for (Proposer* const proposer : proposers_) {
    if (proposer != nullptr) proposer->Flush(cache_salt ? &*cache_salt : nullptr);
  }
  blocks_.Flush(cache_salt ? RootKeyPrefix(options_.fingerprint, *cache_salt) : std::string());
}

void Scheduler::ForEachBranch(
    const std::function<void(const LiveRequest&, int32_t, const Sequence*)>& visit) const {
  for (const auto& [id, live] : requests_) {
    for (int32_t b = 0; b < live->n(); ++b) {
      const LiveBranch& branch = live->branches[static_cast<size_t>(b)];
      if (branch.finish == FinishReason::kNone) visit(*live, b, branch.seq.get());
    }
  }
}

// What is admitted keeps its order of now; what is queued is ordered anew.
absl::Status Scheduler::Update(const SchedulerUpdate& u) {
  CHECK(in_flight_.empty(), "Update during a step");
  SchedulerOptions next = options_;
  const auto set = [](auto& member, const auto& value) {
    if (value) member = *value;
  };
  set(next.max_num_seqs, u.max_num_seqs);
  set(next.max_num_batched_tokens, u.max_num_batched_tokens);
  set(next.max_queued_requests, u.max_queued_requests);
  set(next.watermark, u.watermark);
  set(next.policy, u.policy);
  set(next.long_prefill_token_threshold, u.long_prefill_token_threshold);
  set(next.target_step_ms, u.target_step_ms);
  set(next.num_speculative_tokens, u.num_speculative_tokens);
  RETURN_IF_ERROR(Validate(next));
  if (next.max_num_seqs > max_seqs_at_start_) {
    return InvalidArgument("max_num_seqs={} must be at most {}, as at the start; restart with more",
                           next.max_num_seqs, max_seqs_at_start_);
  }
  if (next.max_num_batched_tokens > max_step_tokens_) {
    return InvalidArgument(
        "max_num_batched_tokens={} must be at most {}, as at the start; restart with more",
        next.max_num_batched_tokens, max_step_tokens_);
  }
  // What was admitted with n branches still finishes: alone it may take more places.
  for (const auto& [id, live] : requests_) {
    const int32_t n = NumBranches(*live->request);
    if (!live->admitted && n > next.max_num_seqs) {
      return InvalidArgument(
          "max_num_seqs={} must be at least {}, which a waiting request asks for (request {})",
          next.max_num_seqs, n, id);
    }
  }
  blocked_.by_pages = false;
  const bool reorders = next.policy != options_.policy;
  options_ = std::move(next);
  if (!reorders) return absl::OkStatus();
  std::vector<LiveRequest*> admitted;
  std::vector<LiveSeq> running, waiting;
  const auto note = [&](const SeqSet& from, std::vector<LiveSeq>& seqs) {
    for (const auto& [key, s] : from) {
      seqs.push_back(s);
      admitted.push_back(s.live);
    }
  };
  note(running_, running);
  note(waiting_, waiting);
  // Branches of a request stand in both sets: each request once, in its first place.
  std::vector<LiveRequest*> once;
  absl::flat_hash_set<const LiveRequest*> seen;
  for (LiveRequest* const live : admitted) {
    if (seen.insert(live).second) once.push_back(live);
  }
  queue_.Rebuild(once);
  running_.clear();
  waiting_.clear();
  for (const LiveSeq& s : running) running_.emplace(s.live->key(*s.seq), s);
  for (const LiveSeq& s : waiting) waiting_.emplace(s.live->key(*s.seq), s);
  ++counters_.policy_changes;
  return absl::OkStatus();
}

absl::Status Scheduler::Audit() const {
  const auto broken = [](auto format, const auto&... values) {
    return absl::InternalError(fmt::format(fmt::runtime(format), values...));
  };
  CHECK(in_flight_.empty(), "Audit during a step");
  std::vector<const SequenceTables*> tables;
  std::vector<const SwappedTables*> swapped;
  size_t open_seqs = 0;
  int32_t queued = 0;
  size_t with_deadline = 0;
  for (const auto& [id, live] : requests_) {
    int32_t open = 0;
    for (const LiveBranch& branch : live->branches) {
      open += branch.finish == FinishReason::kNone;
      if (branch.seq == nullptr) continue;
      const Sequence& seq = *branch.seq;
      ++open_seqs;
      tables.push_back(&seq.tables);
      const bool running = seq.status == SequenceStatus::kRunning;
      const SeqSet& set = running ? running_ : waiting_;
      const auto it = set.find(live->key(seq));
      const bool in_queue = it == set.end() && !live->admitted && queue_.contains(*live);
      if ((!in_queue && (it == set.end() || it->second.seq != &seq)) ||
          branch.finish != FinishReason::kNone) {
        return broken("S2: request {} branch {} is not in its set", id, seq.branch);
      }
      if (!live->forked && seq.num_output_tokens() > 0) {
        return broken("S2: request {} has said something and is not past its prompt", id);
      }
      if (seq.num_drafts != 0) {
        return broken("S1: request {} branch {} has {} guesses", id, seq.branch, seq.num_drafts);
      }
      if (running && !branch.has_candidates && seq.num_computed_tokens >= seq.num_tokens()) {
        return broken("S1: request {} branch {} runs with nothing to compute: {} of {} tokens", id,
                      seq.branch, seq.num_computed_tokens, seq.num_tokens());
      }
      if (seq.swapped) swapped.push_back(&*seq.swapped);
      if (running && seq.swapped) {
        return broken("S1: request {} branch {} runs and is swapped out", id, seq.branch);
      }
      if (!running && (seq.num_computed_tokens != 0 || !seq.tables.groups.empty())) {
        return broken("S1: request {} branch {} waits with {} computed tokens", id, seq.branch,
                      seq.num_computed_tokens);
      }
    }
    if (open != live->num_open || open == 0) {
      return broken("S2: request {} has {} open branches, counted {}", id, open, live->num_open);
    }
    queued += !live->admitted;
    with_deadline += live->request->deadline != Clock::time_point::max();
  }
  if (open_seqs != running_.size() + waiting_.size() + queue_.size()) {
    return broken("S2: {} sequences, {} running + {} waiting + {} queued", open_seqs,
                  running_.size(), waiting_.size(), queue_.size());
  }
  RETURN_IF_ERROR(queue_.Audit());
  if (queued != queued_requests_ || with_deadline != deadlines_.size()) {
    return broken("S2: {} queued and {} deadlines, counted {} and {}", queued, with_deadline,
                  queued_requests_, deadlines_.size());
  }
  const auto is_beam = [](const LiveSeq& s) { return s.live->beam != nullptr; };
  if (options_.policy == SchedulingPolicy::kFcfs && counters_.policy_changes == 0 &&
      !running_.empty() && !waiting_.empty() && !is_beam(running_.rbegin()->second) &&
      !is_beam(waiting_.begin()->second) && running_.rbegin()->first >= waiting_.begin()->first) {
    return broken("S3: request {} runs before request {} of the queue",
                  running_.rbegin()->second.live->request->id,
                  waiting_.begin()->second.live->request->id);
  }
  int32_t slots = 0;
  for (const auto& [key, s] : running_) {
    slots += s.live->slots();
  }
  if (slots != slots_taken_ || slots > max_seqs_at_start_) {
    return broken("S4: {} places taken, counted {}, at most {}", slots, slots_taken_,
                  max_seqs_at_start_);
  }
  for (const auto& [id, live] : requests_) {
    const PageNeed need = WorstCase(*live->request);
    for (size_t i = 0; i < need.size(); ++i) {
      if (need[i] > blocks_.Capacity(i)) {
        return broken("I10: request {} may need {} blocks of pool {}, which has {}", id, need[i], i,
                      blocks_.Capacity(i));
      }
    }
  }
  return blocks_.Audit(tables, swapped);
}

}  // namespace quire
