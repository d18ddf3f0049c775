// tests/scheduler_work_test.cc -- no step does work that grows with the queue, as far as calls of
// `new` and their bytes tell: with 10,000 waiting requests they are those with 100, step by step.
//
// Time is not looked at: scheduler_bench measures it.
#include <gtest/gtest.h>

#include <cstdlib>
#include <new>
#include <utility>
#include <vector>

#include "bench/scheduler_load.h"

namespace {
int64_t g_allocations = 0;
int64_t g_bytes = 0;
}  // namespace

[[gnu::noinline]] void* operator new(std::size_t size) {
  ++g_allocations;
  g_bytes += static_cast<int64_t>(size);
  void* p = std::malloc(size != 0 ? size : 1);
  if (p == nullptr) std::abort();
  return p;
}
[[gnu::noinline]] void* operator new[](std::size_t size) { return ::operator new(size); }
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete[](void* p) noexcept { ::operator delete(p); }
[[gnu::noinline]] void operator delete(void* p, std::size_t) noexcept { ::operator delete(p); }
[[gnu::noinline]] void operator delete[](void* p, std::size_t) noexcept { ::operator delete(p); }

namespace quire {
namespace {

using Case = std::pair<SchedulingPolicy, WaitFor>;

class SchedulerWork : public testing::TestWithParam<Case> {
 protected:
  static constexpr int32_t kSteps = 40;
  static constexpr int32_t kWarm = 8;  // until what is reused has its size

  struct Work {
    std::vector<std::pair<int64_t, int64_t>> allocations;  // of each step: calls, bytes
    int64_t started = 0;
    int64_t finished = 0;
  };

  static Work Run(int32_t waiting) {
    SchedulerLoadOptions options;
    options.policy = GetParam().first;
    options.wait_for = GetParam().second;
    options.running = 32;
    options.context = 256;
    options.tenants = 10;  // all of them wait in both cases
    options.ends = 2;
    options.steps = kSteps;
    options.waiting = waiting;
    SchedulerLoad load(options);
    Work work;
    const SchedulerStats before = load.scheduler().stats();
    EXPECT_EQ(before.queued_requests, waiting);
    EXPECT_EQ(before.running_seqs, options.running);
    for (int32_t i = 0; i < kSteps; ++i) {
      load.Refill();
      const int64_t calls = g_allocations, bytes = g_bytes;
      load.Schedule();
      const int64_t mid_calls = g_allocations, mid_bytes = g_bytes;
      load.Fill();
      const int64_t fill_calls = g_allocations - mid_calls, fill_bytes = g_bytes - mid_bytes;
      load.Commit();
      if (i >= kWarm) {
        work.allocations.emplace_back(g_allocations - calls - fill_calls,
                                      g_bytes - bytes - fill_bytes);
      }
    }
    const SchedulerStats after = load.scheduler().stats();
    work.started = after.left_queue - before.left_queue;
    work.finished = after.num_finished(FinishReason::kStop);
    EXPECT_TRUE(load.scheduler().Audit().ok()) << load.scheduler().Audit();
    return work;
  }
};

TEST_P(SchedulerWork, AllocationsOfAStepAreThoseOfAShortQueue) {
  const Work few = Run(100);
  const Work many = Run(10'000);
  EXPECT_EQ(few.allocations, many.allocations);
  EXPECT_GT(few.allocations[0].first, 0) << "nothing is counted";
  // What each case is about did happen.
  const bool turn = GetParam().second == WaitFor::kTurn;
  EXPECT_EQ(many.finished, turn ? 2 * kSteps : 0);
  EXPECT_EQ(many.started, turn ? 2 * (kSteps - 1) : 0);
  EXPECT_EQ(few.started, many.started);
}

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const SchedulingPolicy policy :
       {SchedulingPolicy::kFcfs, SchedulingPolicy::kPriority, SchedulingPolicy::kShortestFirst,
        SchedulingPolicy::kFair, SchedulingPolicy::kPrefixAware}) {
    for (const WaitFor w : {WaitFor::kPlaces, WaitFor::kPages, WaitFor::kTurn}) {
      cases.emplace_back(policy, w);
    }
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Cases, SchedulerWork, testing::ValuesIn(Cases()), [](const auto& i) {
  const WaitFor w = i.param.second;
  return std::string(Name(i.param.first)) + (w == WaitFor::kPlaces  ? "_places"
                                             : w == WaitFor::kPages ? "_pages"
                                                                    : "_turn");
});

}  // namespace
}  // namespace quire
