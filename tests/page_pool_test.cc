// tests/page_pool_test.cc -- states, order of reuse and errors of PagePool, and PageTable's
// ownership.
#include "paged_cache/page_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <random>
#include <set>

#include "paged_cache/page_table.h"

namespace quire {
namespace {

int64_t Dropped(const PagePool& pool, DropReason reason) {
  return pool.stats().dropped[static_cast<int>(reason)];
}

bool TakeInto(PagePool& pool, int32_t count, std::vector<PageId>& pages) {
  pages.resize(static_cast<size_t>(count));
  return pool.Take(pages);
}
bool Takes(PagePool& pool, int32_t count) {
  std::vector<PageId> pages;
  return TakeInto(pool, count, pages);
}
std::vector<PageId> Taken(PagePool& pool, int32_t count) {
  std::vector<PageId> pages;
  EXPECT_TRUE(TakeInto(pool, count, pages));
  return pages;
}

TEST(PagePool, TheNullPageIsNotCounted) {
  PagePool pool(3, 16);
  EXPECT_EQ(pool.num_usable(), 3);
  EXPECT_EQ(pool.num_available(), 3);
  std::vector<PageId> pages = Taken(pool, 3);
  std::sort(pages.begin(), pages.end());
  EXPECT_EQ(pages, (std::vector<PageId>{1, 2, 3}));
  EXPECT_EQ(pool.num_active(), 3);
}

TEST(PagePool, TakeIsAllOrNothing) {
  PagePool pool(4, 16);
  EXPECT_FALSE(Takes(pool, 5));
  EXPECT_EQ(pool.num_blank(), 4);
  EXPECT_EQ(pool.stats().taken, 0);
  EXPECT_TRUE(Taken(pool, 0).empty());
  EXPECT_TRUE(Takes(pool, 4));
  EXPECT_EQ(pool.stats().taken, 4);
  EXPECT_FALSE(Takes(pool, 1));
}

TEST(PagePool, SealedPagesAreCachedAndEvictedLeastRecentlyReleasedFirst) {
  PagePool pool(4, 16);
  const std::vector<PageId> p = Taken(pool, 4);
  for (const PageId page : p) pool.Seal(page, page, /*keep=*/true);
  for (const int i : {2, 0, 3, 1}) pool.Release(p[static_cast<size_t>(i)]);
  EXPECT_EQ(pool.num_cached(), 4);
  pool.Retain(p[0]);  // a hit, then released: now the most recent
  pool.Release(p[0]);
  const uint32_t generation = pool.generation(p[2]);
  EXPECT_EQ(Taken(pool, 1), std::vector<PageId>{p[2]});
  EXPECT_EQ(pool.generation(p[2]), generation + 1);
  EXPECT_FALSE(pool.IsSealed(p[2]));
  EXPECT_EQ(Taken(pool, 2), (std::vector<PageId>{p[3], p[1]}));
  EXPECT_TRUE(pool.IsSealed(p[0]));
  EXPECT_EQ(Dropped(pool, DropReason::kEvicted), 3);
  EXPECT_EQ(pool.stats().revived, 1);
}

TEST(PagePool, BlankPagesAreUsedBeforeCachedOnes) {
  PagePool pool(3, 16);
  const std::vector<PageId> p = Taken(pool, 3);
  pool.Seal(p[0], 0, /*keep=*/true);
  pool.Release(p[0]);
  pool.Release(p[1]);
  EXPECT_EQ(Taken(pool, 1), std::vector<PageId>{p[1]});
  EXPECT_TRUE(pool.IsSealed(p[0]));
}

TEST(PagePool, PagesThatMustNotOutliveTheirOwnersBecomeBlank) {
  PagePool pool(2, 16);
  const PageId page = Taken(pool, 1)[0];
  pool.Seal(page, 0, /*keep=*/false);
  pool.Retain(page);
  pool.Release(page);
  EXPECT_TRUE(pool.IsSealed(page));
  pool.Release(page);
  EXPECT_FALSE(pool.IsSealed(page));
  EXPECT_EQ(pool.num_blank(), 2);
  EXPECT_EQ(pool.num_cached(), 0);
  EXPECT_EQ(Dropped(pool, DropReason::kPrivate), 1);
}

TEST(PagePool, FlushDropsCachedPagesAndLeavesThoseInUse) {
  PagePool pool(3, 16);
  const std::vector<PageId> p = Taken(pool, 3);
  for (const PageId page : p) pool.Seal(page, 0, /*keep=*/true);
  pool.Release(p[0]);
  pool.Release(p[1]);
  pool.FlushCached();
  EXPECT_EQ(pool.num_blank(), 2);
  EXPECT_EQ(pool.num_active(), 1);
  EXPECT_TRUE(pool.IsSealed(p[2]));
  EXPECT_EQ(Dropped(pool, DropReason::kFlushed), 2);
}

TEST(PagePool, CanHandOutFromTheTop) {
  PagePool pool(1000, 16, {.take_from_top = true});
  EXPECT_EQ(Taken(pool, 2), (std::vector<PageId>{1000, 999}));
}

TEST(PagePool, RecordsFreedPagesIfAsked) {
  PagePool pool(4, 16, {.record_freed = true});
  const std::vector<PageId> p = Taken(pool, 3);
  pool.Seal(p[1], 0, /*keep=*/true);
  for (const PageId page : p) pool.Release(page);
  EXPECT_EQ(pool.DrainFreed(), (std::vector<PageId>{p[0], p[2]}));  // p[1] keeps its content
  EXPECT_TRUE(pool.DrainFreed().empty());
  pool.FlushCached();
  EXPECT_EQ(pool.DrainFreed(), std::vector<PageId>{p[1]});
}

TEST(PagePool, MovesBeforeUse) {
  std::vector<PagePool> pools;
  for (int i = 1; i <= 5; ++i) pools.emplace_back(i, 8);
  for (int i = 1; i <= 5; ++i) EXPECT_TRUE(Takes(pools[static_cast<size_t>(i) - 1], i));
}

using PagePoolDeathTest = testing::Test;
TEST(PagePoolDeathTest, MisuseIsFatalInEveryBuild) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  PagePool pool(2, 16);
  const PageId page = Taken(pool, 1)[0];
  EXPECT_DEATH(pool.Retain(page == 1 ? 2 : 1), "is blank");
  pool.Release(page);
  EXPECT_DEATH(pool.Release(page), "released twice");
  EXPECT_DEATH(pool.Seal(page, 0, true), "refs=0");
  EXPECT_DEATH(PagePool(0, 16), "num_usable_pages=0");
}

TEST(PagePool, AuditNamesTheBrokenInvariant) {
  PagePool pool(4, 16);
  PageTable table(pool);
  table.Adopt(Taken(pool, 1)[0]);
  const PageTable* const tables[] = {&table};
  EXPECT_TRUE(pool.Audit(tables).ok());
  const absl::Status lost = pool.Audit({});  // a table that the audit is not told of
  EXPECT_EQ(lost.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(Message(lost), "I2: page 1 has refs=1, tables hold 0");
  const PageTable* const twice[] = {&table, &table};
  EXPECT_EQ(Message(pool.Audit(twice)), "I2: page 1 has refs=1, tables hold 2");
}

TEST(PageTable, OwnsOneReferencePerEntry) {
  PagePool pool(6, 16);
  {
    PageTable a(pool);
    for (const PageId page : Taken(pool, 3)) a.Adopt(page);
    PageTable b = a.Fork();
    EXPECT_EQ(pool.refs(a[0]), 2);
    PageTable c = std::move(b);
    EXPECT_EQ(b.num_pages(), 0);  // NOLINT(bugprone-use-after-move)
    EXPECT_EQ(pool.refs(a[0]), 2);
    const PageId shared = a[2];
    c.Replace(2, Taken(pool, 1)[0]);
    EXPECT_EQ(pool.refs(shared), 1);
    EXPECT_EQ(pool.num_active(), 4);
    c = a.Fork();  // what c held before is released at once
    EXPECT_EQ(pool.num_active(), 3);
    EXPECT_EQ(pool.refs(shared), 2);
    a.Truncate(1);
    EXPECT_EQ(pool.refs(shared), 1);
    c.DropBefore(2);
    EXPECT_EQ(std::vector<PageId>(c.ids().begin(), c.ids().end()),
              (std::vector<PageId>{kNullPage, kNullPage, shared}));
    EXPECT_EQ(pool.num_active(), 2);
  }
  EXPECT_EQ(pool.num_active(), 0);
}

// Rows are used again, so that a fork allocates nothing.
TEST(PagePool, RowsOfTablesAreUsedAgain) {
  PagePool pool(3, 16);
  EXPECT_EQ(pool.TakeRow().capacity(), 0u);
  std::vector<PageId> row(100, 7);
  const PageId* const memory = row.data();
  pool.ReturnRow(std::move(row));
  std::vector<PageId> again = pool.TakeRow();
  EXPECT_EQ(again.data(), memory);
  EXPECT_TRUE(again.empty());
  EXPECT_GE(again.capacity(), 100u);
  EXPECT_EQ(pool.TakeRow().capacity(), 0u) << "each row has one owner";
  for (int i = 0; i < 10'000; ++i) {  // more often than rows are kept
    pool.ReturnRow(std::move(again));
    again = pool.TakeRow();
  }
  pool.ReturnRow(std::move(again));
  PageTable table(pool);
  EXPECT_EQ(table.ids().data(), memory);
  table = PageTable(pool);
  EXPECT_EQ(pool.TakeRow().data(), memory);
}

TEST(PagePool, SpareRowsAreBoundedAndNeverEmpty) {
  PagePool pool(3, 16);
  pool.ReturnRow(std::vector<PageId>(10, 7));
  pool.ReturnRow({});
  EXPECT_GT(pool.TakeRow().capacity(), 0u) << "a row without memory is none";
  for (int i = 0; i < 6'000; ++i) pool.ReturnRow(std::vector<PageId>(1, 7));
  int kept = 0;
  while (pool.TakeRow().capacity() > 0) ++kept;
  EXPECT_EQ(kept, 4096);
}

// Releases leaf before root, so that a chain is evicted from its end.
TEST(PageTable, AChainIsEvictedLeafFirst) {
  PagePool pool(3, 16);
  std::vector<PageId> chain;
  {
    PageTable t(pool);
    for (const PageId page : Taken(pool, 3)) {
      pool.Seal(page, 0, /*keep=*/true);
      t.Adopt(page);
      chain.push_back(page);
    }
  }
  std::reverse(chain.begin(), chain.end());
  EXPECT_EQ(Taken(pool, 3), chain);
}

// Random walks against sets and a queue.
TEST(PagePoolModel, AgreesWithAModel) {
  int64_t evicted_in_all = 0;
  for (uint32_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE(testing::Message() << "reproduce with seed=" << seed);
    std::mt19937 rng(seed);
    const auto random = [&rng](size_t n) { return static_cast<size_t>(rng() % n); };
    PagePool pool(6, 2);
    std::map<PageId, int> refs;     // active
    std::set<PageId> sealed, keep;  // active or cached
    std::deque<PageId> lru;         // cached
    int64_t evicted = 0;
    for (int step = 0; step < 300; ++step) {
      std::vector<PageId> active;
      for (const auto& [page, n] : refs) active.push_back(page);
      switch (random(6)) {
        case 0: {
          const auto count = static_cast<int32_t>(random(4));
          const size_t blank = 6 - refs.size() - lru.size();
          std::vector<PageId> taken;
          const bool fits = TakeInto(pool, count, taken);
          ASSERT_EQ(fits, static_cast<size_t>(count) <= blank + lru.size());
          if (!fits) break;
          std::set<PageId> expected_victims;
          for (size_t i = blank; i < static_cast<size_t>(count); ++i) {
            expected_victims.insert(lru.front());
            sealed.erase(lru.front());
            lru.pop_front();
            ++evicted;
          }
          for (const PageId page : taken) {
            ASSERT_TRUE(refs.emplace(page, 1).second) << "page " << page << " was in use";
            ASSERT_EQ(std::count(lru.begin(), lru.end(), page), 0);
            expected_victims.erase(page);
          }
          ASSERT_TRUE(expected_victims.empty());
          break;
        }
        case 1:
          if (!active.empty()) {
            const PageId page = active[random(active.size())];
            pool.Retain(page);
            ++refs[page];
          }
          break;
        case 2:
          if (!lru.empty()) {
            const size_t i = random(lru.size());
            const PageId page = lru[i];
            lru.erase(lru.begin() + static_cast<std::ptrdiff_t>(i));
            pool.Retain(page);
            refs[page] = 1;
          }
          break;
        case 3:
        case 4:
          if (!active.empty()) {
            const PageId page = active[random(active.size())];
            pool.Release(page);
            if (--refs[page] > 0) break;
            refs.erase(page);
            if (!sealed.contains(page)) break;
            if (keep.contains(page)) {
              lru.push_back(page);
            } else {
              sealed.erase(page);
            }
          }
          break;
        default:
          if (!active.empty()) {
            const PageId page = active[random(active.size())];
            if (sealed.contains(page)) break;
            const bool kept = random(3) > 0;
            pool.Seal(page, step, kept);
            sealed.insert(page);
            keep.erase(page);
            if (kept) keep.insert(page);
          }
          break;
      }
      for (PageId page = 1; page <= 6; ++page) {
        ASSERT_EQ(pool.refs(page), refs.contains(page) ? refs[page] : 0);
        ASSERT_EQ(pool.IsSealed(page), sealed.contains(page));
      }
      ASSERT_EQ(pool.num_cached(), lru.size());
      ASSERT_EQ(pool.num_active(), refs.size());
      ASSERT_EQ(pool.num_blank() + pool.num_cached() + pool.num_active(), pool.num_usable());
      PageTable all(pool);  // not kept: gives the audit something to count
      for (const auto& [page, n] : refs) {
        for (int i = 0; i < n; ++i) {
          pool.Retain(page);
          all.Adopt(page);
        }
      }
      // The walk's own references are held twice now: once by the walk, once by `all`.
      const PageTable* const twice[] = {&all, &all};
      const absl::Status audit = pool.Audit(twice);
      ASSERT_TRUE(audit.ok()) << audit;
    }
    EXPECT_EQ(evicted, Dropped(pool, DropReason::kEvicted));
    evicted_in_all += evicted;
  }
  EXPECT_GT(evicted_in_all, 500);
}

}  // namespace
}  // namespace quire
