// server/heap_trimmer.h -- gives memory that is free inside the heap back to the system.
//
// A thousand connections that came and went leave holes between what still lives; glibc keeps their
// pages for good unless it is told (malloc_trim(3)). A thread of its own looks every few seconds,
// and acts only if there is much to gain: each heap is locked while its pages are given back, for
// about a millisecond per 100 MiB.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <thread>

namespace quire {

class HeapTrimmer {
 public:
  struct Options {
    std::chrono::milliseconds period{5000};
    size_t min_free_bytes = size_t{32} << 20;
  };
  explicit HeapTrimmer(Options options);
  HeapTrimmer() : HeapTrimmer(Options()) {}
  ~HeapTrimmer();

 private:
  void Loop();

  const Options options_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stop_ = false;  // guarded by mutex_
  std::thread thread_;
};

}  // namespace quire
