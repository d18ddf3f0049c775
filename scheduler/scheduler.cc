#include "scheduler/scheduler.h"

#include "scheduler/root_key.h"

namespace quire {

Scheduler::Scheduler(SchedulerOptions options, BlockManager& blocks, Now now)
    : options_(std::move(options)), blocks_(blocks), now_(std::move(now)), start_(now_()) {
  const absl::Status valid = Validate(options_);
  CHECK(valid.ok(), "{}", Message(valid));
}

SchedulerStats Scheduler::stats() const {
  SchedulerStats stats = counters_;
  stats.running_seqs = static_cast<int32_t>(running_.size());
  stats.waiting_seqs = static_cast<int32_t>(waiting_.size());
  stats.live_requests = static_cast<int32_t>(requests_.size());
  stats.queued_requests = queued_requests_;
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
      if (it == set.end() || it->second.seq != &seq || branch.finish != FinishReason::kNone) {
        return broken("S2: request {} branch {} is not in its set", id, seq.branch);
      }
      if (running && seq.num_computed_tokens >= seq.num_tokens()) {
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
  if (open_seqs != running_.size() + waiting_.size()) {
    return broken("S2: {} sequences, {} running + {} waiting", open_seqs, running_.size(),
                  waiting_.size());
  }
  if (queued != queued_requests_ || with_deadline != deadlines_.size()) {
    return broken("S2: {} queued and {} deadlines, counted {} and {}", queued, with_deadline,
                  queued_requests_, deadlines_.size());
  }
  if (!running_.empty() && !waiting_.empty() &&
      running_.rbegin()->first >= waiting_.begin()->first) {
    return broken("S3: request {} runs before request {} of the queue",
                  running_.rbegin()->second.live->request->id,
                  waiting_.begin()->second.live->request->id);
  }
  int32_t slots = 0;
  for (const auto& [key, s] : running_) {
    slots += s.live->slots();
    if (s.num_remaining() > 1 && key != running_.rbegin()->first) {
      return broken("S5: request {} has {} tokens to compute and is not the last",
                    s.live->request->id, s.num_remaining());
    }
  }
  if (slots != slots_taken_ || slots > options_.max_num_seqs) {
    return broken("S4: {} places taken, counted {}, max_num_seqs={}", slots, slots_taken_,
                  options_.max_num_seqs);
  }
  if (!requests_.empty()) {
    const LiveSeq& first = running_.empty() ? waiting_.begin()->second : running_.begin()->second;
    if (const absl::Status fits = CanEverRun(*first.live->request); !fits.ok()) {
      return broken("I10: {}", Message(fits));
    }
  }
  return blocks_.Audit(tables, swapped);
}

}  // namespace quire
