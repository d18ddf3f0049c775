// tests/pool_toucher_test.cc -- which memory of the pools is made ready, and that nothing else
// happens to it. What is resident is what the kernel says (mincore).
#include "paged_cache/pool_toucher.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/utsname.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <memory>
#include <thread>

namespace quire {
namespace {

using std::chrono::milliseconds;

constexpr size_t kMiB = size_t{1} << 20;
constexpr size_t kPageBytes = 64 << 10;  // 16 pages in a MiB

// Pages of a pool that ends at so many MiB; the null page takes the first place.
constexpr int32_t PagesIn(int32_t mib) { return mib * 16 - 1; }

std::unique_ptr<PageStorage> Storage(const std::vector<int32_t>& mib) {
  CacheLayout layout;
  std::vector<int32_t> pages;
  for (const int32_t m : mib) {
    layout.pools.push_back({kPageBytes});
    pages.push_back(PagesIn(m));
  }
  return PageStorage::Create(layout, pages).value();
}

// Pages of the system that the kernel has given of a pool's bytes, `from` and `to` in MiB.
size_t Resident(const PageStorage& s, int32_t pool, size_t from, size_t to) {
  std::vector<unsigned char> is((to - from) * kMiB / 4096);
  EXPECT_EQ(::mincore(s.base(pool) + from * kMiB, (to - from) * kMiB, is.data()), 0);
  return static_cast<size_t>(std::count_if(is.begin(), is.end(), [](int v) { return v & 1; }));
}
constexpr size_t All(size_t mib) { return mib * kMiB / 4096; }

PoolToucherOptions Ahead(int64_t mib) {
  return {.ahead_bytes = mib * static_cast<int64_t>(kMiB), .quiet = milliseconds(1)};
}

std::vector<PagePool> Pools(const std::vector<int32_t>& mib) {
  std::vector<PagePool> pools;
  for (const int32_t m : mib) pools.emplace_back(PagesIn(m), 16);
  return pools;
}

std::vector<PageId> Take(PagePool& pool, int32_t n) {
  std::vector<PageId> pages(static_cast<size_t>(n));
  EXPECT_TRUE(pool.Take(pages));
  return pages;
}

void Step(PoolToucher& toucher, std::span<const PagePool> pools) {
  const PoolToucher::StepScope step(&toucher, pools);
}

// madvise(2): "MADV_POPULATE_WRITE (since Linux 5.14)".
TEST(PoolToucher, KnowsWhatTheKernelCanDo) {
  utsname system{};
  ASSERT_EQ(::uname(&system), 0);
  int major = 0;
  int minor = 0;
  ASSERT_EQ(std::sscanf(system.release, "%d.%d", &major, &minor), 2) << system.release;
  EXPECT_EQ(PoolToucher::Supported(), major > 5 || (major == 5 && minor >= 14)) << system.release;
}

class PoolToucherWorks : public testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(PoolToucher::Supported()) << "needs Linux 5.14"; }
};

TEST_F(PoolToucherWorks, WhatIsAskedForIsReadyBeforeAnyStep) {
  const auto s = Storage({32});
  PoolToucher toucher(*s, std::vector{PagesIn(32)}, Ahead(8));
  toucher.Wait();
  // The null page is not counted: 8 MiB from the first page on, in whole steps of 2 MiB.
  EXPECT_EQ(Resident(*s, 0, 1, 10), All(9));
  EXPECT_EQ(Resident(*s, 0, 10, 32), 0);
  EXPECT_EQ(toucher.ready_bytes(), 10 * kMiB - kPageBytes);
}

TEST_F(PoolToucherWorks, NothingBeyondThePool) {
  const auto s = Storage({32});
  PoolToucher toucher(*s, std::vector{PagesIn(6)}, Ahead(64));
  toucher.Wait();
  EXPECT_EQ(Resident(*s, 0, 1, 6), All(5));
  EXPECT_EQ(Resident(*s, 0, 6, 32), 0);
}

TEST_F(PoolToucherWorks, NothingAskedForNothingDone) {
  const auto s = Storage({8});
  const std::vector<PagePool> pools = Pools({8});
  PoolToucher toucher(*s, std::vector{PagesIn(8)}, Ahead(0));
  Step(toucher, pools);
  toucher.Wait();
  EXPECT_EQ(Resident(*s, 0, 0, 8), 0);
  EXPECT_EQ(toucher.ready_bytes(), 0);
  const PoolToucher::StepScope none(nullptr, pools);
}

// 3 : 1.
TEST_F(PoolToucherWorks, EachPoolHasItsShare) {
  const auto s = Storage({48, 16});
  PoolToucher toucher(*s, std::vector{PagesIn(48), PagesIn(16)}, Ahead(16));
  toucher.Wait();
  EXPECT_EQ(Resident(*s, 0, 1, 14), All(13));
  EXPECT_EQ(Resident(*s, 0, 14, 48), 0);
  EXPECT_EQ(Resident(*s, 1, 1, 6), All(5));
  EXPECT_EQ(Resident(*s, 1, 6, 16), 0);
}

TEST_F(PoolToucherWorks, GoesAheadOfThePagesInUse) {
  const auto s = Storage({32});
  std::vector<PagePool> pools = Pools({32});
  PoolToucher toucher(*s, std::vector{PagesIn(32)}, Ahead(4));
  toucher.Wait();
  EXPECT_EQ(Resident(*s, 0, 6, 32), 0);
  const std::vector<PageId> pages = Take(pools[0], 16 * 8);
  EXPECT_EQ(pools[0].highest_taken(), 16 * 8);
  Step(toucher, pools);
  toucher.Wait();
  // What is in use is the engine's to write: from MiB 6, where it had come to, to 8 nothing came.
  EXPECT_EQ(Resident(*s, 0, 6, 8), 0);
  EXPECT_EQ(Resident(*s, 0, 9, 14), All(5));
  EXPECT_EQ(Resident(*s, 0, 14, 32), 0);
  // Pages that come back and are taken again are no news.
  for (const PageId page : pages) pools[0].Release(page);
  Take(pools[0], 16);
  Step(toucher, pools);
  toucher.Wait();
  EXPECT_EQ(Resident(*s, 0, 14, 32), 0);
}

TEST_F(PoolToucherWorks, ContentsStayBesideWrites) {
  constexpr int32_t kMib = 64;
  const auto s = Storage({kMib});
  for (size_t i = kPageBytes; i < kMib * kMiB / 2; i += 4096) s->base(0)[i] = std::byte{0x5A};
  PoolToucher toucher(*s, std::vector{PagesIn(kMib)}, Ahead(kMib));
  // From the far end, towards it.
  for (size_t i = kMib * kMiB; i > kMib * kMiB / 2; i -= 4096) {
    s->base(0)[i - 1] = static_cast<std::byte>(i >> 12 | 1);
  }
  toucher.Wait();
  for (size_t i = kPageBytes; i < kMib * kMiB / 2; i += 4096) {
    ASSERT_EQ(s->base(0)[i], std::byte{0x5A}) << i;
    ASSERT_EQ(s->base(0)[i + 1], std::byte{0}) << i;
  }
  for (size_t i = kMib * kMiB; i > kMib * kMiB / 2; i -= 4096) {
    ASSERT_EQ(s->base(0)[i - 1], static_cast<std::byte>(i >> 12 | 1)) << i;
    ASSERT_EQ(s->base(0)[i - 2], std::byte{0}) << i;
  }
  EXPECT_EQ(Resident(*s, 0, 1, kMib), All(kMib - 1));
}

TEST_F(PoolToucherWorks, AShrunkPoolKeepsWhatWasGivenBack) {
  const auto s = Storage({32});
  std::vector<PagePool> pools = Pools({32});
  PoolToucher toucher(*s, std::vector{PagesIn(32)}, Ahead(16));
  const std::vector<PageId> pages = Take(pools[0], 16 * 6);
  Step(toucher, pools);
  toucher.Wait();
  EXPECT_EQ(Resident(*s, 0, 8, 22), All(14));
  for (const PageId page : pages) {
    std::memset(s->page(0, page), 1, kPageBytes);
    pools[0].Release(page);
  }
  const auto resize = [&](int32_t mib) {
    std::vector<PageId> retired;
    pools[0].Resize(PagesIn(mib), retired);
    toucher.SetUsable(0, PagesIn(mib));
    s->Discard(0, retired);
    toucher.Wait();
  };
  resize(4);
  EXPECT_EQ(Resident(*s, 0, 7, 32), 0) << "beyond the limit";
  EXPECT_EQ(toucher.ready_bytes(), 0);
  const size_t below = Resident(*s, 0, 1, 6);
  Step(toucher, pools);
  toucher.Wait();
  EXPECT_EQ(Resident(*s, 0, 1, 6), below) << "below the mark";
  EXPECT_EQ(Resident(*s, 0, 7, 32), 0);
  // More again: ahead of what was once in use, and not there.
  resize(16);
  EXPECT_EQ(Resident(*s, 0, 1, 6), below);
  EXPECT_EQ(Resident(*s, 0, 7, 16), All(9));
  EXPECT_EQ(Resident(*s, 0, 16, 32), 0);
}

TEST_F(PoolToucherWorks, LeavesMemoryThatOthersNeed) {
  const auto s = Storage({32});
  std::atomic<int64_t> available{100 * static_cast<int64_t>(kMiB)};
  PoolToucherOptions options = Ahead(16);
  options.keep_free_bytes = 90 * static_cast<int64_t>(kMiB);
  options.retry = milliseconds(1);
  // Each look finds 2 MiB less: what was made ready in between.
  options.available = [&] { return available.fetch_sub(2 * static_cast<int64_t>(kMiB)); };
  PoolToucher toucher(*s, std::vector{PagesIn(32)}, options);
  toucher.Wait();
  EXPECT_EQ(Resident(*s, 0, 1, 10), All(9)) << "100, 98, 96, 94 and 92 leave 90";
  EXPECT_EQ(Resident(*s, 0, 10, 32), 0);
  available = 1000 * static_cast<int64_t>(kMiB);
  while (Resident(*s, 0, 1, 18) < All(17)) std::this_thread::yield();
  EXPECT_EQ(Resident(*s, 0, 18, 32), 0);
}

// Only while nothing is computed, where the kernels have all CPUs.
TEST_F(PoolToucherWorks, DoesNotWorkBesideAStep) {
  const auto s = Storage({64});
  std::vector<PagePool> pools = Pools({64});
  std::atomic<int> looks{0};
  PoolToucherOptions options = Ahead(8);
  options.available = [&] { return ++looks, INT64_MAX; };
  PoolToucher toucher(*s, std::vector{PagesIn(64)}, options);
  toucher.Wait();
  const int before = looks;
  Take(pools[0], 16 * 16);
  {
    const PoolToucher::StepScope step(&toucher, pools);
    std::this_thread::sleep_for(milliseconds(50));
    EXPECT_EQ(looks, before);
  }
  toucher.Wait();
  EXPECT_GT(looks, before);
  EXPECT_EQ(Resident(*s, 0, 17, 26), All(9));

  options.beside_steps = true;
  PoolToucher beside(*s, std::vector{PagesIn(64)}, options);
  Take(pools[0], 16 * 16);
  const PoolToucher::StepScope step(&beside, pools);
  beside.Wait();
  EXPECT_EQ(Resident(*s, 0, 33, 42), All(9));
}

// It ends after the 2 MiB at hand, not after all of it: each would take 50 ms from then on.
TEST_F(PoolToucherWorks, StopsBetweenSteps) {
  const auto s = Storage({64});
  std::atomic<int> looks{0};
  std::atomic<bool> stopping{false};
  {
    PoolToucherOptions options = Ahead(64);
    options.available = [&] {
      ++looks;
      while (!stopping) std::this_thread::yield();
      std::this_thread::sleep_for(milliseconds(50));
      return INT64_MAX;
    };
    PoolToucher toucher(*s, std::vector{PagesIn(64)}, options);
    while (looks == 0) std::this_thread::yield();
    stopping = true;
  }
  EXPECT_LT(looks, 32);
  EXPECT_LT(Resident(*s, 0, 1, 64), All(63));
}

}  // namespace
}  // namespace quire
