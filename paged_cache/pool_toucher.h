// paged_cache/pool_toucher.h -- the pools' memory is made ready before it is written.
//
// A pool is address space; the kernel finds and clears memory at the first write to it, in the
// middle of a step, and in a virtual machine the host may have to find it, too (`quire bench ops`
// with prefault_mib=0: write_kv). One thread does it ahead of time: `ahead_bytes` beyond the
// highest page that was ever handed out (PagePool::highest_taken) are ready, as long as no step
// waits for it.
//
// Contents never change: MADV_POPULATE_WRITE (Linux 5.14) faults pages in as a write would and
// writes nothing, so it is safe beside whatever the kernels write. Pages up to the highest one that
// was handed out are not touched again, whether or not their memory was given back meanwhile.
//
// When: while no step runs, unless there are CPUs that no kernel thread needs. Not at a low
// priority: the kernel holds the process's map of memory until 2 MiB are cleared, and with every
// CPU busy a thread of SCHED_IDLE or nice 19 takes long over that, while nobody's mmap or munmap,
// thus many a malloc, comes back. At normal priority, with the engine at rest, it takes as
// long as the memory does.
//
// Never what gets the process killed: before each 2 MiB it looks whether `keep_free_bytes` will
// still be available (base/memory_info.h), and if not, looks again some seconds later.
//
// Threads: one of its own, "quire-pool". StepScope and SetUsable: engine thread, which waits for
// nothing but a mutex that is never held during a system call on memory. ready_bytes: any.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "base/types.h"
#include "paged_cache/page_pool.h"
#include "paged_cache/page_storage.h"

namespace quire {

struct PoolToucherOptions {
  int64_t ahead_bytes = 0;  // of all pools together; each has its share by its size
  int64_t keep_free_bytes = 0;
  bool beside_steps = false;              // there are CPUs that no kernel thread needs
  std::chrono::milliseconds delay{0};     // first: a start has better use for the CPU
  std::chrono::milliseconds quiet{20};    // without a step, before it works
  std::chrono::milliseconds retry{5000};  // after it found too little memory
  std::function<int64_t()> available;     // bytes; empty: of the host, by ReadMemoryInfo
};

class PoolToucher {
 public:
  // The kernel knows MADV_POPULATE_WRITE.
  static bool Supported();

  // usable[i]: pages of storage's pool i, the null page not included. REQUIRES: Supported();
  // `storage` outlives it.
  PoolToucher(const PageStorage& storage, std::span<const int32_t> usable,
              PoolToucherOptions options);
  ~PoolToucher();  // waits for 2 MiB at most
  PoolToucher(const PoolToucher&) = delete;
  PoolToucher& operator=(const PoolToucher&) = delete;

  // A step runs while it lives, with the pages that `pools` have handed out. toucher: null for
  // none.
  class StepScope {
   public:
    StepScope(PoolToucher* toucher, std::span<const PagePool> pools) : toucher_(toucher) {
      if (toucher_ != nullptr) toucher_->StepBegins(pools);
    }
    ~StepScope() {
      if (toucher_ != nullptr) toucher_->StepEnds();
    }
    StepScope(const StepScope&) = delete;
    StepScope& operator=(const StepScope&) = delete;

   private:
    PoolToucher* toucher_;
  };

  // The pool was resized; before its memory is given back. What is on its way then, 2 MiB at most,
  // may stay.
  void SetUsable(int32_t pool, int32_t usable);

  // Blocks until there is nothing to do, or no memory to do it with: tests and measurements.
  void Wait();

  // Bytes beyond the highest handed-out pages that are ready now.
  int64_t ready_bytes() const;

 private:
  struct Pool {
    std::byte* base = nullptr;
    int64_t page_bytes = 0;
    int64_t ahead = 0;
    // Offsets from base.
    std::atomic<int64_t> used{0};   // end of the highest page ever handed out
    std::atomic<int64_t> limit{0};  // end of the last usable page
    std::atomic<int64_t> ready{0};  // all from `used` up to it is; written by the thread only
    int64_t told = 0;               // `used` when the thread was last woken; engine thread
  };

  void StepBegins(std::span<const PagePool> pools);
  void StepEnds();
  void Wake();
  void Loop();
  Pool* FindWork();
  bool MayWork() const;
  bool Touch(Pool& pool);

  const PoolToucherOptions options_;
  const std::chrono::steady_clock::time_point begin_;
  std::vector<Pool> pools_;
  std::atomic<bool> in_step_{false};
  std::atomic<int64_t> step_end_ns_{0};  // of the last one, steady clock
  std::mutex mutex_;
  std::condition_variable changed_;
  std::condition_variable rests_;
  bool stop_ = false;     // guarded by mutex_, as those below
  bool woken_ = false;    // there may be work
  bool resting_ = false;  // there is none, or no memory for it
  std::thread thread_;
};

}  // namespace quire
