// tests/block_manager_admin_test.cc -- what operators do to the cache and see of it: pins, sizes,
// pages, retention. One promise per test.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <set>
#include <string>

#include "tests/cache_harness.h"

namespace quire {
namespace {

constexpr int32_t kSize = 8;

bool Says(const absl::Status& status, const std::string& part) {
  return Message(status).find(part) != std::string::npos;
}
int64_t Dropped(const PagePool& pool, DropReason reason) {
  return pool.stats().dropped[static_cast<int>(reason)];
}

// ---- pins ----

TEST(Pins, KeepAPrefixUntilTheyEnd) {
  Cache c(10, kSize);
  const auto wanted = Text(25);
  c.Run(wanted).tables = {};
  const auto pin = c.manager.Pin(c.root, wanted, /*ttl_ms=*/0, {0});
  ASSERT_TRUE(pin.ok()) << pin.status();
  EXPECT_EQ(pin->num_tokens, 24);
  EXPECT_EQ(pin->root, c.root);
  EXPECT_EQ(pin->expires_ms, kNoExpiry);
  EXPECT_EQ(c.manager.pinned_pages(0), 3);
  EXPECT_EQ(c.manager.Capacity(0), 7);
  for (int i = 0; i < 5; ++i) c.Run(Text(7 * kSize, 1000 * (i + 1))).tables = {};
  EXPECT_EQ(Dropped(c.pool(), DropReason::kEvicted), 4 * 7);
  EXPECT_EQ(c.Match(wanted).hit, 24);
  c.Audit({});
  ASSERT_EQ(c.manager.pins().size(), 1u);
  EXPECT_EQ(c.manager.pins()[0].id, pin->id);
  EXPECT_TRUE(c.manager.Unpin(pin->id));
  EXPECT_FALSE(c.manager.Unpin(pin->id));
  EXPECT_EQ(c.manager.pinned_pages(0), 0);
  EXPECT_EQ(c.manager.Capacity(0), 10);
  c.Run(Text(10 * kSize, 9000)).tables = {};
  EXPECT_EQ(c.Match(wanted).hit, 0);
}

TEST(Pins, ExpireAtTheirTime) {
  Cache c(10, kSize);
  c.Run(Text(25)).tables = {};
  c.manager.SetTime(100);
  const auto pin = c.manager.Pin(c.root, Text(25), /*ttl_ms=*/10, {0});
  ASSERT_TRUE(pin.ok());
  EXPECT_EQ(pin->expires_ms, 110);
  c.manager.SetTime(109);
  EXPECT_EQ(c.manager.pinned_pages(0), 3);
  c.manager.SetTime(110);
  EXPECT_EQ(c.manager.pinned_pages(0), 0);
  EXPECT_TRUE(c.manager.pins().empty());
  EXPECT_EQ(c.pool().num_cached(), 3);
  c.Audit({});
}

TEST(Pins, OfOnePrefixCountItsPagesOnce) {
  Cache c(10, kSize);
  c.Run(Text(33)).tables = {};
  const auto shorter = c.manager.Pin(c.root, Text(17), 0, {0});
  const auto longer = c.manager.Pin(c.root, Text(33), 0, {0});
  ASSERT_TRUE(shorter.ok() && longer.ok());
  EXPECT_NE(shorter->id, longer->id);
  EXPECT_EQ(c.manager.pinned_pages(0), 4);
  EXPECT_TRUE(c.manager.Unpin(longer->id));
  EXPECT_EQ(c.manager.pinned_pages(0), 2);
}

TEST(Pins, RefusalsNameWhatIsMissing) {
  Cache c(10, kSize);
  const auto nothing = c.manager.Pin(c.root, Text(25), 0, {0});
  EXPECT_EQ(nothing.status().code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(Says(nothing.status(), "25 tokens")) << nothing.status();

  c.Run(Text(6 * kSize)).tables = {};
  const auto too_much = c.manager.Pin(c.root, Text(6 * kSize), 0, {0});
  EXPECT_EQ(too_much.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(Says(too_much.status(), "6 blocks, limit is 5 (max_pinned_share=0.5"))
      << too_much.status();
  EXPECT_EQ(c.manager.pinned_pages(0), 0);
  EXPECT_TRUE(c.manager.pins().empty());

  const auto at_the_limit = c.manager.Pin(c.root, Text(5 * kSize), 0, {5});
  ASSERT_TRUE(at_the_limit.ok()) << at_the_limit.status();
  EXPECT_TRUE(c.manager.Unpin(at_the_limit->id));
  const auto too_little_left = c.manager.Pin(c.root, Text(5 * kSize), 0, {6});
  EXPECT_EQ(too_little_left.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(Says(too_little_left.status(), "leave 5 blocks")) << too_little_left.status();
  EXPECT_TRUE(Says(too_little_left.status(), "need 6")) << too_little_left.status();
  EXPECT_EQ(c.pool().num_active(), 0);
  EXPECT_EQ(c.pool().num_cached(), 6);
  c.Audit({});
}

TEST(Pins, AreCountedInEachPool) {
  CacheLayout layout;
  layout.block_size = kSize;
  layout.groups = {{.group = {CacheKind::kFull, kSize, 0}, .pool = 0},
                   {.group = {CacheKind::kSlidingWindow, kSize, 9}, .pool = 1},
                   {.group = {CacheKind::kLatent, kSize, 0}, .pool = 1}};
  layout.pools = {{64}, {64}};
  std::vector<PagePool> pools;
  pools.emplace_back(20, kSize);
  pools.emplace_back(20, kSize);
  BlockManager m(layout, pools);
  const RootId root = m.InternRoot("");
  std::vector<PrefixHash> chain;
  std::vector<PageCopy> copies;
  {
    SequenceTables t = m.NewTables(root);
    ASSERT_TRUE(m.Grow(t, 0, 4 * kSize, copies));
    m.Commit(t, Text(4 * kSize), 4 * kSize, chain);
  }
  ASSERT_TRUE(m.Pin(root, Text(4 * kSize), 0, {0, 0}).ok());
  EXPECT_EQ(m.pinned_pages(0), 4);
  EXPECT_EQ(m.pinned_pages(1), 1 + 4) << "of the window, what the next token sees";
  EXPECT_EQ(m.Capacity(0), 16);
  EXPECT_EQ(m.Capacity(1), 15);
  EXPECT_EQ(pools[1].num_active(), 5);
  // What is to stay is asked of each pool.
  EXPECT_EQ(m.Pin(root, Text(2 * kSize), 0, {16, 16}).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(m.Audit({}).ok()) << m.Audit({});
}

// ---- size ----

TEST(Resize, CachedPagesGoFirstAndUsedOnesWhenTheyComeBack) {
  Cache c(10, kSize);
  c.Run(Text(4 * kSize)).tables = {};          // cached
  Cache::Seq running = c.Run(Text(29, 5000));  // 4 pages
  ASSERT_EQ(c.pool().num_blank(), 2);
  std::vector<PageId> retired;
  ASSERT_TRUE(c.manager.Resize(0, 5, /*least=*/4, retired).ok());
  EXPECT_EQ(retired.size(), 5u);
  EXPECT_EQ(c.pool().num_usable(), 5);
  EXPECT_EQ(c.pool().num_blank(), 0);
  EXPECT_EQ(c.pool().num_cached(), 1);
  EXPECT_EQ(c.pool().num_active(), 4);
  EXPECT_EQ(Dropped(c.pool(), DropReason::kShrunk), 3);
  EXPECT_EQ(c.Match(Text(25)).hit, 8) << "a chain goes from its end";
  for (const PageId page : retired) {
    EXPECT_TRUE(c.pool().IsRetired(page));
    EXPECT_EQ(std::count(running.ids().begin(), running.ids().end(), page), 0);
  }
  c.Audit({&running});

  retired.clear();
  ASSERT_TRUE(c.manager.Resize(0, 2, /*least=*/2, retired).ok());
  EXPECT_EQ(retired.size(), 6u);
  EXPECT_EQ(c.pool().num_to_retire(), 2);
  EXPECT_EQ(c.pool().num_available(), 0);
  EXPECT_EQ(c.pool().num_active(), 4) << "what runs keeps its pages";
  EXPECT_FALSE(c.Decode(running, 1) && c.Decode(running, 1) && c.Decode(running, 1) &&
               c.Decode(running, 1));
  c.Audit({&running});
  running.tables = {};
  EXPECT_EQ(c.pool().num_active(), 0);
  EXPECT_EQ(c.pool().num_blank() + c.pool().num_cached(), 2);
  EXPECT_EQ(c.pool().num_to_retire(), 0);
  c.Audit({});

  retired.clear();
  ASSERT_TRUE(c.manager.Resize(0, 13, /*least=*/2, retired).ok());
  EXPECT_TRUE(retired.empty());
  EXPECT_EQ(c.pool().num_ids(), 14) << "old pages are used again before there are new ones";
  Cache::Seq all = c.Run(Text(13 * kSize, 7000));
  EXPECT_EQ(std::set<PageId>(all.ids().begin(), all.ids().end()).size(), 13u);
  c.Audit({&all});
}

TEST(Resize, PagesAboutToGoAreSparedWhenThePoolGrowsAgain) {
  Cache c(6, kSize);
  Cache::Seq s = c.Run(Text(6 * kSize));
  std::vector<PageId> retired;
  ASSERT_TRUE(c.manager.Resize(0, 2, 1, retired).ok());
  EXPECT_EQ(c.pool().num_to_retire(), 4);
  ASSERT_TRUE(c.manager.Resize(0, 5, 1, retired).ok());
  EXPECT_TRUE(retired.empty());
  EXPECT_EQ(c.pool().num_to_retire(), 1);
  s.tables = {};
  EXPECT_EQ(c.pool().num_cached() + c.pool().num_blank(), 5);
  EXPECT_EQ(c.pool().num_ids(), 7);
  c.Audit({});
}

TEST(Resize, NeverBelowWhatIsAdmittedAndPinned) {
  Cache c(10, kSize);
  c.Run(Text(25)).tables = {};
  ASSERT_TRUE(c.manager.Pin(c.root, Text(25), 0, {0}).ok());
  std::vector<PageId> retired;
  const absl::Status refused = c.manager.Resize(0, 6, /*least=*/4, retired);
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(Says(refused, "num_blocks=6 must be at least 7 now: 4 for")) << refused;
  EXPECT_TRUE(Says(refused, "3 pinned")) << refused;
  EXPECT_EQ(c.pool().num_usable(), 10);
  EXPECT_TRUE(c.manager.Resize(0, 7, 4, retired).ok());
  EXPECT_EQ(c.Match(Text(25)).hit, 24);
  EXPECT_EQ(c.manager.Resize(0, 0, 0, retired).code(), absl::StatusCode::kInvalidArgument);
}

// ---- what is there ----

TEST(Inspect, TellsWhatEachPageHolds) {
  Cache c(6, kSize);
  c.manager.SetTime(40);
  Cache::Seq gone = c.Run(Text(17));
  gone.tables = {};
  c.manager.SetTime(70);
  const Cache::Seq a = c.Run(Text(17));  // a hit of two pages, and a tail
  const Cache::Seq b = c.Fork(a);
  std::vector<PrefixHash> chain;
  ExtendChain(Text(16), kSize, chain);
  const std::vector<BlockInfo> all = c.manager.Inspect();
  ASSERT_EQ(all.size(), 6u);
  std::set<PageId> pages;
  int blank = 0;
  for (const BlockInfo& info : all) {
    EXPECT_EQ(info.pool, 0);
    EXPECT_TRUE(pages.insert(info.page).second);
    EXPECT_NE(info.page, kNullPage);
    const auto at = std::find(a.ids().begin(), a.ids().end(), info.page);
    if (at == a.ids().end()) {
      ++blank;
      EXPECT_EQ(info.state, PageState::kBlank);
      EXPECT_EQ(info.refs, 0);
      EXPECT_FALSE(info.sealed);
      EXPECT_EQ(info.group, -1);
      continue;
    }
    const auto i = static_cast<size_t>(at - a.ids().begin());
    EXPECT_EQ(info.state, PageState::kActive);
    EXPECT_EQ(info.refs, 2);
    EXPECT_EQ(info.last_access_ms, 70);
    EXPECT_EQ(info.sealed, i < 2);
    if (i == 2) continue;
    EXPECT_EQ(info.group, 0);
    EXPECT_EQ(info.end_token, static_cast<int32_t>(i + 1) * kSize);
    EXPECT_EQ(info.hash, chain[i]);
    EXPECT_EQ(info.parent_hash, i == 0 ? PrefixHash{} : chain[0]);
    EXPECT_EQ(info.root, c.root);
    EXPECT_EQ(info.retention, Retention{});
  }
  EXPECT_EQ(blank, 3);
}

// Hashes of 256 bits are kept whole, and a node that is used again has nothing of the one before.
TEST(Inspect, LongHashesAreWhole) {
  Cache c(4, kSize, {.hash_algorithm = PrefixHashAlgorithm::kSha256Cbor});
  for (int round = 0; round < 3; ++round) {
    const RootId root = c.manager.InternRoot("root " + std::to_string(round));
    const auto tokens = Text(2 * kSize, 1000 * round);
    std::vector<PrefixHash> chain;
    c.manager.ExtendChain(root, tokens, chain);
    ASSERT_EQ(chain.size(), 2u);
    EXPECT_NE(chain[0].more_lo | chain[0].more_hi, 0u);
    {
      PrefixHit hit = c.manager.MatchPrefix(root, tokens, chain);
      ASSERT_TRUE(c.manager.Grow(hit.tables, 0, 2 * kSize, c.copies));
      c.manager.Commit(hit.tables, tokens, 2 * kSize, chain);
    }
    int seen = 0;
    for (const BlockInfo& info : c.manager.Inspect()) {
      if (!info.sealed || info.root != root) continue;
      const auto i = static_cast<size_t>(info.end_token / kSize - 1);
      EXPECT_EQ(info.hash, chain[i]);
      EXPECT_EQ(info.parent_hash, i == 0 ? PrefixHash{} : chain[0]);
      ++seen;
    }
    EXPECT_EQ(seen, 2);
    if (round == 1) c.manager.Flush();  // the next root takes a node that had such a hash
  }
}

TEST(Inspect, LeavesRetiredPagesOut) {
  Cache c(6, kSize);
  c.Run(Text(17)).tables = {};
  std::vector<PageId> retired;
  ASSERT_TRUE(c.manager.Resize(0, 4, 1, retired).ok());
  const std::vector<BlockInfo> all = c.manager.Inspect();
  EXPECT_EQ(all.size(), 4u);
  int cached = 0;
  for (const BlockInfo& info : all) {
    EXPECT_EQ(std::count(retired.begin(), retired.end(), info.page), 0);
    cached += info.state == PageState::kCached;
  }
  EXPECT_EQ(cached, 2);
}

TEST(Inspect, WalksTheTreeFromItsRoots) {
  Cache c(20, kSize);
  const RootId other = c.manager.InternRoot("other");
  const Cache::Seq a = c.Run(Text(3 * kSize));
  const Cache::Seq b = c.Run(Join(Text(kSize), Text(kSize, 500)));
  const Cache::Seq d = c.Run(Text(kSize), other);
  Cache::Seq gone = c.Run(Text(2 * kSize, 900));
  gone.tables = {};
  c.manager.Flush();  // all of these are detached now
  const Cache::Seq again = c.Run(Join(Text(2 * kSize), {1}));
  const Cache::Seq there = c.Run(Text(kSize), other);
  const PrefixIndex& index = c.manager.index();
  std::vector<NodeId> nodes;
  index.ForEach([&](NodeId node) { nodes.push_back(node); });
  ASSERT_EQ(nodes.size(), 3u);
  std::multiset<std::string> keys;
  for (size_t i = 0; i < nodes.size(); ++i) {
    EXPECT_FALSE(index.is_detached(nodes[i]));
    keys.insert(std::string(index.root_key(index.root(nodes[i]))));
    if (index.depth(nodes[i]) == 1) continue;
    EXPECT_LT(std::find(nodes.begin(), nodes.end(), index.parent(nodes[i])) - nodes.begin(),
              static_cast<std::ptrdiff_t>(i))
        << "parents come first";
  }
  EXPECT_EQ(keys, (std::multiset<std::string>{"", "", "other"}));
}

// ---- retention ----

SequenceSpec Keeping(int32_t begin, int32_t end, int32_t priority, int64_t ttl_ms) {
  RetentionPolicy policy;
  policy.ranges.push_back({begin, end, priority, ttl_ms});
  return {.retention = std::make_shared<const RetentionPolicy>(policy)};
}

Cache::Seq RunKeeping(Cache& c, const std::vector<TokenId>& tokens, const SequenceSpec& spec) {
  Cache::Seq s{.tokens = tokens};
  ExtendChain(tokens, kSize, s.chain);
  PrefixHit hit = c.manager.MatchPrefix(c.root, tokens, s.chain, spec);
  s.tables = std::move(hit.tables);
  s.hit = s.computed = hit.num_tokens;
  EXPECT_TRUE(c.Grow(s));
  c.Commit(s);
  return s;
}

TEST(Retention, DearPagesOutliveCheapOnesForTheirTime) {
  Cache c(9, kSize);
  const auto dear = Text(24);
  const auto plain = Text(24, 1000);
  const auto cheap = Text(24, 2000);
  RunKeeping(c, dear, Keeping(0, 24, 90, /*ttl_ms=*/50)).tables = {};
  RunKeeping(c, plain, {}).tables = {};
  RunKeeping(c, cheap, Keeping(0, 24, 5, 0)).tables = {};
  ASSERT_EQ(c.pool().num_cached(), 9);
  const Cache::Seq three = c.Run(Text(3 * kSize, 3000));  // the cheap ones go, though used last
  EXPECT_EQ(c.Match(Join(dear, {1})).hit, 24);
  EXPECT_EQ(c.Match(Join(plain, {1})).hit, 24);
  EXPECT_EQ(c.Match(Join(cheap, {1})).hit, 0);
  {
    const Cache::Seq two = c.Run(Text(2 * kSize, 4000));  // then the plain ones, from their end
    EXPECT_EQ(c.Match(Join(plain, {1})).hit, 8);
    EXPECT_EQ(c.Match(Join(dear, {1})).hit, 24);
  }
  // At the end of their time they are the next to go, before what is used less.
  c.manager.SetTime(49);
  EXPECT_EQ(c.pool().stats().expired, 0);
  c.manager.SetTime(50);
  EXPECT_EQ(c.pool().stats().expired, 3);
  const Cache::Seq two = c.Run(Text(2 * kSize, 5000));
  EXPECT_EQ(c.Match(Join(dear, {1})).hit, 8);
  EXPECT_EQ(c.Match(Join(plain, {1})).hit, 8);
  c.Audit({&three, &two});
}

TEST(Retention, ARangeCoversAllBeforeItsEnd) {
  RetentionPolicy policy;
  policy.ranges.push_back({16, 24, 80, 0});
  policy.ranges.push_back({0, 9, 40, 100});
  const int64_t now = 7;
  EXPECT_EQ(RetentionOfPage(policy, 0, now), (Retention{80, kNoExpiry}));
  EXPECT_EQ(RetentionOfPage(policy, 8, now), (Retention{80, kNoExpiry}));
  EXPECT_EQ(RetentionOfPage(policy, 16, now), (Retention{80, kNoExpiry}));
  EXPECT_EQ(RetentionOfPage(policy, 24, now), Retention{});
  policy.ranges[0].ttl_ms = 20;
  EXPECT_EQ(RetentionOfPage(policy, 8, now), (Retention{80, 107})) << "ends of both ranges count";
  EXPECT_EQ(RetentionOfPage(policy, 16, now), (Retention{80, 27}));
  policy.ranges = {{0, 100, 10, 0}};
  EXPECT_EQ(RetentionOfPage(policy, 50, now), (Retention{10, kNoExpiry}));
}

TEST(Retention, OfTwoOwnersTheStrongerCounts) {
  Cache c(9, kSize);
  const auto tokens = Text(17);
  const auto stands = [&](size_t i) { return c.pool().retention(c.Match(tokens).ids()[i]); };
  RunKeeping(c, tokens, Keeping(0, 100, 60, 100)).tables = {};
  EXPECT_EQ(stands(0), (Retention{60, 100}));
  RunKeeping(c, tokens, Keeping(0, 100, 50, 500)).tables = {};
  EXPECT_EQ(stands(0), (Retention{60, 500}));
  RunKeeping(c, tokens, Keeping(0, 8, 70, 0)).tables = {};
  EXPECT_EQ(stands(0), (Retention{70, kNoExpiry}));
  EXPECT_EQ(stands(1), (Retention{60, 500}));
  RunKeeping(c, tokens, {}).tables = {};
  EXPECT_EQ(stands(0), (Retention{70, kNoExpiry})) << "no wish is no wish to go";
  c.manager.SetTime(500);
  EXPECT_EQ(stands(0), (Retention{70, kNoExpiry}));
  EXPECT_EQ(stands(1), Retention{});
  c.Audit({});
}

}  // namespace
}  // namespace quire
