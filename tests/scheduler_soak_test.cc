// tests/scheduler_soak_test.cc -- L06: what scheduler and cache keep of requests that are gone.
//
// Counts the live bytes of every `new` in the process. Clients and outputs are not kept here, so
// whatever grows with the number of requests belongs to the code under test.
#include <gtest/gtest.h>
#include <malloc.h>

#include <cstdlib>
#include <new>
#include <random>

#include "scheduler/scheduler.h"
#include "tests/fake_executor.h"

namespace {
int64_t g_live_bytes = 0;
}  // namespace

[[gnu::noinline]] void* operator new(std::size_t size) {
  void* p = std::malloc(size != 0 ? size : 1);
  if (p == nullptr) std::abort();
  g_live_bytes += static_cast<int64_t>(malloc_usable_size(p));
  return p;
}
[[gnu::noinline]] void* operator new[](std::size_t size) { return ::operator new(size); }
[[gnu::noinline]] void operator delete(void* p) noexcept {
  if (p != nullptr) g_live_bytes -= static_cast<int64_t>(malloc_usable_size(p));
  std::free(p);
}
[[gnu::noinline]] void operator delete[](void* p) noexcept { ::operator delete(p); }
[[gnu::noinline]] void operator delete(void* p, std::size_t) noexcept { ::operator delete(p); }
[[gnu::noinline]] void operator delete[](void* p, std::size_t) noexcept { ::operator delete(p); }

namespace quire::sched_test {
namespace {

// 20,000 short requests, a tenth of them with an error, a tenth cancelled; with branches,
// deadlines, tenants of their own, retention, preemption by swap and failing steps among them.
TEST(SchedulerSoak, L06_NothingStaysOfTwentyThousandRequests) {
  CacheLayout layout;
  layout.block_size = 4;
  layout.groups = {{.group = {.page_size = 4}}};
  layout.pools = {{64}};
  std::vector<PagePool> pools, host;
  pools.emplace_back(20, 4);
  host.emplace_back(30, 4);
  BlockManager blocks(layout, pools, {.max_step_tokens = 64}, host);
  SchedulerOptions options;
  options.max_model_len = 128;
  options.max_num_seqs = 8;
  options.max_num_batched_tokens = 64;
  options.preemption = PreemptionMode::kSwap;
  options.watermark = 0;
  Clock::time_point now = Clock::time_point{} + std::chrono::hours(1);
  Scheduler scheduler(options, blocks, [&] { return now; });
  FakeExecutor executor(blocks, options.max_num_batched_tokens, /*private_roots=*/false);
  std::mt19937 rng(1);
  const auto pick = [&](int32_t low, int32_t high) {
    return low + static_cast<int32_t>(rng() % static_cast<uint32_t>(high - low + 1));
  };
  std::vector<TokenEvent> events;
  std::vector<RequestId> live;
  int64_t ended = 0, errors = 0;
  const auto deliver = [&] {
    for (const TokenEvent& e : events) {
      if (!e.request_done) continue;
      ++ended;
      errors += !e.error.ok();
      std::erase(live, e.request);
    }
    events.clear();
  };
  const auto step = [&] {
    const ScheduledBatch batch = scheduler.Schedule(events);
    if (batch.empty()) return deliver();
    const auto output = executor.Run(batch);
    now += std::chrono::milliseconds(1);
    if (output.ok()) {
      scheduler.Commit(batch, *output, events);
    } else {
      scheduler.Fail(batch, output.status(), events);
    }
    deliver();
  };
  int64_t warm = 0;
  constexpr int32_t kRequests = 20'000;
  constexpr int32_t kWarm = 4'000;  // more tenants than roots that are remembered
  for (int32_t i = 0; i < kRequests; ++i) {
    auto r = std::make_shared<Request>();
    r->id = i + 1;
    for (int32_t n = pick(1, 20); n > 0; --n) r->prompt.push_back(pick(0, 5));
    r->stop.max_tokens = pick(1, 12);
    r->sampling.n = pick(0, 5) == 0 ? pick(2, 4) : 1;
    r->seed = rng();
    if (pick(0, 3) == 0) r->cache_salt = "tenant " + std::to_string(i);
    r->bypass_prefix_cache = pick(0, 9) == 0;
    if (pick(0, 9) == 0) {
      RetentionPolicy policy;
      policy.ranges.push_back({0, 8, pick(0, 100), pick(0, 50)});
      r->retention = std::make_shared<const RetentionPolicy>(policy);
    }
    if (pick(0, 9) == 0) r->deadline = now + std::chrono::milliseconds(pick(0, 40));
    const int32_t fate = pick(0, 19);
    if (fate == 0) r->stop.max_tokens = 1000;  // refused: longer than the model
    if (fate == 1) r->sampling.n = 9;          // refused: more branches than places
    live.push_back(r->id);
    scheduler.Apply(Submit{std::move(r)}, events);
    deliver();
    if (fate >= 18 && !live.empty()) {
      const RequestId id =
          live[static_cast<size_t>(pick(0, static_cast<int32_t>(live.size()) - 1))];
      scheduler.Apply(Cancel{.request = id}, events);
      deliver();
    }
    if (pick(0, 99) == 0) executor.FailNext(absl::InternalError("injected"));
    for (int32_t k = pick(0, 3); k > 0 || live.size() > 30; --k) step();
    if (i + 1 == kWarm || i + 1 == kRequests) {
      while (!scheduler.idle()) step();
      EXPECT_TRUE(live.empty());
      EXPECT_EQ(pools[0].num_active(), 0);
      EXPECT_EQ(host[0].num_active(), 0);
      events.shrink_to_fit();
      live.shrink_to_fit();
      if (i + 1 == kWarm) warm = g_live_bytes;
    }
  }
  const int64_t grown = g_live_bytes - warm;
  EXPECT_LT(grown, int64_t{kRequests - kWarm}) << "a byte a request";
  EXPECT_EQ(ended, kRequests);
  EXPECT_GT(errors, kRequests / 10);
  const SchedulerStats s = scheduler.stats();
  EXPECT_EQ(s.live_requests, 0);
  EXPECT_GT(s.num_finished(FinishReason::kCancelled), kRequests / 20);
  EXPECT_GT(s.num_finished(FinishReason::kDeadline), 100);
  EXPECT_GT(s.preemptions, 100);
  EXPECT_GT(s.swap_ins, 20);
  EXPECT_GT(s.forks, 1000);
  EXPECT_LE(blocks.num_roots(), PrefixIndex::kMaxIdleRoots + 100);
  EXPECT_TRUE(scheduler.Audit().ok()) << scheduler.Audit();
  std::printf("%ld bytes more after %d requests\n", static_cast<long>(grown), kRequests - kWarm);
}

}  // namespace
}  // namespace quire::sched_test
