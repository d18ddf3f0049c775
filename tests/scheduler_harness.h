// tests/scheduler_harness.h -- a model too simple to be wrong, a client that checks the protocol,
// and a clock that only moves when told: what the tests of scheduler/ share.
//
// The fake model's next token is a hash of everything that a real one's may depend on: prompt,
// output, where one ends and the other begins, seed and branch. So what a branch must say is
// computed by Expected() without any scheduler. The fake executor keeps, for each slot of each
// page, whose token at which position was written there, copies pages as told, spoils pages that
// are free, and demands that each scheduled sequence finds exactly its own tokens through its page
// tables. Any error of caching, sharing, forking or preempting shows there, before it could change
// a token.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "scheduler/executor.h"
#include "scheduler/scheduler.h"

namespace quire::sched_test {

inline constexpr int32_t kVocab = 211;

inline uint64_t Mix(uint64_t h, uint64_t x) {
  h ^= x + 0x9e3779b97f4a7c15ull;
  h *= 0xff51afd7ed558ccdull;
  return h ^ (h >> 29);
}

inline bool IsStop(const Request& r, TokenId token) {
  const auto in = [&](const std::vector<TokenId>& ids) {
    return std::find(ids.begin(), ids.end(), token) != ids.end();
  };
  return in(r.stop.eos_token_ids) || in(r.stop.stop_token_ids);
}

// The next token of `branch` after `tokens`, the first prompt_len of which are the prompt.
inline Sampled NextToken(const Request& r, std::span<const TokenId> tokens, size_t prompt_len,
                         int32_t branch) {
  uint64_t h = Mix(r.seed, static_cast<uint64_t>(branch));
  h = Mix(h, prompt_len);
  for (const TokenId token : tokens) h = Mix(h, static_cast<uint64_t>(token));
  Sampled sampled;
  sampled.token = static_cast<TokenId>(h % kVocab);
  const auto num_output = static_cast<int32_t>(tokens.size() - prompt_len);
  while (num_output < r.sampling.min_tokens && IsStop(r, sampled.token)) {
    sampled.token = (sampled.token + 1) % kVocab;
  }
  sampled.logprob = -static_cast<float>(h % 4096) / 256.0f;
  return sampled;
}

// What `branch` says if nothing interferes.
inline std::vector<TokenId> Expected(const Request& r, int32_t branch) {
  std::vector<TokenId> tokens = r.prompt;
  for (int32_t i = 1; i <= r.stop.max_tokens; ++i) {
    tokens.push_back(NextToken(r, tokens, r.prompt.size(), branch).token);
    if (i > r.sampling.min_tokens && IsStop(r, tokens.back())) break;
  }
  return {tokens.begin() + static_cast<std::ptrdiff_t>(r.prompt.size()), tokens.end()};
}

class FakeExecutor final : public Executor {
 public:
  FakeExecutor(const BlockManager& blocks, int32_t max_num_batched_tokens, bool private_roots)
      : blocks_(blocks), max_tokens_(max_num_batched_tokens), private_roots_(private_roots) {
    for (const PagePool& pool : blocks.pools()) {
      storage_.emplace_back(static_cast<size_t>(pool.num_usable() + 1) *
                            static_cast<size_t>(pool.page_size()));
    }
  }

  absl::StatusOr<StepOutput> Run(const ScheduledBatch& batch) override {
    ++steps_;
    if (!next_error_.ok()) return std::exchange(next_error_, absl::OkStatus());
    CheckShape(batch);
    SpoilFreePages();
    for (const PageCopy& copy : batch.copies) CopyPage(copy);
    // Before anything of this step is written: a page that is found must be complete already.
    for (const ScheduledSeq& s : batch.seqs) Read(s, s.first_pos);
    std::set<std::pair<int32_t, int64_t>> written;
    for (const ScheduledSeq& s : batch.seqs) Write(s, written);
    for (const ScheduledSeq& s : batch.seqs) Read(s, s.first_pos + s.num_tokens);
    StepOutput output;
    for (size_t i = 0; i < batch.seqs.size(); ++i) {
      const ScheduledSeq& s = batch.seqs[i];
      for (int32_t k = 0; k < s.num_samples; ++k) {
        const int32_t branch = s.seq->branch + k;
        output.rows.push_back(
            {static_cast<int32_t>(i), branch,
             NextToken(*s.seq->request, s.seq->tokens, s.seq->request->prompt.size(), branch)});
      }
    }
    return output;
  }

  void FailNext(absl::Status error) { next_error_ = std::move(error); }
  int64_t steps() const { return steps_; }
  const std::string& first_error() const { return first_error_; }

 private:
  struct Slot {
    TokenId token = -1;
    int32_t pos = -1;
    int32_t group = -1;
    uint64_t root = 0;
    friend bool operator==(const Slot&, const Slot&) = default;
  };

  void Wrong(const std::string& what) {
    if (!first_error_.empty()) return;
    first_error_ = what;
    ADD_FAILURE() << "step " << steps_ << ": " << what;
  }

  // What two sequences must have in common to share pages, besides tokens.
  uint64_t Root(const Request& r) const {
    const uint64_t salt = std::hash<std::string>()(r.cache_salt);
    return Mix(salt, private_roots_ || r.bypass_prefix_cache ? r.id + 1 : 0);
  }

  Slot Content(const ScheduledSeq& s, int32_t pos, size_t group) const {
    return {s.seq->tokens[static_cast<size_t>(pos)], pos, static_cast<int32_t>(group),
            Root(*s.seq->request)};
  }

  void CheckShape(const ScheduledBatch& batch) {
    int32_t num_tokens = 0;
    std::set<const Sequence*> seen;
    for (const ScheduledSeq& s : batch.seqs) {
      num_tokens += s.num_tokens;
      const int32_t end = s.first_pos + s.num_tokens;
      const bool reaches_end = end == s.seq->num_tokens();
      if (s.num_tokens < 1 || end > s.seq->num_tokens() ||
          s.first_pos != s.seq->num_computed_tokens) {
        Wrong(fmt::format("schedules [{}, {}) of {} tokens, {} computed", s.first_pos, end,
                          s.seq->num_tokens(), s.seq->num_computed_tokens));
      }
      if (reaches_end != (s.num_samples > 0)) {
        Wrong(
            fmt::format("{} samples at {} of {} tokens", s.num_samples, end, s.seq->num_tokens()));
      }
      if (!seen.insert(s.seq).second) Wrong("a sequence is scheduled twice");
    }
    if (batch.seqs.empty() || num_tokens != batch.num_tokens || num_tokens > max_tokens_) {
      Wrong(fmt::format("batch of {} tokens, said {}, budget {}", num_tokens, batch.num_tokens,
                        max_tokens_));
    }
  }

  // Pages that are neither in use nor findable: reading one must show.
  void SpoilFreePages() {
    for (size_t p = 0; p < storage_.size(); ++p) {
      const PagePool& pool = blocks_.pools()[p];
      for (PageId page = 1; page <= pool.num_usable(); ++page) {
        if (pool.refs(page) > 0 || pool.IsSealed(page)) continue;
        for (int32_t i = 0; i < pool.page_size(); ++i) At(p, page, i) = Slot{};
      }
    }
  }

  Slot& At(size_t pool, PageId page, int32_t offset) {
    return storage_[pool][static_cast<size_t>(page) * static_cast<size_t>(blocks_.block_size()) +
                          static_cast<size_t>(offset)];
  }

  void CopyPage(const PageCopy& copy) {
    const auto p = static_cast<size_t>(copy.pool);
    if (copy.src == kNullPage || copy.dst == kNullPage || copy.src == copy.dst) {
      Wrong(fmt::format("copies page {} to {}", copy.src, copy.dst));
    }
    for (int32_t i = 0; i < blocks_.block_size(); ++i) At(p, copy.dst, i) = At(p, copy.src, i);
  }

  void Write(const ScheduledSeq& s, std::set<std::pair<int32_t, int64_t>>& written) {
    const std::vector<GroupLayout>& groups = blocks_.layout().groups;
    for (size_t g = 0; g < groups.size(); ++g) {
      std::vector<int64_t> slots(static_cast<size_t>(s.num_tokens));
      blocks_.FillWriteSlots(s.seq->tables, static_cast<int32_t>(g), s.first_pos, slots);
      for (int32_t i = 0; i < s.num_tokens; ++i) {
        const int64_t slot = slots[static_cast<size_t>(i)];
        if (!written.emplace(groups[g].pool, slot).second) {
          Wrong(fmt::format("I6: slot {} is written twice", slot));
        }
        storage_[static_cast<size_t>(groups[g].pool)][static_cast<size_t>(slot)] =
            Content(s, s.first_pos + i, g);
      }
    }
  }

  // Tokens [0, end), but what windows no longer see, must be where the read row says.
  void Read(const ScheduledSeq& s, int32_t end) {
    const std::vector<GroupLayout>& groups = blocks_.layout().groups;
    const int32_t size = blocks_.block_size();
    for (size_t g = 0; g < groups.size(); ++g) {
      std::vector<PageId> row(static_cast<size_t>((s.seq->num_tokens() + size - 1) / size));
      blocks_.FillReadRow(s.seq->tables, static_cast<int32_t>(g), row);
      for (int32_t pos = FirstLivePage(groups[g].group, s.first_pos) * size; pos < end; ++pos) {
        const PageId page = row[static_cast<size_t>(pos / size)];
        const Slot& found = At(static_cast<size_t>(groups[g].pool), page, pos % size);
        if (page == kNullPage || !(found == Content(s, pos, g))) {
          Wrong(
              fmt::format("request {} branch {} group {} position {}: page {} holds token {} of "
                          "position {}, want token {}",
                          s.seq->request->id, s.seq->branch, g, pos, page, found.token, found.pos,
                          s.seq->tokens[static_cast<size_t>(pos)]));
          return;
        }
      }
    }
  }

  const BlockManager& blocks_;
  const int32_t max_tokens_;
  const bool private_roots_;
  std::vector<std::vector<Slot>> storage_;  // per pool: [num_usable + 1, block_size]
  absl::Status next_error_;
  std::string first_error_;
  int64_t steps_ = 0;
};

// One request as its client sees it.
struct Seen {
  std::shared_ptr<const Request> request;
  std::vector<std::vector<TokenId>> outputs;  // [n]
  std::vector<std::vector<float>> logprobs;   // [n]
  std::vector<FinishReason> finish;           // [n]
  std::vector<TokenId> stop_tokens;           // [n]
  int32_t num_token_events = 0;
  int32_t num_accepted = 0;
  bool done = false;
  int64_t done_at_step = -1;
  RequestStats accepted_stats;
  RequestStats stats;
  absl::Status error;
};

// All clients; fails the test on any event that breaks the protocol.
class Clients {
 public:
  void Add(std::shared_ptr<const Request> request) {
    Seen seen;
    const auto n = static_cast<size_t>(std::max(request->sampling.n, 1));
    seen.outputs.resize(n);
    seen.logprobs.resize(n);
    seen.finish.resize(n, FinishReason::kNone);
    seen.stop_tokens.resize(n, -1);
    const RequestId id = request->id;
    seen.request = std::move(request);
    ASSERT_TRUE(seen_.emplace(id, std::move(seen)).second);
  }

  void OnEvents(std::span<const TokenEvent> events, int64_t step) {
    for (const TokenEvent& event : events) OnEvent(event, step);
  }

  const Seen& operator[](RequestId id) const { return seen_.at(id); }
  const std::map<RequestId, Seen>& all() const { return seen_; }

 private:
  void OnEvent(const TokenEvent& e, int64_t step) {
    const auto it = seen_.find(e.request);
    ASSERT_TRUE(it != seen_.end()) << "event for unknown request " << e.request;
    Seen& s = it->second;
    ASSERT_FALSE(s.done) << "event after the last of request " << e.request;
    const auto b = static_cast<size_t>(e.branch);
    ASSERT_LT(b, s.outputs.size());
    if (e.kind == TokenEvent::Kind::kAccepted) {
      ASSERT_EQ(++s.num_accepted, 1);
      ASSERT_EQ(s.num_token_events, 0);
      ASSERT_EQ(e.stats.prompt_tokens, static_cast<int32_t>(s.request->prompt.size()));
      ASSERT_GE(e.stats.queue_us, 0);
      ASSERT_FALSE(e.request_done);
      s.accepted_stats = e.stats;
      return;
    }
    ASSERT_EQ(s.finish[b], FinishReason::kNone) << "branch " << b << " goes on after its end";
    if (e.kind == TokenEvent::Kind::kToken) {
      ASSERT_EQ(s.num_accepted, 1);
      ++s.num_token_events;
      s.outputs[b].push_back(e.sampled.token);
      s.logprobs[b].push_back(e.sampled.logprob);
      ASSERT_EQ(e.num_output_tokens, static_cast<int32_t>(s.outputs[b].size()));
    } else {
      ASSERT_NE(e.finish, FinishReason::kNone);
      ASSERT_LE(e.num_output_tokens, static_cast<int32_t>(s.outputs[b].size()));
      s.outputs[b].resize(static_cast<size_t>(e.num_output_tokens));
    }
    s.finish[b] = e.finish;
    s.stop_tokens[b] = e.stop_token;
    if (!e.error.ok()) s.error = e.error;
    const bool all_ended = std::count(s.finish.begin(), s.finish.end(), FinishReason::kNone) == 0;
    ASSERT_EQ(e.request_done, all_ended);
    if (!e.request_done) return;
    s.done = true;
    s.done_at_step = step;
    s.stats = e.stats;
    ASSERT_EQ(e.stats.prompt_tokens, static_cast<int32_t>(s.request->prompt.size()));
    ASSERT_TRUE(e.stats.queue_us >= 0 && e.stats.prefill_us >= 0 && e.stats.decode_us >= 0);
    ASSERT_TRUE(s.num_accepted == 1 || s.num_token_events == 0);
  }

  std::map<RequestId, Seen> seen_;
};

struct HarnessOptions {
  int32_t num_pages = 64;  // usable, in each pool
  int32_t block_size = 4;
  SchedulerOptions scheduler;
  std::vector<GroupLayout> groups = {{}};  // page_size is filled in
  int32_t num_pools = 1;
  BlockManagerOptions blocks;
};

// Scheduler, cache, executor and clients on one thread, stepped by hand.
class Harness {
 public:
  explicit Harness(HarnessOptions options = {}) : options_(Complete(std::move(options))) {
    layout_.block_size = options_.block_size;
    layout_.groups = options_.groups;
    for (GroupLayout& g : layout_.groups) g.group.page_size = options_.block_size;
    layout_.pools.resize(static_cast<size_t>(options_.num_pools), PoolLayout{64});
    for (int32_t i = 0; i < options_.num_pools; ++i) {
      pools_.emplace_back(options_.num_pages, options_.block_size);
    }
    blocks_ = std::make_unique<BlockManager>(layout_, pools_, options_.blocks);
    scheduler_ = std::make_unique<Scheduler>(options_.scheduler, *blocks_, [this] { return now_; });
    executor_ = std::make_unique<FakeExecutor>(*blocks_, options_.scheduler.max_num_batched_tokens,
                                               !options_.scheduler.enable_prefix_caching);
  }

  // A request that the caller may still change before Submit().
  Request Make(std::vector<TokenId> prompt, int32_t max_tokens, int32_t n = 1) {
    Request r;
    r.id = ++last_id_;
    r.prompt = std::move(prompt);
    r.stop.max_tokens = max_tokens;
    r.sampling.n = n;
    r.seed = 7;
    r.arrival = now_;
    return r;
  }

  RequestId Submit(Request request) {
    const RequestId id = request.id;
    auto shared = std::make_shared<const Request>(std::move(request));
    clients_.Add(shared);
    Apply(quire::Submit{std::move(shared)});
    return id;
  }
  RequestId Submit(std::vector<TokenId> prompt, int32_t max_tokens, int32_t n = 1) {
    return Submit(Make(std::move(prompt), max_tokens, n));
  }

  void Apply(Command command) {
    scheduler_->Apply(std::move(command), events_);
    Deliver();
    Audit();
  }
  void Cancel(RequestId id) { Apply(quire::Cancel{.request = id}); }

  // One step; 1 ms passes. False if there was nothing to do.
  bool Step() {
    batch_ = scheduler_->Schedule(events_);
    const bool ran = !batch_.empty();
    if (ran) {
      const absl::StatusOr<StepOutput> output = executor_->Run(batch_);
      now_ += std::chrono::milliseconds(1);
      if (output.ok()) {
        scheduler_->Commit(batch_, *output, events_);
      } else {
        scheduler_->Fail(batch_, output.status(), events_);
      }
    }
    ++step_;
    Deliver();
    Audit();
    return ran;
  }

  // False if requests are left after so many steps: somebody starves.
  [[nodiscard]] bool RunUntilIdle(int32_t max_steps = 100000) {
    for (int32_t i = 0; i < max_steps && ok(); ++i) {
      if (!Step()) return scheduler_->idle();
    }
    return scheduler_->idle();
  }

  void ExpectIdleAndClean() {
    EXPECT_TRUE(scheduler_->idle());
    const SchedulerStats s = stats();
    EXPECT_EQ(s.running_seqs, 0);
    EXPECT_EQ(s.waiting_seqs, 0);
    EXPECT_EQ(s.queued_requests, 0);
    EXPECT_EQ(s.left_queue, s.submitted);
    int64_t ended = 0;
    for (const int64_t count : s.finished) ended += count;
    EXPECT_EQ(ended, s.submitted);
    for (const PagePool& pool : pools_) {
      EXPECT_EQ(pool.num_active(), 0);
      EXPECT_EQ(pool.num_blank() + pool.num_cached(), pool.num_usable());
      if (!options_.scheduler.enable_prefix_caching) {
        EXPECT_EQ(pool.num_cached(), 0);
      }
    }
    for (const auto& [id, seen] : clients_.all()) EXPECT_TRUE(seen.done) << "request " << id;
  }

  // Every branch that ended by itself said what it says alone.
  void ExpectOutputsAsSolo() {
    for (const auto& [id, seen] : clients_.all()) {
      for (size_t b = 0; b < seen.outputs.size(); ++b) {
        const std::vector<TokenId> want = Expected(*seen.request, static_cast<int32_t>(b));
        const std::vector<TokenId>& got = seen.outputs[b];
        const bool whole = seen.finish[b] == FinishReason::kLength ||
                           (seen.finish[b] == FinishReason::kStop && seen.stop_tokens[b] >= 0);
        if (whole) {
          EXPECT_EQ(got, want) << "request " << id << " branch " << b;
        } else {
          ASSERT_LE(got.size(), want.size());
          EXPECT_TRUE(std::equal(got.begin(), got.end(), want.begin()))
              << "request " << id << " branch " << b;
        }
      }
    }
  }

  bool ok() const { return !::testing::Test::HasFailure(); }
  SchedulerStats stats() const { return scheduler_->stats(); }
  const Seen& seen(RequestId id) const { return clients_[id]; }
  const Clients& clients() const { return clients_; }
  const ScheduledBatch& batch() const { return batch_; }  // of the last step; seqs may be gone
  PagePool& pool(size_t i = 0) { return pools_[i]; }
  BlockManager& blocks() { return *blocks_; }
  Scheduler& scheduler() { return *scheduler_; }
  FakeExecutor& executor() { return *executor_; }
  Clock::time_point now() const { return now_; }
  void Advance(Clock::duration d) { now_ += d; }
  int64_t step() const { return step_; }
  // Every event so far, in order.
  const std::vector<TokenEvent>& history() const { return history_; }

 private:
  static HarnessOptions Complete(HarnessOptions o) {
    if (o.scheduler.max_model_len == 0) o.scheduler.max_model_len = 4096;
    if (o.blocks.max_step_tokens == 0) {
      o.blocks.max_step_tokens = o.scheduler.max_num_batched_tokens;
    }
    return o;
  }

  void Deliver() {
    clients_.OnEvents(events_, step_);
    history_.insert(history_.end(), events_.begin(), events_.end());
    events_.clear();
  }

  void Audit() {
    const absl::Status sound = scheduler_->Audit();
    ASSERT_TRUE(sound.ok()) << Message(sound);
  }

  const HarnessOptions options_;
  CacheLayout layout_;
  std::vector<PagePool> pools_;
  std::unique_ptr<BlockManager> blocks_;
  Clock::time_point now_ = Clock::time_point{} + std::chrono::hours(1);
  std::unique_ptr<Scheduler> scheduler_;
  std::unique_ptr<FakeExecutor> executor_;
  Clients clients_;
  ScheduledBatch batch_;
  std::vector<TokenEvent> events_;
  std::vector<TokenEvent> history_;
  RequestId last_id_ = 0;
  int64_t step_ = 0;
};

// Token ids [first, first + count) modulo the vocabulary.
inline std::vector<TokenId> Iota(TokenId first, int32_t count) {
  std::vector<TokenId> ids(static_cast<size_t>(count));
  for (int32_t i = 0; i < count; ++i) ids[static_cast<size_t>(i)] = (first + i) % kVocab;
  return ids;
}

}  // namespace quire::sched_test
