#include "server/heap_trimmer.h"

#include <malloc.h>

#include "base/thread_name.h"

namespace quire {

HeapTrimmer::HeapTrimmer(Options options) : options_(options), thread_([this] { Loop(); }) {}

HeapTrimmer::~HeapTrimmer() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void HeapTrimmer::Loop() {
  SetThreadName("quire-heap");
  size_t left = 0;  // free bytes that could not be given back: pieces of pages
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, options_.period, [this] { return stop_; })) {
    const size_t free = ::mallinfo2().fordblks;
    if (free < left) left = free;
    if (free - left < options_.min_free_bytes) continue;
    ::malloc_trim(0);
    // Pages that were given back are still counted as free: only what comes on top is worth it.
    left = ::mallinfo2().fordblks;
  }
}

}  // namespace quire
