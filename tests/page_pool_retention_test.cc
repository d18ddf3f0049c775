// tests/page_pool_retention_test.cc -- which page of a PagePool goes first, and what a change of
// its size does.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <numeric>
#include <random>
#include <set>

#include "paged_cache/page_pool.h"

namespace quire {
namespace {

int64_t Dropped(const PagePool& pool, DropReason reason) {
  return pool.stats().dropped[static_cast<int>(reason)];
}

bool TakeInto(PagePool& pool, int32_t count, std::vector<PageId>& pages) {
  pages.resize(static_cast<size_t>(count));
  return pool.Take(pages);
}
std::vector<PageId> Taken(PagePool& pool, int32_t count) {
  std::vector<PageId> pages;
  EXPECT_TRUE(TakeInto(pool, count, pages));
  return pages;
}

// All cached, released in the order of their ids.
PagePool AllCached(int32_t num_pages) {
  PagePool pool(num_pages, 16);
  const std::vector<PageId> p = Taken(pool, num_pages);
  for (const PageId page : p) pool.Seal(page, page, /*keep=*/true);
  for (const PageId page : p) pool.Release(page);
  return pool;
}

TEST(Retention, TheLowestClassGoesFirst) {
  PagePool pool = AllCached(6);
  pool.Keep(1, {.priority = 100});
  pool.Keep(2, {.priority = 0});
  pool.Keep(3, {.priority = 36});
  pool.Keep(5, {.priority = 34});
  pool.Keep(6, {.priority = 64});  // beyond the first word of classes
  EXPECT_EQ(Taken(pool, 6), (std::vector<PageId>{2, 5, 4, 3, 6, 1}));
}

TEST(Retention, IsOfTheContentNotOfThePage) {
  PagePool pool = AllCached(2);
  pool.Keep(1, {.priority = 90, .expires_ms = 100});
  EXPECT_EQ(Taken(pool, 2), (std::vector<PageId>{2, 1}));
  pool.Seal(1, 0, /*keep=*/true);
  EXPECT_EQ(pool.retention(1), Retention{});
  pool.SetTime(100);
  EXPECT_EQ(pool.stats().expired, 0);
}

// Those whose time is over go next, before all that nobody asked to keep; of a chain that was
// released from its end, the end goes first still.
TEST(Retention, EndsBeforeWhatIsUsedLess) {
  PagePool pool = AllCached(5);
  for (const PageId page : {4, 3, 2}) pool.Keep(page, {.priority = 50, .expires_ms = 10});
  pool.Keep(5, {.priority = 50, .expires_ms = 11});
  pool.SetTime(9);
  EXPECT_EQ(pool.stats().expired, 0);
  EXPECT_EQ(pool.retention(4), (Retention{50, 10}));
  pool.SetTime(10);
  EXPECT_EQ(pool.stats().expired, 3);
  EXPECT_EQ(pool.retention(4), Retention{});
  EXPECT_EQ(Taken(pool, 5), (std::vector<PageId>{2, 3, 4, 1, 5}));
}

TEST(Retention, TimeNeverGoesBack) {
  PagePool pool = AllCached(2);
  pool.SetTime(50);
  pool.SetTime(20);
  pool.Keep(1, {.priority = 90, .expires_ms = 50});
  pool.Keep(2, {.priority = 90, .expires_ms = 51});
  pool.SetTime(30);
  EXPECT_EQ(pool.stats().expired, 1);
  EXPECT_EQ(pool.retention(1), Retention{});
  EXPECT_EQ(pool.retention(2), (Retention{90, 51}));
}

// A page in use keeps its class until its last release.
TEST(Retention, HoldsWhileInUse) {
  PagePool pool = AllCached(3);
  pool.Retain(1);
  pool.Keep(1, {.priority = 80, .expires_ms = 5});
  pool.Keep(2, {.priority = 80});
  pool.SetTime(5);
  EXPECT_EQ(pool.stats().expired, 1);
  pool.Release(1);
  EXPECT_EQ(Taken(pool, 3), (std::vector<PageId>{3, 1, 2}));
}

TEST(PagePool, TimesOfEvictedPages) {
  PagePool pool(2, 16);
  pool.SetTime(1000);
  const std::vector<PageId> p = Taken(pool, 2);
  for (const PageId page : p) pool.Seal(page, page, /*keep=*/true);
  pool.SetTime(1010);
  for (const PageId page : p) pool.Release(page);
  EXPECT_EQ(pool.last_access_ms(p[0]), 1010);
  EXPECT_EQ(pool.taken_ms(p[0]), 1000);
  pool.SetTime(1013);
  Taken(pool, 1);  // lived 13 ms, idle for 3
  EXPECT_EQ(pool.stats().lifetime_ms[4], 1);
  EXPECT_EQ(pool.stats().idle_ms[2], 1);
  EXPECT_EQ(std::accumulate(pool.stats().lifetime_ms, pool.stats().lifetime_ms + kNumTimeBuckets,
                            int64_t{0}),
            1);
  pool.SetTime((int64_t{1} << 32) - 1);
  Taken(pool, 1);  // longer than there are buckets
  EXPECT_EQ(pool.stats().lifetime_ms[kNumTimeBuckets - 1], 1);
  EXPECT_EQ(pool.stats().idle_ms[kNumTimeBuckets - 1], 1);
  EXPECT_EQ(
      std::accumulate(pool.stats().idle_ms, pool.stats().idle_ms + kNumTimeBuckets, int64_t{0}), 2);
}

TEST(PagePool, ResizeTakesTheLeastUsefulPages) {
  PagePool pool = AllCached(6);
  const std::vector<PageId> used = Taken(pool, 2);  // 1 and 2
  pool.Keep(3, {.priority = 70});
  std::vector<PageId> retired;
  pool.Resize(4, retired);
  EXPECT_EQ(retired, (std::vector<PageId>{4, 5}));
  EXPECT_EQ(Dropped(pool, DropReason::kShrunk), 2);
  retired.clear();
  pool.Resize(4, retired);
  EXPECT_EQ(retired, (std::vector<PageId>{4, 5})) << "all that are not needed now";
  // 4 was the first to go: it is the first back, and taken last.
  retired.clear();
  pool.Resize(5, retired);
  EXPECT_FALSE(pool.IsRetired(4));
  EXPECT_TRUE(pool.IsRetired(5));
  EXPECT_EQ(pool.num_blank(), 1);
  retired.clear();
  pool.Resize(8, retired);
  EXPECT_EQ(pool.num_ids(), 9) << "pages 7 and 8 are new";
  EXPECT_EQ(Taken(pool, 4), (std::vector<PageId>{4, 5, 7, 8}));
}

// Retention, time, sizes and flushes against one list per class.
TEST(PagePoolModel, RetentionAndSizeAgreeWithAModel) {
  struct Content {
    bool keep;
    Retention retention;
    int64_t order = 0;  // of the last wish with an end
  };
  int64_t expired_in_all = 0, shrunk_in_all = 0, evicted_in_all = 0;
  for (uint32_t seed = 0; seed < 500; ++seed) {
    SCOPED_TRACE(testing::Message() << "reproduce with seed=" << seed);
    std::mt19937 rng(seed);
    const auto random = [&rng](size_t n) { return static_cast<size_t>(rng() % n); };
    PagePool pool(6, 2);
    int32_t usable = 6;
    int32_t ids = 6;  // pages there have ever been
    int64_t now = 0, orders = 0, expired = 0, shrunk = 0, evicted = 0;
    std::map<PageId, int> refs;
    std::map<PageId, Content> sealed;
    std::map<int32_t, std::deque<PageId>> lists;  // cached, by class
    std::set<PageId> retired;
    const auto cached = [&] {
      size_t n = 0;
      for (const auto& [c, list] : lists) n += list.size();
      return static_cast<int32_t>(n);
    };
    const auto active = [&] { return static_cast<int32_t>(refs.size()); };
    const auto to_retire = [&] { return ids - static_cast<int32_t>(retired.size()) - usable; };
    const auto victim = [&] {
      for (auto& [c, list] : lists) {
        if (list.empty()) continue;
        const PageId page = list.front();
        list.pop_front();
        sealed.erase(page);
        return page;
      }
      return kNullPage;
    };
    const auto uncache = [&](PageId page) {
      std::deque<PageId>& list = lists[sealed.at(page).retention.priority];
      list.erase(std::find(list.begin(), list.end(), page));
    };
    for (int step = 0; step < 300; ++step) {
      std::vector<PageId> in_use;
      for (const auto& [page, n] : refs) in_use.push_back(page);
      const PageId any = in_use.empty() ? kNullPage : in_use[random(in_use.size())];
      std::vector<PageId> known;
      for (const auto& [page, content] : sealed) known.push_back(page);
      switch (random(9)) {
        case 0:
        case 1: {
          const auto count = static_cast<int32_t>(1 + random(3));
          const int32_t blank = ids - static_cast<int32_t>(retired.size()) - active() - cached();
          const bool can = count <= std::max(0, blank + cached() - to_retire());
          std::vector<PageId> taken;
          ASSERT_EQ(TakeInto(pool, count, taken), can);
          if (!can) break;
          std::set<PageId> victims;
          for (int32_t i = blank; i < count; ++i, ++evicted) victims.insert(victim());
          for (const PageId page : taken) {
            ASSERT_TRUE(refs.emplace(page, 1).second);
            ASSERT_FALSE(sealed.contains(page) || retired.contains(page)) << page;
            victims.erase(page);
          }
          ASSERT_TRUE(victims.empty());
          break;
        }
        case 2:
          if (known.empty()) break;
          {
            const PageId page = known[random(known.size())];
            if (!refs.contains(page)) uncache(page);
            pool.Retain(page);
            ++refs[page];
          }
          break;
        case 3:
        case 4:
          if (any == kNullPage) break;
          pool.Release(any);
          if (--refs[any] > 0) break;
          refs.erase(any);
          if (sealed.contains(any) && (!sealed.at(any).keep || to_retire() > 0)) {
            shrunk += sealed.at(any).keep;
            sealed.erase(any);
          }
          if (sealed.contains(any)) {
            lists[sealed.at(any).retention.priority].push_back(any);
          } else if (to_retire() > 0) {
            retired.insert(any);
          }
          break;
        case 5:
          if (any == kNullPage || sealed.contains(any)) break;
          sealed[any] = {.keep = random(4) > 0, .retention = {}};
          pool.Seal(any, step, sealed[any].keep);
          break;
        case 6: {
          if (known.empty()) break;
          const PageId page = known[random(known.size())];
          const Retention wish{
              static_cast<int32_t>(std::min<size_t>(100, random(4) * 33 + random(3))),
              random(2) == 0 ? kNoExpiry : now + 1 + static_cast<int64_t>(random(9))};
          if (wish == Retention{}) break;
          Content& content = sealed.at(page);
          const Retention old = content.retention;
          if (!refs.contains(page)) uncache(page);
          content.retention = old == Retention{}
                                  ? wish
                                  : Retention{std::max(old.priority, wish.priority),
                                              std::max(old.expires_ms, wish.expires_ms)};
          if (content.retention.priority == kDefaultRetentionPriority) content.retention = {};
          content.order = ++orders;
          if (!refs.contains(page)) lists[content.retention.priority].push_back(page);
          pool.Keep(page, wish);
          ASSERT_EQ(pool.retention(page), content.retention);
          break;
        }
        case 7: {
          now += static_cast<int64_t>(random(5));
          pool.SetTime(now);
          std::map<std::pair<int64_t, int64_t>, PageId> due;
          for (const auto& [page, content] : sealed) {
            const Retention& r = content.retention;
            if (r.expires_ms <= now) due[{r.expires_ms, content.order}] = page;
          }
          for (const auto& [when, page] : due) {
            if (!refs.contains(page)) uncache(page);
            sealed.at(page).retention = {};
            if (!refs.contains(page)) lists[kDefaultRetentionPriority].push_front(page);
            ++expired;
          }
          break;
        }
        default: {
          if (random(3) > 0) break;
          if (random(4) == 0) {
            pool.FlushCached();
            while (cached() > 0) victim();
            break;
          }
          const auto to = static_cast<int32_t>(1 + random(8));
          std::vector<PageId> gone;
          pool.Resize(to, gone);
          usable = to;
          // More: pages in use are spared, then retired ones come back, then there are new ones.
          while (to_retire() < 0) {
            if (retired.empty()) {
              ++ids;
            } else {
              const auto back = std::find_if(retired.begin(), retired.end(), [&](PageId page) {
                return std::count(gone.begin(), gone.end(), page) == 0;
              });
              ASSERT_NE(back, retired.end());
              retired.erase(back);
            }
          }
          // Fewer: blank ones, then cached ones, then as they come back.
          const int32_t blank = ids - static_cast<int32_t>(retired.size()) - active() - cached();
          int32_t from_cached = std::clamp(to_retire() - blank, 0, cached());
          for (; from_cached > 0; --from_cached, ++shrunk) victim();
          retired = {gone.begin(), gone.end()};
          ASSERT_EQ(retired.size(), gone.size());
          break;
        }
      }
      ASSERT_EQ(pool.num_ids(), ids + 1);
      for (PageId page = 1; page <= ids; ++page) {
        ASSERT_EQ(pool.refs(page), refs.contains(page) ? refs[page] : 0);
        ASSERT_EQ(pool.IsSealed(page), sealed.contains(page)) << page;
        ASSERT_EQ(pool.IsRetired(page), retired.contains(page)) << page;
      }
      ASSERT_EQ(pool.num_usable(), usable);
      ASSERT_EQ(pool.num_cached(), cached());
      ASSERT_EQ(pool.num_active(), active());
      ASSERT_EQ(pool.num_to_retire(), to_retire());
      ASSERT_EQ(pool.num_blank(), ids - static_cast<int32_t>(retired.size()) - active() - cached());
      ASSERT_EQ(pool.stats().expired, expired);
      ASSERT_EQ(Dropped(pool, DropReason::kShrunk), shrunk);
      ASSERT_EQ(Dropped(pool, DropReason::kEvicted), evicted);
    }
    expired_in_all += expired;
    shrunk_in_all += shrunk;
    evicted_in_all += evicted;
  }
  EXPECT_GT(expired_in_all, 500);
  EXPECT_GT(shrunk_in_all, 500);
  EXPECT_GT(evicted_in_all, 500);
}

}  // namespace
}  // namespace quire
