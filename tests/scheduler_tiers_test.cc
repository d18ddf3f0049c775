// tests/scheduler_tiers_test.cc -- the scheduler over a cache with a host tier: preemption by swap,
// prefixes that come back, pins, retention, and pools that change size while requests run. The fake
// executor moves pages as told and checks every cache read.
#include <gtest/gtest.h>

#include <random>

#include "tests/scheduler_harness.h"

namespace quire::sched_test {
namespace {

HarnessOptions Tiered(int32_t num_pages, int32_t num_host,
                      PreemptionMode mode = PreemptionMode::kSwap) {
  HarnessOptions o;
  o.num_pages = num_pages;
  o.num_host = num_host;
  o.scheduler.preemption = mode;
  o.scheduler.watermark = 0;
  return o;
}

// Eight requests that grow together into a pool that holds about half of them.
void Crowd(Harness& h, bool bypass) {
  for (int32_t i = 0; i < 8; ++i) {
    Request r = h.Make(Iota(20 * i, 9), 40);
    r.bypass_prefix_cache = bypass;
    h.Submit(std::move(r));
  }
}

TEST(SchedulerTiers, SwapComputesNothingAgain) {
  for (const bool bypass : {false, true}) {
    SCOPED_TRACE(bypass);
    Harness recompute(Tiered(48, 0, PreemptionMode::kRecompute));
    Harness swap(Tiered(48, 200));
    for (Harness* h : {&recompute, &swap}) {
      Crowd(*h, bypass);
      ASSERT_TRUE(h->RunUntilIdle());
      h->ExpectOutputsAsSolo();
      h->ExpectIdleAndClean();
      EXPECT_GT(h->stats().preemptions, 3);
    }
    const int64_t least = 8 * (9 + 39);  // each token once
    EXPECT_GT(recompute.stats().scheduled_tokens, least);
    EXPECT_EQ(swap.stats().scheduled_tokens, least);
    EXPECT_EQ(swap.stats().swapped_preemptions, swap.stats().preemptions);
    EXPECT_EQ(swap.stats().swap_ins, swap.stats().preemptions);
    EXPECT_GT(swap.executor().saves(), 0);
    EXPECT_GT(swap.executor().loads(), 0);
    EXPECT_EQ(swap.stats().prefix_hit_tokens, 0) << "what comes back is no hit";
    EXPECT_EQ(recompute.stats().swapped_preemptions, 0);
  }
}

// Who was swapped out and waits for room is loaded once, when there is room, and not in each step.
TEST(SchedulerTiers, NobodyIsLoadedInVain) {
  for (const double watermark : {0.0, 0.3}) {
    HarnessOptions o = Tiered(48, 400);
    o.scheduler.watermark = watermark;
    Harness h(o);
    Crowd(h, /*bypass=*/true);
    ASSERT_TRUE(h.RunUntilIdle());
    EXPECT_GT(h.stats().swapped_preemptions, 3);
    EXPECT_EQ(h.blocks().stats().swap_ins, h.stats().swapped_preemptions);
    EXPECT_EQ(h.executor().loads(), h.executor().saves());
    h.ExpectOutputsAsSolo();
    h.ExpectIdleAndClean();
  }
}

TEST(SchedulerTiers, AFullTierFallsBackToRecompute) {
  Harness h(Tiered(48, 2));
  Crowd(h, /*bypass=*/true);
  ASSERT_TRUE(h.RunUntilIdle());
  EXPECT_GT(h.stats().preemptions, h.stats().swapped_preemptions);
  EXPECT_GT(h.stats().scheduled_tokens, 8 * (9 + 39));
  h.ExpectOutputsAsSolo();
  h.ExpectIdleAndClean();
}

TEST(SchedulerTiers, BranchesAreSwappedOneByOne) {
  Harness h(Tiered(40, 200));
  for (int32_t i = 0; i < 3; ++i) h.Submit(Iota(50 * i, 14), 30, /*n=*/3);
  ASSERT_TRUE(h.RunUntilIdle());
  EXPECT_GT(h.stats().swap_ins, 0);
  EXPECT_GT(h.stats().forks, 0);
  h.ExpectOutputsAsSolo();
  h.ExpectIdleAndClean();
}

TEST(SchedulerTiers, CancelledWhileSwappedOutLeavesNothing) {
  Harness h(Tiered(48, 200));
  Crowd(h, /*bypass=*/true);
  while (h.stats().swapped_preemptions == 0) ASSERT_TRUE(h.Step());
  ASSERT_GT(h.blocks().host_pools()[0].num_active(), 0);
  for (RequestId id = 8; id > 1; --id) h.Cancel(id);
  EXPECT_EQ(h.blocks().host_pools()[0].num_active(), 0);
  ASSERT_TRUE(h.RunUntilIdle());
  h.ExpectOutputsAsSolo();
  h.ExpectIdleAndClean();
}

TEST(SchedulerTiers, EvictedPrefixesComeBackFromTheHost) {
  Harness h(Tiered(16, 64));
  const std::vector<TokenId> prompt = Iota(5, 33);
  h.Submit(prompt, 2);
  ASSERT_TRUE(h.RunUntilIdle());
  h.Submit(Iota(100, 50), 10);  // takes the whole pool
  ASSERT_TRUE(h.RunUntilIdle());
  EXPECT_GT(h.executor().saves(), 0);
  const RequestId again = h.Submit(prompt, 2);
  ASSERT_TRUE(h.RunUntilIdle());
  EXPECT_EQ(h.seen(again).stats.cached_tokens, 32);
  EXPECT_GT(h.executor().loads(), 0);
  h.ExpectOutputsAsSolo();
  h.ExpectIdleAndClean();
}

// What an operator causes while nothing runs is due until there is a step.
TEST(SchedulerTiers, OperationsOfAnIdleEngineStayDue) {
  Harness h(Tiered(16, 64));
  const std::vector<TokenId> prompt = Iota(5, 25);
  h.Submit(prompt, 2);
  ASSERT_TRUE(h.RunUntilIdle());
  h.Submit(Iota(100, 50), 14);
  ASSERT_TRUE(h.RunUntilIdle());
  const int64_t loads = h.executor().loads();
  const auto pin = h.scheduler().PinPrefix(prompt, "", 0);  // brings it back from the host
  ASSERT_TRUE(pin.ok()) << pin.status();
  EXPECT_EQ(pin->num_tokens, 24);
  EXPECT_FALSE(h.Step()) << "nothing to do";
  EXPECT_FALSE(h.Step());
  EXPECT_EQ(h.executor().loads(), loads);
  const RequestId again = h.Submit(prompt, 2);
  ASSERT_TRUE(h.RunUntilIdle());
  EXPECT_GT(h.executor().loads(), loads);
  EXPECT_EQ(h.seen(again).stats.cached_tokens, 24);
  EXPECT_TRUE(h.blocks().Unpin(pin->id));
  h.ExpectOutputsAsSolo();
  h.ExpectIdleAndClean();
}

TEST(SchedulerTiers, AFailedStepLosesNoPageThatWasMoved) {
  Harness h(Tiered(16, 64));
  const std::vector<TokenId> prompt = Iota(5, 33);
  h.Submit(prompt, 2);
  ASSERT_TRUE(h.RunUntilIdle());
  h.Submit(Iota(100, 50), 10);
  h.executor().FailNext(absl::InternalError("injected"));  // the step that evicts
  ASSERT_TRUE(h.RunUntilIdle());
  EXPECT_EQ(h.stats().num_finished(FinishReason::kError), 1);
  EXPECT_GT(h.executor().saves(), 0);
  h.Submit(prompt, 4);
  h.Submit(Iota(100, 50), 4);
  ASSERT_TRUE(h.RunUntilIdle());
  EXPECT_GT(h.stats().prefix_hit_tokens, 0);
  h.ExpectOutputsAsSolo();
  h.ExpectIdleAndClean();
}

// ---- pins, sizes, retention ----

TEST(SchedulerTiers, PinsAreNotCountedForAdmission) {
  Harness h(Tiered(16, 0));
  const std::vector<TokenId> prompt = Iota(5, 33);
  h.Submit(prompt, 2);
  ASSERT_TRUE(h.RunUntilIdle());
  EXPECT_EQ(h.scheduler().PinPrefix(Iota(90, 20), "", 0).status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(h.scheduler().PinPrefix(prompt, "other tenant", 0).status().code(),
            absl::StatusCode::kNotFound);
  const auto pin = h.scheduler().PinPrefix(prompt, "", 1000);
  ASSERT_TRUE(pin.ok()) << pin.status();
  EXPECT_EQ(h.blocks().pinned_pages(0), 8);
  const RequestId refused = h.Submit(Iota(100, 30), 6);  // 9 pages of 8
  EXPECT_EQ(h.seen(refused).error.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(Message(h.seen(refused).error).find("9 blocks, the pool has 8"), std::string::npos)
      << h.seen(refused).error;
  EXPECT_NE(Message(h.seen(refused).error).find("unpin"), std::string::npos);
  const RequestId fits = h.Submit(Iota(100, 30), 2);
  ASSERT_TRUE(h.Step());
  // While it runs, no pin may take what it was admitted with.
  const auto second = h.scheduler().PinPrefix(Iota(100, 30), "", 0);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kResourceExhausted) << second.status();
  ASSERT_TRUE(h.RunUntilIdle());
  EXPECT_EQ(h.seen(fits).finish[0], FinishReason::kLength);
  h.Advance(std::chrono::milliseconds(1001));
  h.Submit(Iota(200, 30), 6);  // steps let the pin end
  ASSERT_TRUE(h.RunUntilIdle());
  h.Submit(Iota(200, 30), 30);
  ASSERT_TRUE(h.RunUntilIdle());
  EXPECT_EQ(h.blocks().pins().size(), 0u);
  EXPECT_EQ(h.stats().num_finished(FinishReason::kError), 2)
      << "before its first step nobody had told the time";
  h.ExpectOutputsAsSolo();
  h.ExpectIdleAndClean();
}

TEST(SchedulerTiers, APoolShrinksUnderRunningRequests) {
  Harness h(Tiered(64, 0));
  for (int32_t i = 0; i < 6; ++i) h.Submit(Iota(20 * i, 12), 30);
  for (int32_t i = 0; i < 5; ++i) ASSERT_TRUE(h.Step());
  std::vector<PageId> retired;
  // 12 + 30 tokens are 11 pages.
  const absl::Status refused = h.scheduler().ResizePool(0, 10, retired);
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(Message(refused).find("num_blocks=10 must be at least 11"), std::string::npos)
      << refused;
  EXPECT_EQ(h.scheduler().ResizePool(7, 10, retired).code(), absl::StatusCode::kInvalidArgument);
  ASSERT_TRUE(h.scheduler().ResizePool(0, 11, retired).ok());
  EXPECT_GT(h.pool().num_to_retire(), 0);
  ASSERT_TRUE(h.RunUntilIdle());
  EXPECT_GT(h.stats().preemptions, 0);
  EXPECT_EQ(h.pool().num_blank() + h.pool().num_cached(), 11);
  EXPECT_EQ(h.stats().num_finished(FinishReason::kLength), 6) << "none of them was broken";
  const RequestId large = h.Submit(Iota(1, 30), 20);
  EXPECT_FALSE(h.seen(large).error.ok());
  ASSERT_TRUE(h.scheduler().ResizePool(0, 40, retired).ok());
  const RequestId now = h.Submit(Iota(1, 30), 20);
  ASSERT_TRUE(h.RunUntilIdle());
  EXPECT_EQ(h.seen(now).finish[0], FinishReason::kLength);
  h.ExpectOutputsAsSolo();
  h.ExpectIdleAndClean();
}

TEST(SchedulerTiers, ARequestSaysHowLongItsPagesStay) {
  Harness h(Tiered(24, 0));
  const std::vector<TokenId> dear = Iota(5, 33);
  RetentionPolicy policy;
  policy.ranges.push_back({0, 32, 90, /*ttl_ms=*/500});
  Request r = h.Make(dear, 2);
  r.retention = std::make_shared<const RetentionPolicy>(policy);
  h.Submit(std::move(r));
  ASSERT_TRUE(h.RunUntilIdle());
  const auto flood = [&](TokenId first) {
    for (int32_t i = 0; i < 5; ++i) {
      h.Submit(Iota(first + 7 * i, 20), 4);
      ASSERT_TRUE(h.RunUntilIdle());
    }
  };
  flood(60);
  EXPECT_GT(h.pool().stats().dropped[static_cast<int>(DropReason::kEvicted)], 5);
  RequestId again = h.Submit(h.Make(dear, 2));
  ASSERT_TRUE(h.RunUntilIdle());
  EXPECT_EQ(h.seen(again).stats.cached_tokens, 32);
  h.Advance(std::chrono::milliseconds(600));
  flood(110);
  again = h.Submit(h.Make(dear, 2));
  ASSERT_TRUE(h.RunUntilIdle());
  EXPECT_LT(h.seen(again).stats.cached_tokens, 32);
  h.ExpectOutputsAsSolo();
  h.ExpectIdleAndClean();
}

}  // namespace
}  // namespace quire::sched_test
