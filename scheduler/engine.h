// scheduler/engine.h -- the one thread that owns every sequence, page table and page.
//
//   edge threads --Post*--> inbox --> [ Apply -> Schedule -> Executor::Run -> Commit ] --publish-->
//   edge
//
// A request's way in: TryEnter() before its prompt is tokenized, so that a full queue refuses in no
// time; then Post(), or Leave() if there is nothing to post after all. The place taken by TryEnter
// is given back when the request is first scheduled or has ended.
//
// Everything below the inbox is touched by the engine's thread alone and has no locks. What other
// threads may call is marked so; the rest is private.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "base/bounded_queue.h"
#include "base/status.h"
#include "scheduler/executor.h"
#include "scheduler/scheduler.h"

namespace quire {

struct PoolSnapshot {
  int32_t num_usable = 0;  // used + cached + free - retiring
  int32_t num_used = 0;    // in page tables, those of pins included
  int32_t num_cached = 0;  // only in the prefix index: evicted when a page is wanted
  int32_t num_free = 0;
  int32_t num_retiring = 0;  // in use beyond a size that was lowered
  int32_t num_pinned = 0;
  int32_t num_shared = 0;  // with more than one reference
  int64_t num_refs = 0;    // what the used pages would be without sharing
  PoolStats stats;
  // Host tier.
  int32_t num_host = 0;  // slots; free ones are the rest
  int32_t num_swapped = 0;
  int32_t num_host_cached = 0;
  PoolStats host_stats;
};

// Time of a part of all steps. Bucket i counts steps of up to 2^i us that took longer than 2^(i-1).
inline constexpr size_t kNumStepTimeBuckets = 25;
struct StepTimes {
  std::array<int64_t, kNumStepTimeBuckets + 1> counts{};  // the last one: all that is longer
  int64_t sum_us = 0;

  void Add(int64_t us);
};

// Counters since start; a step without rows is none.
struct StepStats {
  // Bucket i counts steps of up to 2^i rows that had more than 2^(i-1).
  static constexpr size_t kNumTokenBuckets = 15;
  std::array<int64_t, kNumTokenBuckets + 1> tokens{};
  int64_t sum_tokens = 0;
  StepTimes schedule, run, commit;
};

// As of the last step or command; what a router and a metrics page look at.
struct EngineSnapshot {
  SchedulerStats scheduler;
  std::vector<PoolSnapshot> pools;  // in the order of CacheLayout::pools
  CacheStats cache;
  StepStats steps;
  DraftStats drafts;
  int64_t num_prefix_roots = 0;
  int64_t num_prefix_nodes = 0;  // roots included
  int64_t num_pins = 0;
};

// With QUIRE_DEBUG_CHECKS one step in so many is audited: each, with up to 20,000 pages in all
// tiers. So the audit stays under 5% of a step of a small model (bench/audit_bench.cc).
int64_t StepsPerAudit(const BlockManager& blocks);

class Engine {
 public:
  // Engine thread. All events of a step, in order; never empty. Must not block.
  using Publish = std::function<void(std::span<const TokenEvent>)>;
  // Engine thread, last thing it does: the device is lost. All requests have ended by then.
  using OnFatal = std::function<void(const absl::Status&)>;

  // `scheduler` and `executor` outlive the engine, and nobody else touches them from Start() on.
  Engine(Scheduler& scheduler, Executor& executor, Publish publish, OnFatal on_fatal = nullptr);
  // Drains at once if that has not been done.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // What of the cache has become findable in a step, and what has ceased to be; handed over before
  // the step's token events. Engine thread; must not block. REQUIRES: before Start, and events are
  // enabled in the block manager.
  using OnCacheEvents = std::function<void(CacheEvents)>;
  void set_on_cache_events(OnCacheEvents on_events) { on_cache_events_ = std::move(on_events); }

  void Start();

  // Any thread. Takes one of max_queued_requests places; false if there is none (the edge answers
  // RESOURCE_EXHAUSTED) or if accepting() is false (UNAVAILABLE). Lock-free.
  [[nodiscard]] bool TryEnter();
  // Any thread. Gives the place back. REQUIRES: TryEnter() was true and no Post() was true since.
  void Leave();
  // Any thread. False before Start, while draining and after the end.
  bool accepting() const { return accepting_.load(std::memory_order_relaxed); }

  // Any thread. False if the inbox is full or the engine doesn't accept: no event will come, and
  // the caller still holds its place. REQUIRES: TryEnter() was true.
  [[nodiscard]] bool Post(Submit submit);
  // Any thread; never lost while the engine runs. After its end there is nothing to cancel any
  // more, so the first two are dropped; PostAdminCall is false and `call` is not going to run.
  void PostCancel(Cancel cancel);
  void PostFinish(Finish finish);
  [[nodiscard]] bool PostAdminCall(AdminCall call);

  // Any thread; returns at once. Stops accepting, finishes what was accepted, and at `deadline`
  // cancels the rest (kCancelled, error kUnavailable). Then the thread ends. A second call can only
  // bring the deadline forward.
  void Drain(Clock::time_point deadline);
  // Waits for the thread's end. One caller, not the engine thread.
  void Join();

  // Any thread. Up to date when an event is published: who sees a request's last event sees its
  // pages free.
  EngineSnapshot snapshot() const;
  // Engine thread, thus within an AdminCall: before it answers, so that who has the answer sees in
  // the snapshot what it did.
  void UpdateSnapshot();

 private:
  struct DrainRequest {
    bool requested = false;
    Clock::time_point deadline = Clock::time_point::max();
  };

  void Loop();
  absl::Status Step(const DrainRequest& drain);
  void Close(const absl::Status& fatal);
  void PublishEvents();
  void Audit();
  bool ForcePost(Command command);
  DrainRequest drain_request() const;

  Scheduler& scheduler_;
  Executor& executor_;
  const Publish publish_;
  const OnFatal on_fatal_;
  OnCacheEvents on_cache_events_;

  std::atomic<bool> accepting_{false};
  std::atomic<int32_t> max_queued_;  // of the scheduler's options
  std::atomic<int32_t> entered_{0};  // places taken by TryEnter
  BoundedQueue<Command> inbox_;      // has a lock of its own
  mutable std::mutex post_mutex_;    // orders posts against Drain and the end
  DrainRequest drain_;               // guarded by post_mutex_
  bool closed_ = false;              // guarded by post_mutex_
  mutable std::mutex snapshot_mutex_;
  EngineSnapshot snapshot_;  // guarded by snapshot_mutex_

  // Engine thread only.
  std::vector<Command> commands_;   // reused every step
  std::vector<TokenEvent> events_;  // reused every step
  int64_t places_returned_ = 0;     // of SchedulerStats::left_queue
  bool audited_ = true;             // since the last step
  int64_t steps_since_audit_ = 0;
  StepStats steps_;

  std::thread thread_;
};

}  // namespace quire
