// tests/bounded_queue_test.cc -- nothing is lost, nothing beyond the capacity gets in.
#include "base/bounded_queue.h"

#include <gtest/gtest.h>

#include <thread>

namespace quire {
namespace {

TEST(BoundedQueue, RefusesWhenFullAndForcePushDoesNot) {
  BoundedQueue<int> queue(2);
  EXPECT_TRUE(queue.TryPush(1));
  EXPECT_TRUE(queue.TryPush(2));
  EXPECT_FALSE(queue.TryPush(3));
  queue.ForcePush(4);
  std::vector<int> out;
  queue.Drain(out, false, {});
  EXPECT_EQ(out, (std::vector<int>{1, 2, 4}));
  EXPECT_TRUE(queue.TryPush(5));
}

TEST(BoundedQueue, ManyProducersOneConsumerLosesNothing) {
  BoundedQueue<int> queue(64);
  constexpr int kPerThread = 5000;
  std::vector<std::thread> producers;
  for (int p = 0; p < 3; ++p) {
    producers.emplace_back([&queue, p] {
      for (int i = 0; i < kPerThread; ++i) {
        while (!queue.TryPush(p * kPerThread + i)) std::this_thread::yield();
      }
    });
  }
  std::vector<int> last(3, -1);
  int received = 0;
  std::vector<int> batch;
  const std::stop_source stop;
  while (received < 3 * kPerThread) {
    queue.Drain(batch, true, stop.get_token());
    for (int item : batch) {
      const auto producer = static_cast<size_t>(item / kPerThread);
      ASSERT_GT(item, last[producer]);  // each producer's order is kept
      last[producer] = item;
    }
    received += static_cast<int>(batch.size());
    batch.clear();
  }
  for (std::thread& t : producers) t.join();
  EXPECT_EQ(received, 3 * kPerThread);
}

TEST(BoundedQueue, StopAndDeadlineEndTheWait) {
  BoundedQueue<int> queue(1);
  std::vector<int> out;
  std::stop_source stop;
  stop.request_stop();
  queue.Drain(out, true, stop.get_token());
  EXPECT_TRUE(out.empty());
  const std::stop_source never;
  queue.Drain(out, true, never.get_token(), std::chrono::steady_clock::now());
  EXPECT_TRUE(out.empty());
}

}  // namespace
}  // namespace quire
