// tests/scheduler_harness.h -- clients that check the protocol, and a clock that only moves when
// told.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "scheduler/scheduler.h"
#include "tests/fake_executor.h"
#include "tests/fake_proposer.h"

namespace quire::sched_test {

// One request as its client sees it.
struct Seen {
  std::shared_ptr<const Request> request;
  std::vector<std::vector<TokenId>> outputs;  // [n]
  std::vector<std::vector<float>> logprobs;   // [n]
  std::vector<FinishReason> finish;           // [n]
  std::vector<TokenId> stop_tokens;           // [n]
  std::vector<float> scores;                  // [n], of beams
  std::vector<PromptLogprob> prompt_logprobs;
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
    const auto n = static_cast<size_t>(request->beam.on() ? request->beam.num_return_sequences
                                                          : std::max(request->sampling.n, 1));
    seen.scores.resize(n);
    seen.outputs.resize(n);
    seen.logprobs.resize(n);
    seen.finish.resize(n, FinishReason::kNone);
    seen.stop_tokens.resize(n, -1);
    const RequestId id = request->id;
    seen.request = std::move(request);
    ASSERT_TRUE(live_.insert(id).second) << "request id in use";
    seen_[id] = std::move(seen);  // an id may come again once its request is done
  }

  void OnEvents(std::span<const TokenEvent> events, int64_t step) {
    for (const TokenEvent& event : events) OnEvent(event, step);
  }

  const Seen& operator[](RequestId id) const { return seen_.at(id); }
  const std::set<RequestId>& live() const { return live_; }
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
    if (e.kind == TokenEvent::Kind::kPromptLogprobs) {
      ASSERT_EQ(s.num_token_events, 0);
      for (const PromptLogprob& p : e.prompt_logprobs) {
        ASSERT_EQ(p.position, static_cast<int32_t>(s.prompt_logprobs.size()) + 1);
        s.prompt_logprobs.push_back(p);
      }
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
    s.scores[b] = e.score;
    if (!e.error.ok()) s.error = e.error;
    const bool all_ended = std::count(s.finish.begin(), s.finish.end(), FinishReason::kNone) == 0;
    ASSERT_EQ(e.request_done, all_ended);
    if (!e.request_done) return;
    s.done = true;
    live_.erase(e.request);
    s.done_at_step = step;
    s.stats = e.stats;
    ASSERT_EQ(e.stats.prompt_tokens, static_cast<int32_t>(s.request->prompt.size()));
    ASSERT_TRUE(e.stats.queue_us >= 0 && e.stats.prefill_us >= 0 && e.stats.decode_us >= 0);
    ASSERT_TRUE(s.num_accepted == 1 || s.num_token_events == 0);
  }

  std::map<RequestId, Seen> seen_;
  std::set<RequestId> live_;
};

struct HarnessOptions {
  int32_t num_pages = 64;  // usable, in each pool
  int32_t num_host = 0;    // slots of the host tier for each pool; 0 = no tier
  int32_t block_size = 4;
  SchedulerOptions scheduler;
  std::vector<GroupLayout> groups = {{}};  // page_size is filled in
  int32_t num_pools = 1;
  BlockManagerOptions blocks;
  int32_t percent_right = -1;  // of guesses; -1 = none are made
  bool reconfigures = true;    // options may change on the way
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
      if (options_.num_host > 0) host_.emplace_back(options_.num_host, options_.block_size);
    }
    blocks_ = std::make_unique<BlockManager>(layout_, pools_, options_.blocks, host_);
    scheduler_ = std::make_unique<Scheduler>(options_.scheduler, *blocks_, [this] { return now_; });
    executor_ = std::make_unique<FakeExecutor>(
        *blocks_, options_.scheduler.max_num_batched_tokens,
        !options_.scheduler.enable_prefix_caching,
        std::max(options_.scheduler.max_logit_rows, options_.scheduler.max_num_seqs));
    if (options_.percent_right >= 0) {
      proposer_ = std::make_unique<FakeProposer>(1, options_.percent_right);
      scheduler_->SetProposer(SpeculationMethod::kNgram, proposer_.get());
      scheduler_->SetDefaultSpeculation(SpeculationMethod::kNgram);
    }
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

  // One step, which takes 1 ms, or what `time` says. False if there was nothing to do.
  bool Step(const std::function<Clock::duration(const ScheduledBatch&)>& time = nullptr) {
    batch_ = scheduler_->Schedule(events_);
    Deliver();
    const bool ran = !batch_.empty();
    parts_.clear();
    for (const ScheduledSeq& s : batch_.seqs) {
      parts_.push_back({s.seq->request->id, s.first_pos, s.num_tokens});
    }
    if (ran) {
      // Nobody starves: the first in order goes on in every step. (Ids are given out in order.)
      if (scheduler_->options().policy == SchedulingPolicy::kFcfs && !reordered_) {
        EXPECT_EQ(batch_.seqs[0].seq->request->id, *clients_.live().begin());
      }
      const absl::StatusOr<StepOutput> output = executor_->Run(batch_);
      now_ += time == nullptr ? std::chrono::milliseconds(1) : time(batch_);
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
    for (const PagePool& slots : host_) EXPECT_EQ(slots.num_active(), 0);
    for (const auto& [id, seen] : clients_.all()) EXPECT_TRUE(seen.done) << "request " << id;
  }

  // Every branch that ended by itself said what it says alone.
  void ExpectOutputsAsSolo() {
    for (const auto& [id, seen] : clients_.all()) {
      for (const PromptLogprob& p : seen.prompt_logprobs) {
        EXPECT_EQ(p.logprob.logprob, PromptLogprobOf(*seen.request, p.position).logprob);
      }
      if (seen.request->beam.on()) {
        if (seen.finish[0] == FinishReason::kLength || seen.finish[0] == FinishReason::kStop) {
          ExpectBeams(seen);
        }
        continue;
      }
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

  static void ExpectBeams(const Seen& seen) {
    const std::vector<Hypothesis> want = ExpectedBeams(*seen.request);
    ASSERT_EQ(want.size(), seen.outputs.size());
    for (size_t b = 0; b < want.size(); ++b) {
      EXPECT_EQ(seen.outputs[b], want[b].tokens) << "request " << seen.request->id;
      EXPECT_EQ(seen.logprobs[b], want[b].logprobs);
      EXPECT_EQ(seen.scores[b], want[b].score);
      EXPECT_EQ(seen.finish[b], want[b].finish);
      EXPECT_EQ(seen.stop_tokens[b], want[b].stop_token);
    }
  }

  // May change the policy, so that the order of ids is not that of service any more.
  absl::Status Update(const SchedulerUpdate& update) {
    reordered_ = true;
    const absl::Status status = scheduler_->Update(update);
    Audit();
    return status;
  }

  bool ok() const { return !::testing::Test::HasFailure(); }
  SchedulerStats stats() const { return scheduler_->stats(); }
  const Seen& seen(RequestId id) const { return clients_[id]; }
  const Clients& clients() const { return clients_; }
  const ScheduledBatch& batch() const { return batch_; }  // of the last step; seqs may be gone
  // Of the last step: request, first position, tokens; in the batch's order.
  struct Part {
    RequestId request;
    int32_t first_pos;
    int32_t num_tokens;
  };
  const std::vector<Part>& parts() const { return parts_; }
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
  std::vector<PagePool> host_;
  std::unique_ptr<BlockManager> blocks_;
  Clock::time_point now_ = Clock::time_point{} + std::chrono::hours(1);
  std::unique_ptr<Scheduler> scheduler_;
  std::unique_ptr<FakeExecutor> executor_;
  std::unique_ptr<FakeProposer> proposer_;
  Clients clients_;
  ScheduledBatch batch_;
  std::vector<Part> parts_;
  std::vector<TokenEvent> events_;
  std::vector<TokenEvent> history_;
  RequestId last_id_ = 0;
  int64_t step_ = 0;
  bool reordered_ = false;
};

// Token ids [first, first + count) modulo the vocabulary.
inline std::vector<TokenId> Iota(TokenId first, int32_t count) {
  std::vector<TokenId> ids(static_cast<size_t>(count));
  for (int32_t i = 0; i < count; ++i) ids[static_cast<size_t>(i)] = (first + i) % kVocab;
  return ids;
}

}  // namespace quire::sched_test
