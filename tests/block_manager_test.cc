// tests/block_manager_test.cc -- what BlockManager promises, one promise per test.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <string>

#include "tests/cache_harness.h"

namespace quire {
namespace {

// C3: k owners of a tail: at most k - 1 copies, each at its owner's first write; parent included.
TEST(BlockManager, ATailIsCopiedAtTheFirstWriteOfAllOwnersButTheLast) {
  Cache c(40, 16);
  Cache::Seq parent = c.Run(Text(2 * 16 + 5));
  std::vector<Cache::Seq> owners;
  for (int i = 0; i < 3; ++i) owners.push_back(c.Fork(parent));
  owners.push_back(std::move(parent));
  EXPECT_TRUE(c.copies.empty());
  EXPECT_EQ(c.pool().num_active(), 3);
  const PageId tail = owners[0].ids()[2];
  for (size_t i = 0; i < 4; ++i) {
    ASSERT_TRUE(c.Decode(owners[i], 7));
    ASSERT_TRUE(c.Decode(owners[i], 7));  // no second copy
    EXPECT_EQ(c.copies.size(), std::min<size_t>(i + 1, 3));
    c.Audit({&owners[0], &owners[1], &owners[2], &owners[3]});
  }
  EXPECT_EQ(owners[3].ids()[2], tail);
  std::set<PageId> tails;
  for (const auto& o : owners) tails.insert(o.ids()[2]);
  EXPECT_EQ(tails.size(), 4);
  for (const PageCopy& copy : c.copies) EXPECT_EQ(copy.src, tail);
  EXPECT_EQ(c.manager.stats().copies, 3);
}

TEST(BlockManager, AnOwnerThatLeavesNeedsNoCopy) {
  Cache c(10, 16);
  Cache::Seq a = c.Run(Text(5));
  Cache::Seq b = c.Fork(a);
  a.tables = {};
  ASSERT_TRUE(c.Decode(b, 7));
  EXPECT_TRUE(c.copies.empty());
}

TEST(BlockManager, AForkThatCannotBeCopiedChangesNothing) {
  Cache c(3, 8);
  Cache::Seq a = c.Run(Text(20));
  Cache::Seq b = c.Fork(a);
  const auto pages = b.pages();
  EXPECT_FALSE(c.Decode(b, 1));
  EXPECT_EQ(b.pages(), pages);
  EXPECT_TRUE(c.copies.empty());
  c.Audit({&a, &b});
}

// A sealed page with one owner is written in place and no longer found; what came after it,
// neither.
TEST(BlockManager, TruncatingIntoASealedPageOfOnesOwn) {
  Cache c(10, 8);
  Cache::Seq s = c.Run(Text(24));
  const auto pages = s.pages();
  c.manager.Truncate(s.tables, 12);
  s.tokens.resize(12);
  s.chain.resize(1);
  s.computed = 12;
  EXPECT_EQ(c.pool().num_cached(), 1);  // page 2: still a good prefix
  EXPECT_EQ(c.Match(Text(25)).hit, 24);
  ASSERT_TRUE(c.Decode(s, 7));
  EXPECT_EQ(s.pages(), (std::vector<PageId>{pages[0], pages[1]}));
  EXPECT_TRUE(c.copies.empty());
  EXPECT_EQ(c.Match(Text(25)).hit, 8);
  EXPECT_EQ(c.pool().num_cached(), 0);  // page 2 had become useless
  EXPECT_EQ(c.manager.stats().unsealed_writes, 1);
  c.Audit({&s});
}

// A sealed page that another sequence holds stays as it is.
TEST(BlockManager, TruncatingIntoASharedSealedPage) {
  Cache c(10, 8);
  Cache::Seq s = c.Run(Text(24));
  const Cache::Seq other = c.Match(Text(17));
  c.manager.Truncate(s.tables, 12);
  s.tokens.resize(12);
  s.chain.resize(1);
  s.computed = 12;
  ASSERT_TRUE(c.Decode(s, 7));
  EXPECT_EQ(s.ids()[0], other.ids()[0]);
  EXPECT_NE(s.ids()[1], other.ids()[1]);
  ASSERT_EQ(c.copies.size(), 1);
  EXPECT_EQ(c.copies[0].src, other.ids()[1]);
  EXPECT_EQ(c.copies[0].dst, s.ids()[1]);
  EXPECT_EQ(c.Match(Text(25)).hit, 24);
  c.Audit({&s, &other});
}

// Truncate is exact: tables and counts are as if the tokens had never been there.
TEST(BlockManager, TruncateLeavesNoTrace) {
  for (int32_t len = 0; len <= 40; ++len) {
    for (int32_t drafts = 0; drafts <= 20; ++drafts) {
      Cache with(20, 8), without(20, 8);
      Cache::Seq a = with.Match(Text(len)), b = without.Match(Text(len));
      ASSERT_TRUE(without.Grow(b));
      without.Commit(b);
      ASSERT_TRUE(with.manager.Grow(a.tables, 0, len + drafts, with.copies));
      with.manager.Truncate(a.tables, len);
      with.Commit(a);
      ASSERT_EQ(a.pages().size(), b.pages().size());
      ASSERT_EQ(a.chain, b.chain);
      ASSERT_EQ(with.pool().num_blank(), without.pool().num_blank());
      ASSERT_EQ(a.tables.num_sealed, b.tables.num_sealed);
      with.Audit({&a});
    }
  }
}

TEST(BlockManager, RootsAreComparedExactly) {
  Cache c(40, 8);
  using std::string_literals::operator""s;
  const std::string keys[] = {"", "a", "b", "a\0"s, "a\0x"s, "a\0y"s, std::string(3000, 'x')};
  std::vector<Cache::Seq> seqs;
  std::set<RootId> ids;
  for (const std::string& key : keys) {
    const RootId id = c.manager.InternRoot(key);
    EXPECT_TRUE(ids.insert(id).second);
    EXPECT_EQ(c.manager.InternRoot(key), id);
    EXPECT_EQ(c.Match(Text(17), id).hit, 0);
    seqs.push_back(c.Run(Text(17), id));
  }
  for (const RootId id : ids) EXPECT_EQ(c.Match(Text(17), id).hit, 16);
}

// A stream of unique salts, cached or not, needs no more memory than the pool and a constant.
TEST(BlockManager, AStreamOfRootsIsForgotten) {
  for (const bool keep : {false, true}) {
    Cache c(16, 8);
    for (int i = 0; i < 20'000; ++i) {
      const RootId id = c.manager.InternRoot("salt " + std::to_string(i), keep);
      if (i % 2 == 0) c.Run(Text(9), id);  // the others are never used
      ASSERT_LE(c.manager.num_roots(), PrefixIndex::kMaxIdleRoots + 16 + 2);
      ASSERT_LE(c.manager.num_prefix_nodes(), PrefixIndex::kMaxIdleRoots + 2 * 16 + 2);
    }
    c.Audit({});
    // One page short of all: the last one's tail was freed unsealed.
    EXPECT_EQ(c.pool().num_cached(), keep ? 15 : 0);
  }
}

// An id that was kept for too long is safe: no crash, nobody else's pages.
TEST(BlockManager, AForgottenRootIdIsEmptyAndPrivate) {
  Cache c(16, 8);
  const RootId old = c.manager.InternRoot("old");
  for (int i = 0; i < 3000; ++i) c.manager.InternRoot("salt " + std::to_string(i));
  const RootId fresh = c.manager.InternRoot("old");
  EXPECT_NE(fresh, old);
  const Cache::Seq a = c.Run(Text(17), fresh);
  Cache::Seq b = c.Run(Text(17), old);
  EXPECT_EQ(b.hit, 0);
  EXPECT_EQ(c.Match(Text(17), old).hit, 16);
  EXPECT_NE(c.manager.InternRoot(""), old);  // having no key is not having the empty key
  c.Audit({&a, &b});
  b.tables = {};
  EXPECT_EQ(c.pool().num_cached(), 0);
}

// Roots in use are kept however many others come and go.
TEST(BlockManager, RootsInUseStay) {
  Cache c(16, 8);
  const RootId id = c.manager.InternRoot("mine");
  const Cache::Seq s = c.Run(Text(17), id);
  SequenceTables empty = c.manager.NewTables(c.manager.InternRoot("empty"));
  for (int i = 0; i < 3000; ++i) c.manager.InternRoot("salt " + std::to_string(i));
  EXPECT_EQ(c.manager.InternRoot("mine"), id);
  EXPECT_EQ(c.manager.InternRoot("empty"), empty.root);
}

// The oldest idle prefix goes first, from its end; a hit makes it young.
TEST(BlockManager, EvictsTheLeastRecentlyUsedFromTheEnd) {
  Cache c(6, 8);
  c.Run(Text(24, 100)).tables = {};
  c.Run(Text(24, 200)).tables = {};
  EXPECT_EQ(c.Match(Text(25, 100)).hit, 24);  // young again
  const Cache::Seq s = c.Run(Text(16, 300));
  EXPECT_EQ(c.Match(Text(25, 200)).hit, 8);
  EXPECT_EQ(c.Match(Text(25, 100)).hit, 24);
  c.Audit({&s});
}

TEST(BlockManager, WriteSlotsAndReadRows) {
  Cache c(10, 8);
  Cache::Seq s = c.Match(Text(20));
  ASSERT_TRUE(c.Grow(s));
  std::vector<int64_t> slots(20);
  c.manager.FillWriteSlots(s.tables, 0, 0, slots);
  for (int32_t pos = 0; pos < 20; ++pos) {
    EXPECT_EQ(slots[static_cast<size_t>(pos)], s.ids()[static_cast<size_t>(pos / 8)] * 8 + pos % 8);
  }
  std::vector<PageId> row(5, -1);
  c.manager.FillReadRow(s.tables, 0, row);
  EXPECT_EQ(row, (std::vector<PageId>{s.ids()[0], s.ids()[1], s.ids()[2], 0, 0}));
}

using BlockManagerDeathTest = testing::Test;
TEST(BlockManagerDeathTest, AWriteIntoASharedOrSealedPageIsFatal) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  Cache c(10, 8);
  Cache::Seq s = c.Run(Text(12));
  const Cache::Seq fork = c.Fork(s);
  std::vector<int64_t> slots(1);
  EXPECT_DEATH(c.manager.FillWriteSlots(s.tables, 0, 0, slots), "I5: position 0");
  EXPECT_DEATH(c.manager.FillWriteSlots(s.tables, 0, 12, slots), "I5: position 12");
  EXPECT_DEATH(c.manager.FillWriteSlots(s.tables, 0, 16, slots), "I5: position 16");
}

TEST(BlockManager, AuditSeesATableItIsNotTold) {
  Cache c(10, 8);
  const Cache::Seq s = c.Run(Text(12));
  EXPECT_EQ(Message(c.manager.Audit({})), "I2: page 1 has refs=1, tables hold 0");
}

// C5, by hand: 100 prompt tokens are 6 full pages and a part; 50 new ones end in page 10 of 16.
TEST(BlockManager, WorstCasePagesByHand) {
  Cache c(10, 16);
  EXPECT_EQ(c.manager.WorstCasePages(100, 50, 1), PageNeed{10});
  EXPECT_EQ(c.manager.WorstCasePages(100, 50, 4), PageNeed{6 + 4 * 4});
  EXPECT_EQ(c.manager.WorstCasePages(96, 0, 3), PageNeed{6});
  EXPECT_EQ(c.manager.WorstCasePages(96, 1, 3), PageNeed{6 + 3});
  EXPECT_EQ(c.manager.WorstCasePages(0, 1, 1), PageNeed{1});
  EXPECT_EQ(c.manager.WorstCasePages(2'000'000'000, 100'000'000, 100), PageNeed{750'000'000});
  EXPECT_EQ(c.manager.WorstCasePages(0, 2'000'000'000, 1000), PageNeed{INT32_MAX});
}

TEST(BlockManager, WorstCasePagesOfWindowsAndSeveralPools) {
  CacheLayout layout;
  layout.groups = {{.group = {CacheKind::kFull, 16, 0}, .pool = 0},
                   {.group = {CacheKind::kSlidingWindow, 16, 100}, .pool = 0},
                   {.group = {CacheKind::kState, 16, 0}, .pool = 1}};
  layout.pools = {{64}, {128}};
  std::vector<PagePool> pools;
  pools.emplace_back(10, 16);
  pools.emplace_back(10, 16);
  const BlockManager m(layout, pools, {.max_step_tokens = 32});
  // The window: 99 tokens before a step's first one and the step's 32 touch at most 10 pages.
  // The states: one read, one written, the prompt's, and three where snapshots are due on the way.
  EXPECT_EQ(m.WorstCasePages(1000, 600, 1), (PageNeed{100 + 10, 6}));
  EXPECT_EQ(m.WorstCasePages(1000, 600, 2), (PageNeed{62 + 2 * 38 + 2 * 10, 12}));
  EXPECT_EQ(m.WorstCasePages(20, 10, 1), (PageNeed{2 + 2, 2}));
}

// Two groups of equal tokens never share a page; a hit is served by both (golden trace
// "groups_are_separate" in our terms).
TEST(BlockManager, GroupsAreSeparate) {
  CacheLayout layout;
  layout.block_size = 8;
  layout.groups = {{.group = {CacheKind::kFull, 8, 0}}, {.group = {CacheKind::kFull, 8, 0}}};
  layout.pools = {{64}};
  std::vector<PagePool> pools;
  pools.emplace_back(8, 8);
  BlockManager m(layout, pools);
  const auto tokens = Text(17);
  std::vector<PrefixHash> chain;
  std::vector<PageCopy> copies;
  SequenceTables a = m.NewTables(m.InternRoot(""));
  ASSERT_TRUE(m.Grow(a, 0, 16, copies));
  m.Commit(a, tokens, 16, chain);
  std::set<PageId> pages(a.groups[0].ids().begin(), a.groups[0].ids().end());
  pages.insert(a.groups[1].ids().begin(), a.groups[1].ids().end());
  EXPECT_EQ(pages.size(), 4);
  EXPECT_EQ(pools[0].stats().sealed, 4);
  PrefixHit hit = m.MatchPrefix(a.root, tokens, chain);
  EXPECT_EQ(hit.num_tokens, 16);
  for (size_t g = 0; g < 2; ++g) {
    EXPECT_TRUE(std::equal(a.groups[g].ids().begin(), a.groups[g].ids().end(),
                           hit.tables.groups[g].ids().begin()));
  }
}

// A hybrid: of the sliding group a hit needs the window's pages only, but those all.
TEST(BlockManager, AHitIsWhatEveryGroupCanServe) {
  CacheLayout layout;
  layout.block_size = 8;
  layout.groups = {{.group = {CacheKind::kFull, 8, 0}, .pool = 0},
                   {.group = {CacheKind::kSlidingWindow, 8, 16}, .pool = 1}};
  layout.pools = {{64}, {32}};
  std::vector<PagePool> pools;
  pools.emplace_back(20, 8);
  pools.emplace_back(6, 8);
  BlockManager m(layout, pools);
  const RootId root = m.InternRoot("");
  std::vector<TokenId> tokens = Text(64);
  std::vector<PrefixHash> chain;
  std::vector<PageCopy> copies;
  {
    SequenceTables t = m.NewTables(root);
    for (int32_t n = 8; n <= 64; n += 8) {
      ASSERT_TRUE(m.Grow(t, n - 8, n, copies));
      m.Commit(t, tokens, n, chain);
      EXPECT_LE(pools[1].num_active(), 3);
    }
    EXPECT_EQ(std::count(t.groups[1].ids().begin(), t.groups[1].ids().end(), kNullPage), 6);
  }
  // The sliding pool kept the last 6 of 8 pages: 2 .. 7; the full one all.
  EXPECT_EQ(pools[1].num_cached(), 6);
  const auto hit_of = [&](int32_t n) {
    const std::span<const TokenId> head(tokens.data(), static_cast<size_t>(n));
    return m.MatchPrefix(root, head, chain).num_tokens;
  };
  EXPECT_EQ(hit_of(64), 56);  // pages 5 and 6 are there
  EXPECT_EQ(hit_of(33), 32);  // pages 2 and 3
  EXPECT_EQ(hit_of(32), 0);   // 24 would need page 1, 16 page 0 and 1, 8 page 0
  EXPECT_EQ(hit_of(40), 32);
  const PrefixHit hit = m.MatchPrefix(root, tokens, chain);
  const std::span<const PageId> window = hit.tables.groups[1].ids();
  EXPECT_EQ(std::count(window.begin(), window.end(), kNullPage), 5);
  EXPECT_NE(window[5], kNullPage);
}

// Of the states on its way a sequence keeps the snapshots that it may have to go back to, the
// prompt's, and the one it is at.
TEST(BlockManager, AStateGoesBackToItsSnapshots) {
  CacheLayout layout;
  layout.block_size = 2;
  layout.groups = {{.group = {.kind = CacheKind::kState, .page_size = 2, .snapshot_interval = 6}}};
  layout.pools = {{64}};
  std::vector<PagePool> pools;
  pools.emplace_back(20, 2);
  BlockManager m(layout, pools, {.max_step_tokens = 3, .max_truncate_tokens = 8});
  SequenceTables t = m.NewTables(m.InternRoot(""), {.prompt_tokens = 17});
  std::vector<TokenId> tokens = Text(20);
  std::vector<PrefixHash> chain;
  std::vector<PageCopy> copies;
  for (int32_t n = 1; n <= 20; ++n) {
    ASSERT_TRUE(m.Grow(t, n - 1, n, copies));
    m.Commit(t, tokens, n, chain);
    std::set<int32_t> kept;  // by the tokens that a state has read
    for (int32_t i = 0; i < t.groups[0].num_pages(); ++i) {
      if (t.groups[0][i] != kNullPage) kept.insert((i + 1) * 2);
    }
    std::set<int32_t> want = {(n + 1) / 2 * 2};
    // Back to at least n - 8: the last snapshot there, and all after it.
    const int32_t first = std::max(0, n - 8) / 6 * 6;
    for (const int32_t snapshot : {6, 12, 16, 18}) {
      if (snapshot <= n && snapshot >= first) want.insert(snapshot);
    }
    EXPECT_EQ(kept, want) << n << " tokens";
  }
  EXPECT_EQ(m.ResumePoint(t, 20, 20), 20);
  EXPECT_EQ(m.ResumePoint(t, 20, 19), 18);
  EXPECT_EQ(m.ResumePoint(t, 20, 17), 16);
  EXPECT_EQ(m.ResumePoint(t, 20, 15), 12);
  m.Truncate(t, 12);
  const SequenceTables* const live[] = {&t};
  EXPECT_TRUE(m.Audit(live).ok()) << m.Audit(live);
}

// Both groups' hits are held before any page is taken: taking one group's new pages must not evict
// the other group's hit.
TEST(BlockManager, NothingOfAHitIsEvictedByItsOwnGrowth) {
  CacheLayout layout;
  layout.block_size = 8;
  layout.groups = {{.group = {CacheKind::kFull, 8, 0}}, {.group = {CacheKind::kFull, 8, 0}}};
  layout.pools = {{64}};
  std::vector<PagePool> pools;
  pools.emplace_back(6, 8);
  BlockManager m(layout, pools);
  const RootId root = m.InternRoot("");
  const auto tokens = Text(33);
  std::vector<PrefixHash> chain;
  std::vector<PageCopy> copies;
  {
    SequenceTables t = m.NewTables(root);
    ASSERT_TRUE(m.Grow(t, 0, 24, copies));
    m.Commit(t, tokens, 24, chain);
  }
  ASSERT_EQ(pools[0].num_cached(), 6);
  std::vector<PrefixHash> full;
  ExtendChain(tokens, 8, full);
  PrefixHit hit = m.MatchPrefix(root, tokens, full);
  EXPECT_EQ(hit.num_tokens, 24);
  EXPECT_FALSE(m.Grow(hit.tables, 24, 33, copies));
  const SequenceTables* const live[] = {&hit.tables};
  EXPECT_TRUE(m.Audit(live).ok()) << m.Audit(live);
  EXPECT_EQ(pools[0].num_active(), 6);
}

}  // namespace
}  // namespace quire
