// base/bounded_queue.h -- the border between the threads that serve clients and the engine.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <stop_token>
#include <utility>
#include <vector>

namespace quire {

// Many producers, one consumer that takes everything at once: gRPC handlers push commands, the
// engine drains them once per step. The lock is held for one move or one swap, so at a few thousand
// pushes a second a lock-free queue would buy nothing.
template <typename T>
class BoundedQueue {
 public:
  explicit BoundedQueue(size_t capacity) : capacity_(capacity) {}

  // False if full: the caller answers RESOURCE_EXHAUSTED. Never blocks.
  [[nodiscard]] bool TryPush(T item) {
    {
      const std::lock_guard lock(mutex_);
      if (items_.size() >= capacity_) return false;
      items_.push_back(std::move(item));
    }
    ready_.notify_one();
    return true;
  }

  // For items that must not be lost (a cancel): may exceed the capacity. Their number is bounded by
  // what TryPush admitted before.
  void ForcePush(T item) {
    {
      const std::lock_guard lock(mutex_);
      items_.push_back(std::move(item));
    }
    ready_.notify_one();
  }

  // Swaps all items into `out`, which must be empty and whose capacity is reused. With `wait`,
  // blocks until there is an item, stop is requested or `deadline` has passed. Consumer only.
  void Drain(std::vector<T>& out, bool wait, const std::stop_token& stop,
             std::chrono::steady_clock::time_point deadline =
                 std::chrono::steady_clock::time_point::max()) {
    std::unique_lock lock(mutex_);
    if (wait) {
      const auto ready = [&] { return !items_.empty(); };
      if (deadline == std::chrono::steady_clock::time_point::max()) {
        ready_.wait(lock, stop, ready);
      } else {
        ready_.wait_until(lock, stop, deadline, ready);
      }
    }
    std::swap(items_, out);
  }

  size_t size() const {
    const std::lock_guard lock(mutex_);
    return items_.size();
  }

 private:
  const size_t capacity_;
  mutable std::mutex mutex_;
  std::condition_variable_any ready_;
  std::vector<T> items_;  // guarded by mutex_
};

}  // namespace quire
