// tests/cache_policy_test.cc -- each policy function against a brute-force definition of what a
// query may see and what a step leaves behind.
#include "paged_cache/cache_policy.h"

#include <gtest/gtest.h>

#include <set>

namespace quire {
namespace {

constexpr int32_t kTokens = 100;

std::string Name(const CacheGroup& g) {
  return testing::PrintToString(static_cast<int>(g.kind)) + " page " + std::to_string(g.page_size) +
         " window " + std::to_string(g.window) + " entry " + std::to_string(g.tokens_per_entry) +
         " interval " + std::to_string(g.snapshot_interval);
}

std::vector<CacheGroup> Groups() {
  std::vector<CacheGroup> groups = {{CacheKind::kFull, 4}, {CacheKind::kLatent, 4}};
  for (const int32_t r : {1, 2, 4, 8, 16}) {
    for (const CacheKind kind : {CacheKind::kCompressed, CacheKind::kIndexer}) {
      groups.push_back(
          {.kind = kind, .page_size = GroupPageSize(4, r), .window = 0, .tokens_per_entry = r});
    }
  }
  for (const int32_t interval : {4, 8, 20}) {
    groups.push_back({.kind = CacheKind::kState, .page_size = 4, .snapshot_interval = interval});
  }
  for (int32_t window = 1; window <= 13; ++window) {
    groups.push_back({CacheKind::kSlidingWindow, 4, window});
    groups.push_back({CacheKind::kChunkedLocal, 4, window});
  }
  return groups;
}

// What a query at position `pos` reads of the cache, as the position at which each thing was
// written: by the definition of each mask.
std::set<int32_t> Visible(const CacheGroup& g, int32_t pos) {
  std::set<int32_t> seen;
  for (int32_t p = 0; p < pos; ++p) {
    switch (g.kind) {
      case CacheKind::kFull:
      case CacheKind::kLatent:
        seen.insert(p);
        break;
      case CacheKind::kCompressed:
      case CacheKind::kIndexer:  // entries of whole groups of tokens, all in the past
        if (p % g.tokens_per_entry == g.tokens_per_entry - 1) seen.insert(p);
        break;
      case CacheKind::kSlidingWindow:  // `window` tokens, the query's own among them
        if (pos - p < g.window) seen.insert(p);
        break;
      case CacheKind::kChunkedLocal:
        if (p / g.window == pos / g.window) seen.insert(p);
        break;
      case CacheKind::kState:  // the state after the token before
        if (p == pos - 1) seen.insert(p);
        break;
      case CacheKind::kCrossAttention:
        break;
    }
  }
  return seen;
}

// What a step that computes [first, end) writes, by position.
std::set<int32_t> Written(const CacheGroup& g, int32_t first, int32_t end, int32_t mark) {
  std::set<int32_t> written;
  for (int32_t p = first; p < end; ++p) {
    switch (g.kind) {
      case CacheKind::kCompressed:
      case CacheKind::kIndexer:
        if (p % g.tokens_per_entry == g.tokens_per_entry - 1) written.insert(p);
        break;
      case CacheKind::kState:
        if (p == end - 1 || (p + 1) % g.snapshot_interval == 0 || p + 1 == mark) written.insert(p);
        break;
      default:
        written.insert(p);
    }
  }
  return written;
}

std::set<int32_t> PagesOf(const CacheGroup& g, const std::set<int32_t>& positions) {
  std::set<int32_t> pages;
  for (const int32_t p : positions) pages.insert(p / g.page_size);
  return pages;
}

TEST(CachePolicy, KeepsExactlyTheVisiblePages) {
  for (const CacheGroup& g : Groups()) {
    int32_t last = 0;
    for (int32_t n = 0; n < kTokens; ++n) {
      const int32_t first = FirstLivePage(g, n);
      ASSERT_GE(first, last) << Name(g);
      last = first;
      // Every later query reads nothing before it, and this one reads it or nothing at all.
      for (int32_t pos = n; pos < std::min(n + 20, kTokens); ++pos) {
        for (const int32_t page : PagesOf(g, Visible(g, pos))) {
          ASSERT_GE(page, first) << Name(g) << " n " << n;
          ASSERT_LT(page, NumPages(g, pos)) << Name(g) << " pos " << pos;
        }
      }
      const std::set<int32_t> now = PagesOf(g, Visible(g, n));
      ASSERT_TRUE(now.empty() || *now.begin() == first) << Name(g) << " n " << n;
      ASSERT_EQ(NumPages(g, n), now.empty() ? NumPages(g, n) : *now.rbegin() + 1) << Name(g);
    }
  }
}

TEST(CachePolicy, NamesExactlyThePagesAndPositionsThatAStepWrites) {
  for (const CacheGroup& g : Groups()) {
    for (const int32_t mark : {0, 12, 28}) {
      for (int32_t first = 0; first < 44; ++first) {
        for (int32_t end = first + 1; end <= first + 40; ++end) {
          const std::set<int32_t> written = Written(g, first, end, mark);
          std::set<int32_t> pages;
          for (int32_t i = FirstWrittenPage(g, first); i < NumPages(g, end); ++i) {
            if (WritesPage(g, i, first, end, mark)) pages.insert(i);
          }
          ASSERT_EQ(pages, PagesOf(g, written)) << Name(g) << " [" << first << ", " << end << ")";
          for (int32_t p = first; p < end; ++p) {
            ASSERT_EQ(WritesAt(g, p, end, mark), written.contains(p))
                << Name(g) << " [" << first << ", " << end << ") at " << p;
          }
        }
      }
    }
  }
}

// A page is final when no later step writes into it; of states, when it is one to go back to.
TEST(CachePolicy, AFinalPageIsNeverWrittenAgain) {
  for (const CacheGroup& g : Groups()) {
    for (int32_t n = 1; n < 60; ++n) {
      for (int32_t page = 0; page < NumPages(g, n); ++page) {
        const int32_t end = (page + 1) * g.page_size;
        const bool final = IsPageFinal(g, end, n, 12);
        if (g.kind == CacheKind::kState) {
          EXPECT_EQ(final, end <= n && (end % g.snapshot_interval == 0 || end == 12)) << Name(g);
        } else {
          EXPECT_EQ(final, end <= n) << Name(g);
        }
        EXPECT_TRUE(!final || FirstWrittenPage(g, n) > page) << Name(g) << " n " << n;
      }
    }
  }
}

TEST(CachePolicy, MaxPagesCoversEveryStep) {
  for (const CacheGroup& g : Groups()) {
    for (const int32_t step : {1, 3, 8, 40}) {
      for (const int32_t rollback : {0, 5}) {
        int32_t most = 0;
        for (int32_t from = 0; from < 40; ++from) {
          const int32_t to = std::min(40, from + step);
          std::set<int32_t> pages = PagesOf(g, Written(g, from, to, 12));
          // What this query and those after a rollback read; to where a state can go back.
          std::set<int32_t> kept = Visible(g, from);
          for (int32_t back = 1; back <= rollback && back <= from; ++back) {
            if (g.kind == CacheKind::kState) break;
            kept.merge(Visible(g, from - back));
            kept.merge(Written(g, from - back, from, 12));
          }
          if (g.kind == CacheKind::kState && rollback > 0) {
            const int32_t lowest = std::max(0, from - rollback);
            for (int32_t p = lowest / g.snapshot_interval * g.snapshot_interval; p <= from; ++p) {
              if (p > 0 && (p % g.snapshot_interval == 0 || p == 12)) kept.insert(p - 1);
            }
          }
          pages.merge(PagesOf(g, kept));
          most = std::max(most, static_cast<int32_t>(pages.size()));
          for (const int32_t page : PagesOf(g, kept)) {
            EXPECT_GE(page, FirstKeptPage(g, from, rollback)) << Name(g) << " from " << from;
          }
        }
        const int32_t bound = MaxPages(g, 40, step, rollback);
        EXPECT_GE(bound, most) << Name(g) << " step " << step << " rollback " << rollback;
        const int32_t slack = g.kind == CacheKind::kState ? 4 : 1;
        EXPECT_LE(bound, std::min(10, most + slack)) << Name(g) << " step " << step;
      }
    }
  }
  EXPECT_EQ(MaxPages({CacheKind::kFull, 16, 0}, 2147483647, 2147483647, 0), 134217728);
}

// Positions that a page of a wider group shares with the blocks of the prefix chain.
TEST(CachePolicy, AHitAtAnyBlockBorderNeedsWholePagesOnly) {
  for (const CacheGroup& g : Groups()) {
    if (!KeepsAll(g.kind)) continue;
    for (int32_t n = 0; n < kTokens; n += 4) {
      std::set<int32_t> pages = PagesOf(g, Visible(g, n));
      EXPECT_EQ(static_cast<int32_t>(pages.size()), n / g.page_size) << Name(g) << " n " << n;
    }
  }
}

}  // namespace
}  // namespace quire
