// tests/engine_chaos_test.cc -- ninety thousand operations by clients and operators at once: every
// request ends exactly once and as it should, every audit is clean, and nothing is left. Meant for
// asan and tsan, too.
//
// Four threads do what comes, each from its own random numbers: requests of every kind, cancels,
// cuts, deadlines, changes of policy and limits, other sizes of the pool, pauses, failing steps.
// The protocol is checked by Clients, the pages by FakeExecutor.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <future>
#include <mutex>
#include <numeric>
#include <random>
#include <thread>

#include "scheduler/engine.h"
#include "tests/scheduler_harness.h"

namespace quire::sched_test {
namespace {

constexpr int32_t kNumOperations = 90'000;
constexpr int32_t kNumThreads = 4;
constexpr int32_t kNumPages = 48;
constexpr int32_t kNumSlots = 24;  // of the host tier
constexpr int32_t kMaxQueued = 48;
constexpr int32_t kMaxSeqs = 8;

enum Operation {
  kSubmit,
  kCancel,
  kCut,
  kLeave,
  kUpdate,
  kResize,
  kPause,
  kFail,
  kAudit,
  kNumKinds
};

// Now and then a step fails.
class FailingExecutor final : public Executor {
 public:
  explicit FailingExecutor(FakeExecutor& inner) : inner_(inner) {}
  absl::StatusOr<StepOutput> Run(const ScheduledBatch& batch) override {
    if (fail_.exchange(false)) inner_.FailNext(absl::InternalError("a step that fails"));
    // A model's step has a fixed part, which makes guesses worth their rows. Without one it depends
    // on the machine's other programs whether they are.
    const Clock::time_point until = Clock::now() + std::chrono::microseconds(40);
    while (Clock::now() < until) {
    }
    return inner_.Run(batch);
  }
  void FailNext() { fail_ = true; }

 private:
  FakeExecutor& inner_;
  std::atomic<bool> fail_{false};
};

class EngineChaos : public testing::Test {
 protected:
  EngineChaos() {
    layout_.block_size = 4;
    layout_.groups = {{.group = {.page_size = 4}}};
    layout_.pools = {{64}};
    pools_.emplace_back(kNumPages, 4);
    host_.emplace_back(kNumSlots, 4);
    SchedulerOptions options;
    options.max_num_seqs = kMaxSeqs;
    options.max_num_batched_tokens = 48;
    options.max_queued_requests = kMaxQueued;
    options.max_model_len = 4096;
    options.preemption = PreemptionMode::kAuto;
    options.num_speculative_tokens = 4;
    BlockManagerOptions cache{.max_step_tokens = options.max_num_batched_tokens};
    blocks_ = std::make_unique<BlockManager>(layout_, pools_, cache, host_);
    scheduler_ = std::make_unique<Scheduler>(options, *blocks_);
    scheduler_->SetProposer(SpeculationMethod::kNgram, &proposer_);
    scheduler_->SetDefaultSpeculation(SpeculationMethod::kNgram);
    fake_ = std::make_unique<FakeExecutor>(*blocks_, options.max_num_batched_tokens, false,
                                           options.max_num_seqs);
    executor_ = std::make_unique<FailingExecutor>(*fake_);
    engine_ = std::make_unique<Engine>(*scheduler_, *executor_,
                                       [this](std::span<const TokenEvent> events) {
                                         const std::lock_guard lock(mutex_);
                                         clients_.OnEvents(events, 0);
                                       });
  }

  // One client, who is an operator, too.
  class Client {
   public:
    Client(EngineChaos& test, int32_t number)
        : test_(test), number_(number), rng_(static_cast<uint32_t>(number)) {}

    void Run() {
      for (int32_t done = 0; done < kNumOperations / kNumThreads;) {
        const Operation operation = Choose();
        if (!Do(operation)) {
          std::this_thread::yield();  // the queue is full, or there is nothing to cut yet
          continue;
        }
        ++test_.counts_[operation];
        if (++done % 4 == 0) LetItStep();
      }
    }

   private:
    int32_t Pick(int32_t low, int32_t high) {
      return low + static_cast<int32_t>(rng_() % static_cast<uint32_t>(high - low + 1));
    }

    // Everything could be said before the first steps: so the engine gets a turn now and then.
    // While it is paused there is none to wait for.
    void LetItStep() {
      const int64_t steps = test_.engine_->snapshot().scheduler.steps;
      const Clock::time_point end = Clock::now() + std::chrono::milliseconds(4);
      while (Clock::now() < end && test_.engine_->snapshot().scheduler.steps == steps) {
        std::this_thread::yield();
      }
    }

    Operation Choose() {
      const int32_t x = Pick(0, 99);
      return x < 50   ? kSubmit
             : x < 63 ? kCancel
             : x < 73 ? kCut
             : x < 76 ? kLeave
             : x < 84 ? kUpdate
             : x < 91 ? kResize
             : x < 94 ? kPause
             : x < 95 ? kFail
                      : kAudit;
    }

    bool Do(Operation operation) {
      Engine& engine = *test_.engine_;
      switch (operation) {
        case kSubmit:
          return Submit();
        case kCancel:
          if (ids_.empty()) return false;
          engine.PostCancel({.request = AnyId()});
          return true;
        case kCut:
          if (ids_.empty()) return false;
          engine.PostFinish(
              {.request = AnyId(), .branch = Pick(0, 1), .num_output_tokens = Pick(1, 6)});
          return true;
        case kLeave:
          if (!engine.TryEnter()) return false;
          engine.Leave();
          return true;
        case kUpdate:
          return engine.PostAdminCall({[this, update = RandomUpdate()](Scheduler& s) {
            (void)s.Update(update);  // refused if a waiting request needs the places
          }});
        case kResize:
          return engine.PostAdminCall({[size = Pick(kNumPages / 3, kNumPages)](Scheduler& s) {
            std::vector<PageId> retired;
            (void)s.ResizePool(0, size, retired);  // refused if what is admitted needs more
          }});
        case kPause:
          // Twice as many resumes: else all would stand still most of the time.
          return engine.PostAdminCall(
              {[pause = Pick(0, 2) == 0](Scheduler& s) { s.SetPaused(pause); }});
        case kFail:
          test_.executor_->FailNext();
          return true;
        case kAudit:
          return engine.PostAdminCall({[this](Scheduler& s) {
            const absl::Status sound = s.Audit();
            EXPECT_TRUE(sound.ok()) << Message(sound);
            ++test_.num_audits_;
          }});
        case kNumKinds:
          break;
      }
      return false;
    }

    RequestId AnyId() {
      const auto recent = std::min<size_t>(ids_.size(), 24);
      return ids_[ids_.size() - 1 - rng_() % recent];
    }

    SchedulerUpdate RandomUpdate() {
      SchedulerUpdate update;
      switch (Pick(0, 4)) {
        case 0:
        case 1:
          update.policy = static_cast<SchedulingPolicy>(Pick(0, 4));
          break;
        case 2:
          update.max_num_seqs = Pick(2, kMaxSeqs);
          update.max_num_batched_tokens = Pick(kMaxSeqs, 48);
          break;
        case 3:
          update.max_queued_requests = Pick(kMaxQueued / 4, kMaxQueued);
          update.watermark = Pick(0, 10) / 100.0;
          break;
        default:
          update.long_prefill_token_threshold = Pick(0, 8);
          update.num_speculative_tokens = Pick(0, 4);
          break;
      }
      return update;
    }

    bool Submit() {
      if (!test_.engine_->TryEnter()) return false;
      auto r = std::make_shared<Request>();
      r->id = static_cast<RequestId>(number_) * 1'000'000 + ids_.size() + 1;
      // Families of prompts that begin alike, so that prefixes are found.
      r->prompt = Iota(50 * Pick(0, 2), Pick(1, 24));
      for (int32_t k = Pick(0, 5); k > 0; --k) r->prompt.push_back(Pick(0, 3));
      if (Pick(0, 49) == 0) r->prompt = Iota(7, 4 * kNumPages);  // can never fit
      r->stop.max_tokens = Pick(1, 12);
      if (Pick(0, 2) == 0) r->stop.eos_token_ids = Iota(0, 30);
      r->sampling.n = Pick(0, 5) == 0 ? 2 : 1;
      r->seed = rng_() % 8;
      r->priority = Pick(-2, 2);
      r->tenant = std::string(1, static_cast<char>('a' + Pick(0, 3)));
      if (Pick(0, 3) == 0) r->cache_salt = r->tenant;
      r->bypass_prefix_cache = Pick(0, 9) == 0;
      if (Pick(0, 7) == 0) r->prompt_logprobs = 0;
      r->speculation.branching_factor = Pick(1, 2);
      if (Pick(0, 11) == 0) {
        r->sampling.n = 1;
        r->stop.max_tokens = Pick(1, 5);
        r->beam.beam_width = 2;
        r->beam.num_return_sequences = Pick(1, 2);
      }
      r->arrival = Clock::now();
      if (Pick(0, 9) == 0) r->deadline = r->arrival + std::chrono::microseconds(Pick(0, 4000));
      ids_.push_back(r->id);
      {
        const std::lock_guard lock(test_.mutex_);
        test_.clients_.Add(r);
      }
      EXPECT_TRUE(test_.engine_->Post(quire::Submit{r}));
      return true;
    }

    EngineChaos& test_;
    const int32_t number_;
    std::mt19937 rng_;
    std::vector<RequestId> ids_;
  };

  // What ended by itself is what it is alone; what was cut short is its beginning.
  static void ExpectAsSolo(const Seen& seen) {
    const auto whole = [&](size_t b) {
      return seen.finish[b] == FinishReason::kLength ||
             (seen.finish[b] == FinishReason::kStop && seen.stop_tokens[b] >= 0);
    };
    if (seen.request->beam.on()) {
      if (whole(0)) Harness::ExpectBeams(seen);
      return;
    }
    for (size_t b = 0; b < seen.outputs.size(); ++b) {
      const std::vector<TokenId> want = Expected(*seen.request, static_cast<int32_t>(b));
      ASSERT_LE(seen.outputs[b].size(), want.size());
      if (whole(b)) {
        ASSERT_EQ(seen.outputs[b].size(), want.size()) << "request " << seen.request->id;
      }
      ASSERT_TRUE(std::equal(seen.outputs[b].begin(), seen.outputs[b].end(), want.begin()))
          << "request " << seen.request->id << " branch " << b;
    }
  }

  CacheLayout layout_;
  std::vector<PagePool> pools_, host_;
  std::unique_ptr<BlockManager> blocks_;
  FakeProposer proposer_{1, 70};
  std::unique_ptr<Scheduler> scheduler_;
  std::unique_ptr<FakeExecutor> fake_;
  std::unique_ptr<FailingExecutor> executor_;
  std::unique_ptr<Engine> engine_;
  std::array<std::atomic<int32_t>, kNumKinds> counts_{};
  int64_t num_audits_ = 0;  // engine thread

  std::mutex mutex_;
  Clients clients_;  // guarded by mutex_
};

TEST_F(EngineChaos, NinetyThousandOperationsEndEveryRequestOnce) {
  engine_->Start();
  std::vector<std::thread> threads;
  for (int32_t t = 0; t < kNumThreads; ++t) {
    threads.emplace_back([this, t] { Client(*this, t + 1).Run(); });
  }
  for (std::thread& thread : threads) thread.join();
  // A pause does not keep a drain from ending.
  EXPECT_TRUE(engine_->PostAdminCall({[](Scheduler& s) { s.SetPaused(true); }}));
  engine_->Drain(Clock::now() + std::chrono::minutes(5));
  engine_->Join();

  int32_t num_operations = 0;
  for (const std::atomic<int32_t>& count : counts_) num_operations += count;
  EXPECT_EQ(num_operations, kNumOperations);
  EXPECT_EQ(fake_->first_error(), "");
  EXPECT_EQ(num_audits_, counts_[kAudit]);
  EXPECT_EQ(scheduler_->Audit(), absl::OkStatus());
  EXPECT_TRUE(scheduler_->idle());

  // Ended exactly once: Clients has failed on any event after the last.
  const std::lock_guard lock(mutex_);
  EXPECT_EQ(static_cast<int32_t>(clients_.all().size()), counts_[kSubmit]);
  EXPECT_TRUE(clients_.live().empty());
  for (const auto& [id, seen] : clients_.all()) {
    ASSERT_TRUE(seen.done) << id;
    ASSERT_NO_FATAL_FAILURE(ExpectAsSolo(seen));
  }
  const EngineSnapshot s = engine_->snapshot();
  const SchedulerStats& stats = s.scheduler;
  EXPECT_EQ(stats.submitted, counts_[kSubmit]);
  EXPECT_EQ(stats.left_queue, stats.submitted);
  EXPECT_EQ(std::accumulate(stats.finished.begin(), stats.finished.end(), int64_t{0}),
            stats.submitted);
  EXPECT_EQ(stats.running_seqs + stats.waiting_seqs + stats.live_requests, 0);
  EXPECT_EQ(s.pools[0].num_used, 0);
  EXPECT_EQ(s.pools[0].num_cached + s.pools[0].num_free, s.pools[0].num_usable);
  EXPECT_EQ(s.pools[0].num_swapped, 0);

  // It was not a quiet day.
  for (const FinishReason reason :
       {FinishReason::kStop, FinishReason::kLength, FinishReason::kCancelled,
        FinishReason::kDeadline, FinishReason::kError}) {
    EXPECT_GT(stats.num_finished(reason), 50) << static_cast<int>(reason);
  }
  EXPECT_GT(stats.policy_changes, 500);
  EXPECT_GT(stats.preemptions, 100);
  EXPECT_GT(stats.forks, 100);
  EXPECT_GT(stats.beam_steps, 100);
  EXPECT_GT(stats.accepted_draft_tokens, 100);
  EXPECT_GT(stats.prefix_hit_tokens, 1000);
  EXPECT_GT(s.pools[0].stats.dropped[static_cast<size_t>(DropReason::kEvicted)], 100);
}

// A place less in the queue counts from the next step on, not for who has one already.
TEST_F(EngineChaos, ALowerQueueBoundHolds) {
  engine_->Start();
  const auto bound = [&](int32_t most) {
    ASSERT_TRUE(engine_->PostAdminCall({[&](Scheduler& s) {
      EXPECT_EQ(s.Update({.max_queued_requests = most}), absl::OkStatus());
    }}));
    // The second call comes after the first one's answer, so a step lies between them.
    for (int32_t i = 0; i < 2; ++i) {
      std::promise<void> step;
      ASSERT_TRUE(engine_->PostAdminCall({[&](Scheduler&) { step.set_value(); }}));
      step.get_future().wait();
    }
  };
  for (int32_t i = 0; i < 5; ++i) ASSERT_TRUE(engine_->TryEnter());
  bound(3);
  EXPECT_FALSE(engine_->TryEnter()) << "5 places are taken, 3 are there";
  for (int32_t i = 0; i < 3; ++i) engine_->Leave();
  EXPECT_TRUE(engine_->TryEnter());
  EXPECT_FALSE(engine_->TryEnter());
  bound(4);
  EXPECT_TRUE(engine_->TryEnter());
  EXPECT_FALSE(engine_->TryEnter());
  for (int32_t i = 0; i < 4; ++i) engine_->Leave();
}

}  // namespace
}  // namespace quire::sched_test
