#include "paged_cache/pool_toucher.h"

#include <sys/mman.h>

#include <algorithm>

#include "base/memory_info.h"
#include "base/status.h"
#include "base/thread_name.h"

namespace quire {
namespace {

constexpr int64_t kStep = int64_t{2} << 20;  // a huge page
constexpr int64_t kOsPage = 4096;
constexpr int kPopulateWrite = 23;  // MADV_POPULATE_WRITE, which older headers do not have

int64_t NowNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

int64_t EndOf(int32_t last_page, int64_t page_bytes) {
  return (int64_t{last_page} + 1) * page_bytes;
}

}  // namespace

// Of no bytes at all, it only says whether the advice is known.
bool PoolToucher::Supported() {
  alignas(kOsPage) static std::byte page[kOsPage];
  return ::madvise(page, 0, kPopulateWrite) == 0;
}

PoolToucher::PoolToucher(const PageStorage& storage, std::span<const int32_t> usable,
                         PoolToucherOptions options)
    : options_(std::move(options)),
      begin_(std::chrono::steady_clock::now() + options_.delay),
      pools_(storage.num_pools()) {
  CHECK(usable.size() == pools_.size(), "{} sizes for {} pools", usable.size(), pools_.size());
  double all = 0;
  for (size_t i = 0; i < pools_.size(); ++i) {
    const auto index = static_cast<int32_t>(i);
    Pool& pool = pools_[i];
    pool.base = storage.base(index);
    pool.page_bytes = static_cast<int64_t>(storage.page_bytes(index));
    pool.limit = EndOf(usable[i], pool.page_bytes);
    // The null page is never written.
    pool.used = pool.ready = pool.told = EndOf(kNullPage, pool.page_bytes);
    all += static_cast<double>(pool.limit);
  }
  for (Pool& pool : pools_) {
    pool.ahead = static_cast<int64_t>(static_cast<double>(options_.ahead_bytes) *
                                      (static_cast<double>(pool.limit) / all));
  }
  thread_ = std::thread([this] { Loop(); });
}

PoolToucher::~PoolToucher() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

// ---- engine thread ----

void PoolToucher::StepBegins(std::span<const PagePool> pools) {
  in_step_.store(true, std::memory_order_relaxed);
  bool wake = false;
  for (size_t i = 0; i < pools_.size(); ++i) {
    Pool& pool = pools_[i];
    const int64_t used = EndOf(pools[i].highest_taken(), pool.page_bytes);
    pool.used.store(used, std::memory_order_relaxed);
    if (used / kStep == pool.told / kStep) continue;
    pool.told = used;
    wake = true;
  }
  if (wake) Wake();
}

void PoolToucher::StepEnds() {
  step_end_ns_.store(NowNs(), std::memory_order_relaxed);
  in_step_.store(false, std::memory_order_relaxed);
}

void PoolToucher::SetUsable(int32_t pool, int32_t usable) {
  Pool& p = pools_[static_cast<size_t>(pool)];
  p.limit.store(EndOf(usable, p.page_bytes), std::memory_order_relaxed);
  Wake();
}

void PoolToucher::Wake() {
  {
    const std::lock_guard lock(mutex_);
    woken_ = true;
    resting_ = false;
  }
  changed_.notify_one();
}

// ---- any thread ----

void PoolToucher::Wait() {
  std::unique_lock lock(mutex_);
  rests_.wait(lock, [this] { return resting_; });
}

int64_t PoolToucher::ready_bytes() const {
  int64_t sum = 0;
  for (const Pool& pool : pools_) sum += std::max<int64_t>(0, pool.ready - pool.used);
  return sum;
}

// ---- its own thread ----

void PoolToucher::Loop() {
  SetThreadName("quire-pool");
  const auto stopped = [this] { return stop_; };
  const auto called = [this] { return stop_ || woken_; };
  std::unique_lock lock(mutex_);
  while (!stop_) {
    woken_ = false;
    Pool* const pool = FindWork();
    if (pool != nullptr && !MayWork()) {
      changed_.wait_for(lock, options_.quiet, stopped);
      continue;
    }
    if (pool != nullptr) {
      lock.unlock();
      const bool done = Touch(*pool);
      lock.lock();
      if (done) continue;
    }
    if (called()) continue;
    resting_ = true;
    rests_.notify_all();
    if (pool == nullptr) {
      changed_.wait(lock, called);
    } else {
      changed_.wait_for(lock, options_.retry, called);
    }
    resting_ = false;
  }
}

// The first pool of which too little is ready.
PoolToucher::Pool* PoolToucher::FindWork() {
  for (Pool& pool : pools_) {
    const int64_t used = pool.used;
    const int64_t limit = pool.limit;
    // Beyond the limit memory was given back. What was handed out is somebody else's.
    pool.ready = std::max(used, std::min<int64_t>(pool.ready, limit));
    if (pool.ready < std::min(used + pool.ahead, limit)) return &pool;
  }
  return nullptr;
}

bool PoolToucher::MayWork() const {
  if (std::chrono::steady_clock::now() < begin_) return false;
  if (options_.beside_steps) return true;
  const std::chrono::nanoseconds rest(NowNs() - step_end_ns_);
  return !in_step_ && rest >= options_.quiet;
}

// Up to the next border of huge pages. False if there is too little memory.
bool PoolToucher::Touch(Pool& pool) {
  const int64_t available =
      options_.available != nullptr ? options_.available() : ReadMemoryInfo().available;
  if (available < options_.keep_free_bytes + kStep) return false;
  const int64_t begin = pool.ready / kOsPage * kOsPage;
  const int64_t end = std::min<int64_t>(pool.limit, (pool.ready / kStep + 1) * kStep);
  if (end <= begin) return true;  // the pool shrank meanwhile
  if (::madvise(pool.base + begin, static_cast<size_t>(end - begin), kPopulateWrite) != 0) {
    return false;
  }
  pool.ready = end;
  return true;
}

}  // namespace quire
