// tests/scheduler_test.cc -- single rules of the scheduler, case by case.
#include <gtest/gtest.h>

#include "tests/scheduler_harness.h"

namespace quire::sched_test {
namespace {

TEST(Scheduler, ServesOneRequest) {
  Harness h;
  const RequestId id = h.Submit(Iota(1, 10), 5);
  ASSERT_TRUE(h.RunUntilIdle());
  h.ExpectIdleAndClean();
  h.ExpectOutputsAsSolo();
  EXPECT_EQ(h.seen(id).finish[0], FinishReason::kLength);
  EXPECT_EQ(h.seen(id).outputs[0].size(), 5u);
  EXPECT_EQ(h.step(), 6);  // five steps and the empty one
}

}  // namespace
}  // namespace quire::sched_test
