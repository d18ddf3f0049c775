#include "base/thread_pool.h"

#include <sched.h>

#include <algorithm>

#include "base/cpu_topology.h"
#include "base/status.h"
#include "base/thread_name.h"

namespace quire {
namespace {

// About 50 microseconds on a current core: longer than the serial gap between two kernels of a
// layer, shorter than a scheduler tick, so that an idle daemon burns nothing.
constexpr int kSpins = 4000;

inline void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

ThreadPool::ThreadPool(int32_t num_threads)
    : shares_(static_cast<size_t>(std::max(1, num_threads))) {
  CHECK(num_threads >= 1, "num_threads={}", num_threads);
  workers_.reserve(static_cast<size_t>(num_threads) - 1);
  for (int32_t i = 1; i < num_threads; ++i) {
    workers_.emplace_back([this, i] {
      SetThreadName("quire-kernel");
      WorkerLoop(i);
    });
  }
}

ThreadPool::~ThreadPool() {
  {
    const std::lock_guard lock(mutex_);
    stop_.store(true);
    job_.store((NumberOf(job_.load()) + 1) << 32);
  }
  wake_.notify_all();
  for (std::thread& t : workers_) t.join();
}

// Its own share first, then the others' in turn; `share` counts those it has been through.
bool ThreadPool::NextTask(int32_t worker, int32_t& share, int64_t& task) {
  const int32_t n = num_threads();
  for (; share < n; ++share) {
    Share& s = shares_[static_cast<size_t>((worker + share) % n)];
    if (s.next.load(std::memory_order_relaxed) >= s.end) continue;
    task = s.next.fetch_add(1, std::memory_order_relaxed);
    if (task < s.end) return true;
  }
  return false;
}

void ThreadPool::TakeTasks(int32_t worker) {
  int32_t share = 0;
  int64_t task = 0;
  if (!NextTask(worker, share, task)) return;
  std::chrono::steady_clock::time_point begin;
  if (observer_ != nullptr) begin = std::chrono::steady_clock::now();
  do {
    call_(fn_, task, worker);
  } while (NextTask(worker, share, task));
  if (observer_ != nullptr) observer_->OnTasks(worker, begin, std::chrono::steady_clock::now());
}

void ThreadPool::Run(int64_t num_tasks, Call call, const void* fn) {
  if (num_tasks <= 0) return;
  if (workers_.empty() || num_tasks == 1) {
    std::chrono::steady_clock::time_point begin;
    if (observer_ != nullptr) begin = std::chrono::steady_clock::now();
    for (int64_t i = 0; i < num_tasks; ++i) call(fn, i, 0);
    if (observer_ != nullptr) observer_->OnTasks(0, begin, std::chrono::steady_clock::now());
    return;
  }
  call_ = call;
  fn_ = fn;
  const int64_t n = num_threads();
  for (int64_t i = 0; i < n; ++i) {
    Share& s = shares_[static_cast<size_t>(i)];
    s.next.store(num_tasks * i / n, std::memory_order_relaxed);
    s.end = num_tasks * (i + 1) / n;
  }
  // seq_cst: pairs with num_parked_ below.
  job_.store((NumberOf(job_.load(std::memory_order_relaxed)) + 1) << 32 | kOpen);
  if (num_parked_.load() > 0) {
    { const std::lock_guard lock(mutex_); }  // nobody is between its last look and its wait
    wake_.notify_all();
  }
  TakeTasks(0);
  // All tasks are taken: who is not in by now has nothing to do. Of those who are one may have lost
  // its core: spin briefly, then yield.
  uint64_t job = job_.fetch_and(~kOpen, std::memory_order_acquire);
  for (int spins = 0; (job & kIn) != 0; ++spins) {
    if (spins < kSpins) {
      Pause();
    } else {
      sched_yield();
    }
    job = job_.load(std::memory_order_acquire);
  }
}

void ThreadPool::WorkerLoop(int32_t worker) {
  uint64_t seen = 0;
  while (true) {
    uint64_t job = job_.load(std::memory_order_acquire);
    for (int spins = 0; NumberOf(job) == seen && spins < kSpins; ++spins) {
      Pause();
      job = job_.load(std::memory_order_acquire);
    }
    if (NumberOf(job) == seen) {
      std::unique_lock lock(mutex_);
      num_parked_.fetch_add(1);
      wake_.wait(lock, [&] { return NumberOf(job_.load()) != seen; });
      num_parked_.fetch_sub(1);
      job = job_.load();
    }
    if (stop_.load()) return;
    bool in = false;
    while ((job & kOpen) != 0 && !in) {
      in = job_.compare_exchange_weak(job, job + 1, std::memory_order_acquire);
    }
    seen = NumberOf(job);
    if (!in) continue;
    TakeTasks(worker);
    job_.fetch_sub(1, std::memory_order_release);
  }
}

int32_t NumPhysicalCores() { return ReadCpuTopology(AllowedCpus()).usable_cores; }

}  // namespace quire
