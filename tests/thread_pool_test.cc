// tests/thread_pool_test.cc -- every task runs exactly once, whatever the number of threads; also
// the TSan target for spin, park and wake.
#include "base/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <vector>

namespace quire {
namespace {

TEST(ThreadPool, RunsEachTaskOnceOnAValidWorker) {
  for (int32_t threads = 1; threads <= 4; ++threads) {
    ThreadPool pool(threads);
    for (int64_t tasks : {0, 1, 2, 3, 7, 64, 1000}) {
      std::vector<std::atomic<int>> seen(static_cast<size_t>(tasks));
      std::atomic<bool> bad_worker{false};
      pool.ParallelFor(tasks, [&](int64_t task, int32_t worker) {
        seen[static_cast<size_t>(task)].fetch_add(1);
        if (worker < 0 || worker >= threads) bad_worker = true;
      });
      for (const auto& count : seen) ASSERT_EQ(count.load(), 1) << threads << " " << tasks;
      EXPECT_FALSE(bad_worker);
    }
  }
}

TEST(ThreadPool, WhatTasksWroteIsVisibleAfterTheJoin) {
  ThreadPool pool(3);
  std::vector<int> plain(256);
  for (int round = 1; round <= 2000; ++round) {
    pool.ParallelFor(256,
                     [&](int64_t task, int32_t) { plain[static_cast<size_t>(task)] += round; });
    if (round % 500 == 0)
      std::this_thread::sleep_for(std::chrono::milliseconds(20));  // let them park
  }
  for (int value : plain) ASSERT_EQ(value, 2000 * 2001 / 2);
}

// Jobs of a few tasks, one after the other, with more threads than cores: workers come in late or
// not at all. A late one that looked into a job that is over would call a function that is gone.
TEST(ThreadPool, LateWorkersFindTheNextJobOrNone) {
  for (const int32_t threads : {2, 5, 9}) {
    ThreadPool pool(threads);
    for (int round = 0; round < 3000; ++round) {
      const int64_t tasks = 1 + round % 4;
      const auto counts = std::make_unique<std::atomic<int>[]>(static_cast<size_t>(tasks));
      pool.ParallelFor(tasks, [&counts, tasks](int64_t task, int32_t) {
        if (task < tasks) counts[static_cast<size_t>(task)].fetch_add(1);
      });
      for (int64_t i = 0; i < tasks; ++i) ASSERT_EQ(counts[static_cast<size_t>(i)].load(), 1);
    }
  }
}

TEST(ThreadPool, AtLeastOneCore) { EXPECT_GE(NumPhysicalCores(), 1); }

}  // namespace
}  // namespace quire
