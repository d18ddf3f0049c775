// base/thread_pool.h -- fixed workers for the kernels: short spin, then park; the caller is worker
// 0. A job waits for those who work on it only: while other threads of the machine have a worker's
// core, its share is done by the rest.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace quire {

// ParallelFor is called from one thread at a time (the engine thread) and returns when all tasks
// are done. Each worker begins with a share of neighbouring tasks, ascending, so that it reads one
// stretch of memory; whoever is done helps the others, so which worker computes a task is free, and
// what a task computes must not depend on it. An own pool, not OpenMP: TSan reports false races
// with libgomp, and thread counts stay ours.
class ThreadPool {
 public:
  // num_threads: the caller included; at least 1.
  explicit ThreadPool(int32_t num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  // Told by each worker, on its own thread, when it took part in a ParallelFor: from its first task
  // to its last. What it wrote is visible to the caller once ParallelFor has returned.
  class Observer {
   public:
    virtual void OnTasks(int32_t worker, std::chrono::steady_clock::time_point begin,
                         std::chrono::steady_clock::time_point end) = 0;

   protected:
    ~Observer() = default;
  };
  // Null: nobody, which costs nothing. Not during a ParallelFor; it outlives the pool or is unset.
  void set_observer(Observer* observer) { observer_ = observer; }

  int32_t num_threads() const { return static_cast<int32_t>(workers_.size()) + 1; }

  // Calls fn(task, worker) for each task in [0, num_tasks), worker in [0, num_threads()).
  template <typename Fn>
  void ParallelFor(int64_t num_tasks, const Fn& fn) {
    Run(
        num_tasks,
        [](const void* f, int64_t task, int32_t worker) {
          (*static_cast<const Fn*>(f))(task, worker);
        },
        &fn);
  }

 private:
  using Call = void (*)(const void* fn, int64_t task, int32_t worker);
  void Run(int64_t num_tasks, Call call, const void* fn);
  void WorkerLoop(int32_t worker);
  void TakeTasks(int32_t worker);
  bool NextTask(int32_t worker, int32_t& share, int64_t& task);

  std::vector<std::thread> workers_;
  // One job at a time. Written by the caller while no worker is in, read by workers that are.
  Call call_ = nullptr;
  const void* fn_ = nullptr;
  Observer* observer_ = nullptr;
  struct alignas(64) Share {
    std::atomic<int64_t> next{0};
    int64_t end = 0;
  };
  std::vector<Share> shares_;  // [num_threads]
  // Of the job: its number in the upper half, kOpen while workers may come in, and how many are in.
  // A worker that comes too late, because another thread had its core, is not waited for.
  static constexpr uint64_t kOpen = uint64_t{1} << 31;
  static constexpr uint64_t kIn = kOpen - 1;
  static constexpr uint64_t NumberOf(uint64_t job) { return job >> 32; }
  alignas(64) std::atomic<uint64_t> job_{0};
  alignas(64) std::atomic<int32_t> num_parked_{0};
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  std::condition_variable wake_;
};

// Physical cores that this process may run on (affinity and SMT siblings respected); at least 1.
int32_t NumPhysicalCores();

}  // namespace quire
