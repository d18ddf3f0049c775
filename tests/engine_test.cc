// tests/engine_test.cc -- the engine's thread against many clients at once. Meant for tsan and
// asan.
//
// Clients wait for events, never for time; the only sleeps are inside a slow fake executor, where a
// test needs requests to be still running when something happens to them.
#include "scheduler/engine.h"

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <future>
#include <random>

#include "tests/scheduler_harness.h"

namespace quire::sched_test {
namespace {

using std::chrono::milliseconds;

// Holds steps back until it is told how many may run, and fails when told.
class GatedExecutor final : public Executor {
 public:
  explicit GatedExecutor(Executor& inner) : inner_(inner) {}

  absl::StatusOr<StepOutput> Run(const ScheduledBatch& batch) override {
    std::unique_lock lock(mutex_);
    ++arrived_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return open_ || allowed_ > 0; });
    if (!open_) --allowed_;
    if (!error_.ok()) return std::exchange(error_, absl::OkStatus());
    lock.unlock();
    return inner_.Run(batch);
  }

  void Close() {
    const std::lock_guard lock(mutex_);
    open_ = false;
  }
  void Open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  void AllowOne() {
    const std::lock_guard lock(mutex_);
    ++allowed_;
    changed_.notify_all();
  }
  // The next step fails.
  void FailWith(absl::Status error) {
    const std::lock_guard lock(mutex_);
    error_ = std::move(error);
  }
  // Until the engine has come to its `count`-th step.
  void AwaitStep(int64_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return arrived_ >= count; });
  }

 private:
  Executor& inner_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = true;
  int64_t allowed_ = 0;
  int64_t arrived_ = 0;
  absl::Status error_;
};

class EngineTest : public testing::Test {
 protected:
  void Make(SchedulerOptions options = {}, int32_t num_pages = 64) {
    layout_.block_size = 4;
    layout_.groups = {{.group = {.page_size = 4}}};
    layout_.pools = {{64}};
    pools_.emplace_back(num_pages, 4);
    blocks_ = std::make_unique<BlockManager>(layout_, pools_);
    options.max_model_len = 4096;
    scheduler_ = std::make_unique<Scheduler>(options, *blocks_);
    fake_ = std::make_unique<FakeExecutor>(*blocks_, options.max_num_batched_tokens,
                                           !options.enable_prefix_caching);
    gate_ = std::make_unique<GatedExecutor>(*fake_);
    engine_ = std::make_unique<Engine>(
        *scheduler_, *gate_,
        [this](std::span<const TokenEvent> events) {
          const std::lock_guard lock(mutex_);
          EXPECT_FALSE(events.empty());
          clients_.OnEvents(events, 0);
          for (const TokenEvent& e : events) done_ += e.request_done;
          gauges_at_last_event_ = engine_->snapshot();
          changed_.notify_all();
        },
        [this](const absl::Status& why) {
          const std::lock_guard lock(mutex_);
          fatal_ = why;
        });
    engine_->Start();
  }

  void TearDown() override {
    gate_->Open();
    engine_->Drain(Clock::now() + std::chrono::minutes(1));
    engine_->Join();
    EXPECT_EQ(fake_->first_error(), "");
    for (const auto& [id, seen] : clients_.all()) EXPECT_TRUE(seen.done) << id;
    const EngineSnapshot s = engine_->snapshot();
    EXPECT_EQ(s.pools[0].num_used, 0);
    EXPECT_EQ(s.pools[0].num_cached + s.pools[0].num_free, s.pools[0].num_usable);
    EXPECT_EQ(s.scheduler.live_requests, 0);
    EXPECT_EQ(s.scheduler.running_seqs, 0);
    EXPECT_EQ(s.scheduler.waiting_seqs, 0);
    EXPECT_EQ(scheduler_->Audit(), absl::OkStatus());
  }

  static std::shared_ptr<Request> MakeRequest(RequestId id, int32_t prompt, int32_t max_tokens,
                                              int32_t n = 1) {
    auto r = std::make_shared<Request>();
    r->id = id;
    r->prompt = Iota(static_cast<TokenId>(id % 5), prompt);
    r->stop.max_tokens = max_tokens;
    r->sampling.n = n;
    r->seed = id;
    r->arrival = Clock::now();
    return r;
  }

  // As the edge does it: a place, then the tokens, then the post.
  bool Send(std::shared_ptr<Request> request) {
    if (!engine_->TryEnter()) return false;
    {
      const std::lock_guard lock(mutex_);
      clients_.Add(request);
    }
    const bool posted = engine_->Post(Submit{request});
    EXPECT_TRUE(posted);
    return posted;
  }

  template <typename Condition>
  void Await(Condition condition) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, condition);
  }
  void AwaitDone(int64_t count) {
    Await([&] { return done_ >= count; });
  }

  CacheLayout layout_;
  std::vector<PagePool> pools_;
  std::unique_ptr<BlockManager> blocks_;
  std::unique_ptr<Scheduler> scheduler_;
  std::unique_ptr<FakeExecutor> fake_;
  std::unique_ptr<GatedExecutor> gate_;
  std::unique_ptr<Engine> engine_;

  std::mutex mutex_;
  std::condition_variable changed_;
  Clients clients_;                      // guarded by mutex_
  int64_t done_ = 0;                     // guarded by mutex_
  absl::Status fatal_;                   // guarded by mutex_
  EngineSnapshot gauges_at_last_event_;  // guarded by mutex_
};

TEST_F(EngineTest, ServesFromManyThreads) {
  Make();
  std::vector<std::thread> threads;
  for (RequestId t = 0; t < 4; ++t) {
    threads.emplace_back([this, t] {
      for (RequestId i = 0; i < 25; ++i) {
        EXPECT_TRUE(Send(MakeRequest(1 + t * 25 + i, 3 + static_cast<int32_t>(i), 8)));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  AwaitDone(100);
  const std::lock_guard lock(mutex_);
  for (const auto& [id, seen] : clients_.all()) {
    EXPECT_EQ(seen.outputs[0], Expected(*seen.request, 0)) << id;
  }
}

// Cancels and cuts come from other threads, at any time, also for what has ended already.
TEST_F(EngineTest, TwoThousandMixedRequestsLeaveNothing) {
  SchedulerOptions options;
  options.max_num_seqs = 8;
  options.max_num_batched_tokens = 64;
  options.max_queued_requests = 64;
  Make(options, /*num_pages=*/40);  // small enough that preemption happens
  std::vector<std::thread> threads;
  for (RequestId t = 0; t < 4; ++t) {
    threads.emplace_back([this, t] {
      std::mt19937 rng(static_cast<uint32_t>(t));
      const auto pick = [&](int32_t low, int32_t high) {
        return low + static_cast<int32_t>(rng() % static_cast<uint32_t>(high - low + 1));
      };
      for (RequestId i = 0; i < 500; ++i) {
        const RequestId id = 1 + t * 500 + i;
        auto r = MakeRequest(id, pick(1, 60), pick(1, 40), pick(0, 4) == 0 ? 3 : 1);
        const int32_t how = pick(0, 9);
        if (how == 0) r->prompt = Iota(1, 300);  // never fits
        if (how == 1) r->deadline = Clock::now() + std::chrono::microseconds(pick(0, 3000));
        if (how == 2) r->stop.eos_token_ids = Iota(0, 40);
        while (!Send(r)) std::this_thread::yield();  // the queue is full
        if (how == 3) engine_->PostCancel({.request = id});
        if (how == 4) {
          Await([&] { return clients_[id].num_token_events > 0 || clients_[id].done; });
          engine_->PostCancel({.request = id});  // may race with its end
        }
        if (how == 5) {
          Await([&] { return clients_[id].num_token_events > 1 || clients_[id].done; });
          engine_->PostFinish({.request = id, .branch = 0, .num_output_tokens = 1});
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  AwaitDone(2000);
  const EngineSnapshot s = engine_->snapshot();
  EXPECT_EQ(s.scheduler.submitted, 2000);
  EXPECT_EQ(s.scheduler.left_queue, 2000);
  EXPECT_EQ(s.pools[0].num_used, 0);
  for (const FinishReason reason : {FinishReason::kStop, FinishReason::kLength,
                                    FinishReason::kCancelled, FinishReason::kError}) {
    EXPECT_GT(s.scheduler.num_finished(reason), 20) << static_cast<int>(reason);
  }
  EXPECT_GT(s.scheduler.preemptions, 0);
  EXPECT_GT(s.scheduler.forks, 0);
  const std::lock_guard lock(mutex_);
  for (const auto& [id, seen] : clients_.all()) {
    if (seen.finish[0] == FinishReason::kLength) {
      EXPECT_EQ(seen.outputs[0], Expected(*seen.request, 0)) << id;
    }
  }
}

TEST_F(EngineTest, PlacesAreBoundedBeforeAnythingIsPosted) {
  SchedulerOptions options;
  options.max_queued_requests = 3;
  Make(options);
  gate_->Close();
  ASSERT_TRUE(Send(MakeRequest(1, 4, 5)));
  gate_->AwaitStep(1);  // scheduled, so it has given its place back by the end of the step
  ASSERT_TRUE(engine_->TryEnter());
  ASSERT_TRUE(engine_->TryEnter());
  gate_->AllowOne();
  gate_->AwaitStep(2);
  ASSERT_TRUE(engine_->TryEnter());
  EXPECT_FALSE(engine_->TryEnter());
  EXPECT_TRUE(engine_->accepting());
  engine_->Leave();
  EXPECT_TRUE(Send(MakeRequest(2, 4, 5)));
  EXPECT_FALSE(engine_->TryEnter());
  engine_->Leave();
  engine_->Leave();
  // A cancelled request gives its place back, too, and without a step of its own.
  engine_->PostCancel({.request = 2});
  gate_->Open();
  AwaitDone(2);
  for (int32_t i = 0; i < 3; ++i) EXPECT_TRUE(engine_->TryEnter());
  EXPECT_FALSE(engine_->TryEnter());
}

TEST_F(EngineTest, GaugesFallWithTheLastEventAndWithoutAStep) {
  Make();
  gate_->Close();
  for (RequestId id = 1; id <= 20; ++id) ASSERT_TRUE(Send(MakeRequest(id, 6, 50)));
  gate_->AllowOne();
  gate_->AllowOne();
  gate_->AwaitStep(3);
  for (RequestId id = 1; id <= 20; ++id) engine_->PostCancel({.request = id});
  gate_->AllowOne();
  AwaitDone(20);
  {
    const std::lock_guard lock(mutex_);
    EXPECT_EQ(gauges_at_last_event_.scheduler.running_seqs, 0);
    EXPECT_EQ(gauges_at_last_event_.pools[0].num_used, 0);
  }
  EXPECT_EQ(engine_->snapshot().scheduler.steps, 3) << "the cancels took no step";
}

TEST_F(EngineTest, FailedStepFailsItsRequestsAndTheEngineGoesOn) {
  Make();
  gate_->FailWith(absl::InternalError("kernel says no"));
  ASSERT_TRUE(Send(MakeRequest(1, 4, 5, 2)));
  AwaitDone(1);
  ASSERT_TRUE(Send(MakeRequest(2, 4, 5)));
  AwaitDone(2);
  const std::lock_guard lock(mutex_);
  EXPECT_EQ(Message(clients_[1].error), "kernel says no");
  EXPECT_EQ(clients_[2].finish[0], FinishReason::kLength);
  EXPECT_TRUE(fatal_.ok());
}

TEST_F(EngineTest, LostDeviceFailsAllAndTellsTheOwner) {
  SchedulerOptions options;
  options.max_num_seqs = 2;
  Make(options);
  gate_->Close();
  for (RequestId id = 1; id <= 5; ++id) ASSERT_TRUE(Send(MakeRequest(id, 4, 5)));
  gate_->FailWith(absl::UnavailableError("device lost"));
  gate_->Open();
  AwaitDone(5);
  engine_->Join();
  const std::lock_guard lock(mutex_);
  EXPECT_EQ(fatal_.code(), absl::StatusCode::kUnavailable);
  for (RequestId id = 1; id <= 5; ++id) {
    EXPECT_EQ(clients_[id].finish[0], FinishReason::kError);
    EXPECT_EQ(Message(clients_[id].error), "device lost");
  }
  EXPECT_FALSE(engine_->accepting());
  EXPECT_FALSE(engine_->TryEnter());
  EXPECT_FALSE(engine_->Post(Submit{MakeRequest(6, 4, 5)}));
  EXPECT_FALSE(engine_->PostAdminCall({[](Scheduler&) {}}));
  engine_->PostCancel({.request = 1});
}

TEST_F(EngineTest, DrainFinishesWhatWasAccepted) {
  Make();
  gate_->Close();
  for (RequestId id = 1; id <= 10; ++id) ASSERT_TRUE(Send(MakeRequest(id, 4, 30)));
  engine_->Drain(Clock::now() + std::chrono::minutes(1));
  EXPECT_FALSE(engine_->TryEnter());
  gate_->Open();
  engine_->Join();
  const std::lock_guard lock(mutex_);
  EXPECT_EQ(done_, 10);
  for (const auto& [id, seen] : clients_.all()) {
    EXPECT_EQ(seen.finish[0], FinishReason::kLength) << id;
    EXPECT_EQ(seen.outputs[0], Expected(*seen.request, 0)) << id;
  }
}

TEST_F(EngineTest, DrainCutsAtItsDeadline) {
  SchedulerOptions options;
  options.max_num_seqs = 1;
  Make(options);
  gate_->Close();
  for (RequestId id = 1; id <= 3; ++id) ASSERT_TRUE(Send(MakeRequest(id, 4, 50)));
  gate_->AllowOne();
  gate_->AwaitStep(2);
  engine_->Drain(Clock::now() + std::chrono::hours(1));
  engine_->Drain(Clock::now());  // only ever earlier
  engine_->Drain(Clock::now() + std::chrono::hours(1));
  gate_->AllowOne();
  engine_->Join();
  const std::lock_guard lock(mutex_);
  EXPECT_EQ(done_, 3);
  for (const auto& [id, seen] : clients_.all()) {
    EXPECT_EQ(seen.finish[0], FinishReason::kCancelled) << id;
    EXPECT_EQ(seen.error.code(), absl::StatusCode::kUnavailable) << id;
  }
  EXPECT_EQ(clients_[1].outputs[0].size(), 2u) << "what was said stays";
  EXPECT_TRUE(fatal_.ok());
}

TEST_F(EngineTest, AdminCallsRunBetweenStepsAndWhileIdle) {
  Make();
  for (int32_t i = 0; i < 3; ++i) {
    std::promise<int32_t> reply;
    ASSERT_TRUE(
        engine_->PostAdminCall({[&](Scheduler& s) { reply.set_value(s.blocks().block_size()); }}));
    EXPECT_EQ(reply.get_future().get(), 4);
    if (i == 0) {
      ASSERT_TRUE(Send(MakeRequest(1, 4, 40)));
    }
  }
  AwaitDone(1);
}

// The posters' last commands race with the engine's end: each is run or refused, none is lost.
TEST_F(EngineTest, AdminCallsAreRunOrRefusedAtTheEnd) {
  Make();
  std::atomic<int64_t> accepted{0}, ran{0};
  std::vector<std::thread> threads;
  for (int32_t t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      while (engine_->PostAdminCall({[&](Scheduler&) { ran.fetch_add(1); }})) {
        accepted.fetch_add(1);
      }
    });
  }
  while (ran.load() < 100) std::this_thread::yield();
  engine_->Drain(Clock::now());
  engine_->Join();
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(ran.load(), accepted.load());
}

TEST_F(EngineTest, DeadlineEndsARunningRequest) {
  Make();
  auto r = MakeRequest(1, 4, 4000);
  r->prompt = Iota(1, 4);
  r->stop.max_tokens = 200;
  gate_->Close();
  r->deadline = Clock::now() + milliseconds(5);
  ASSERT_TRUE(Send(r));
  gate_->AwaitStep(1);
  std::this_thread::sleep_until(r->deadline);
  gate_->AllowOne();
  AwaitDone(1);
  const std::lock_guard lock(mutex_);
  EXPECT_EQ(clients_[1].finish[0], FinishReason::kDeadline);
  EXPECT_EQ(clients_[1].outputs[0].size(), 1u);
}

// The audit looks at every page; up to 20,000 of them it comes after every step.
TEST(StepsPerAudit, GrowsWithThePages) {
  for (const auto& [pages, host, steps] :
       {std::tuple(1, 0, 1), std::tuple(20'000, 0, 1), std::tuple(20'001, 0, 2),
        std::tuple(15'000, 5'000, 1), std::tuple(15'000, 5'001, 2), std::tuple(100'000, 0, 5)}) {
    CacheLayout layout;
    layout.block_size = 4;
    layout.groups = {{.group = {.page_size = 4}}};
    layout.pools = {{64}};
    std::vector<PagePool> pools, host_pools;
    pools.emplace_back(pages, 4);
    if (host > 0) host_pools.emplace_back(host, 4);
    const BlockManager blocks(layout, pools, {}, host_pools);
    EXPECT_EQ(StepsPerAudit(blocks), steps) << pages << " " << host;
  }
}

}  // namespace
}  // namespace quire::sched_test
