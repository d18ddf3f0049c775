// tests/block_manager_tiers_test.cc -- hits that begin inside a block, sharing inside a step, and
// what moves between the pool and the host tier. One promise per test.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>

#include "tests/cache_harness.h"

namespace quire {
namespace {

constexpr int32_t kSize = 8;

int64_t Dropped(const PagePool& pool, DropReason reason) {
  return pool.stats().dropped[static_cast<int>(reason)];
}

// ---- hits that begin inside a block ----

TEST(PartialHit, CopiesABlockThatSavesEnough) {
  Cache c(20, kSize);
  const Cache::Seq first = c.Run(Text(4 * kSize));
  for (int32_t same = 0; same <= kSize; ++same) {
    SCOPED_TRACE(same);
    const auto tokens = Join(Text(2 * kSize + same), Text(10, 5000));
    Cache::Seq s = c.Match(tokens);
    ASSERT_EQ(s.hit, same == kSize ? 3 * kSize : 2 * kSize);
    const int32_t before = c.pool().num_active();
    const int32_t more = c.manager.ExtendPartially(s.tables, s.tokens);
    EXPECT_EQ(more, same >= kSize / 2 && same < kSize ? same : 0);
    const std::vector<PageCopy> ops = c.manager.TakeOps();
    EXPECT_EQ(ops.size(), more > 0 ? 1u : 0u);
    EXPECT_EQ(c.pool().num_active(), before + (more > 0 ? 1 : 0));
    if (more == 0) continue;
    EXPECT_EQ(ops[0].op, PageOp::kCopy);
    EXPECT_EQ(ops[0].src, first.ids()[2]);
    EXPECT_EQ(ops[0].dst, s.ids()[2]);
    EXPECT_NE(s.ids()[2], first.ids()[2]);
    s.computed += more;
    ASSERT_TRUE(c.Grow(s));  // writes into the copy, which is its own
    EXPECT_EQ(s.ids()[2], ops[0].dst);
    c.Commit(s);
    c.Audit({&first, &s});
  }
  EXPECT_EQ(c.manager.stats().partial_tokens, 4 + 5 + 6 + 7);
}

TEST(PartialHit, LeavesTheLastTokenToCompute) {
  Cache c(20, kSize);
  c.Run(Text(2 * kSize)).tables = {};
  Cache::Seq s = c.Match(Text(2 * kSize));
  EXPECT_EQ(s.hit, kSize);
  EXPECT_EQ(c.manager.ExtendPartially(s.tables, s.tokens), kSize - 1);
  Cache::Seq one = c.Match(Text(kSize + 1));
  EXPECT_EQ(one.hit, kSize);
  EXPECT_EQ(c.manager.ExtendPartially(one.tables, one.tokens), 0);
  c.Audit({&s, &one});
}

TEST(PartialHit, ItsShareIsAnOption) {
  for (const double share : {0.0, 0.25, 1.0, 1.5}) {
    Cache c(20, kSize, {.partial_hit_share = share});
    c.Run(Text(2 * kSize)).tables = {};
    for (int32_t same = 1; same < kSize; ++same) {
      const auto tokens = Join(Text(kSize + same), {7, 7});
      Cache::Seq s = c.Match(tokens);
      EXPECT_EQ(c.manager.ExtendPartially(s.tables, s.tokens), same >= share * kSize ? same : 0)
          << share << " " << same;
    }
  }
}

TEST(PartialHit, TakesTheBestOfSeveralBlocks) {
  Cache c(40, kSize);
  const auto base = Text(kSize);
  for (const int32_t same : {5, 7, 6}) {
    c.Run(Join(Join(base, Text(same, 300)), Text(kSize, 4000 + 100 * same))).tables = {};
  }
  Cache::Seq s = c.Match(Join(Join(base, Text(kSize, 300)), {1}));
  EXPECT_EQ(c.manager.ExtendPartially(s.tables, s.tokens), 7);
}

// The copy must not evict what it copies.
TEST(PartialHit, NeedsRoomBesideItsSource) {
  Cache c(4, kSize);
  c.Run(Text(2 * kSize)).tables = {};  // 2 cached, 2 blank
  const auto tokens = Join(Text(kSize + 5), {7, 7});
  const Cache::Seq other = c.Run(Text(2 * kSize, 5000));
  {
    Cache::Seq s = c.Match(tokens);  // holds one of the cached; the other is the last free page
    EXPECT_EQ(c.manager.ExtendPartially(s.tables, s.tokens), 0);
    EXPECT_TRUE(c.manager.TakeOps().empty());
    c.Audit({&other, &s});
  }
  std::vector<PageId> retired;
  ASSERT_TRUE(c.manager.Resize(0, 5, 1, retired).ok());
  Cache::Seq s = c.Match(tokens);
  EXPECT_EQ(c.manager.ExtendPartially(s.tables, s.tokens), 5);
  c.Audit({&other, &s});
}

// ---- sharing inside a step ----

TEST(InStep, WhatIsAnnouncedIsSharedBehindItsWriter) {
  Cache c(40, kSize);
  const auto prompt = Text(3 * kSize + 3);
  Cache::Seq writer = c.Match(prompt);
  ASSERT_TRUE(c.Grow(writer));
  c.manager.Announce(writer.tables, writer.tokens, 3 * kSize + 3, writer.chain);
  Cache::Seq reader = c.Match(Join(Text(3 * kSize), Text(5, 700)));
  EXPECT_EQ(reader.hit, 3 * kSize);
  EXPECT_EQ(c.manager.stats().in_step_tokens, 3 * kSize);
  EXPECT_TRUE(std::equal(reader.ids().begin(), reader.ids().end(), writer.ids().begin()));
  ASSERT_TRUE(c.Grow(reader));
  c.manager.Announce(reader.tables, reader.tokens, 3 * kSize + 5, reader.chain);
  // Half a block that is being written is no source of a copy.
  Cache::Seq partial = c.Match(Join(Text(2 * kSize + 6), Text(5, 900)));
  EXPECT_EQ(partial.hit, 2 * kSize);
  EXPECT_EQ(c.manager.ExtendPartially(partial.tables, partial.tokens), 0);
  c.manager.Publish();
  c.Commit(writer);
  c.Commit(reader);
  EXPECT_EQ(c.manager.ExtendPartially(partial.tables, partial.tokens), 6);
  EXPECT_EQ(c.pool().num_active(), 3 + 1 + 1 + 1);
  c.Audit({&writer, &reader, &partial});
}

TEST(InStep, AFailedStepLeavesNothingToFind) {
  Cache c(40, kSize);
  const Cache::Seq before = c.Run(Text(kSize + 1));
  const size_t nodes = c.manager.num_prefix_nodes();
  {
    Cache::Seq writer = c.Match(Text(3 * kSize));
    EXPECT_EQ(writer.hit, kSize);
    ASSERT_TRUE(c.Grow(writer));
    c.manager.Announce(writer.tables, writer.tokens, 3 * kSize, writer.chain);
    Cache::Seq reader = c.Match(Join(Text(3 * kSize), {7}));
    EXPECT_EQ(reader.hit, 3 * kSize);
    c.manager.Abandon();
  }
  EXPECT_EQ(Dropped(c.pool(), DropReason::kFailed), 2);
  EXPECT_EQ(c.Match(Text(3 * kSize + 1)).hit, kSize) << "what was there before, is";
  EXPECT_EQ(c.manager.num_prefix_nodes(), nodes);
  EXPECT_EQ(c.pool().num_active(), 2);
  c.Audit({&before});
}

// Two that are already under way compute the same block in one step: the later one takes the
// earlier one's page at its Commit.
TEST(InStep, EqualPagesOfOneStepMerge) {
  Cache c(40, kSize);
  Cache::Seq a = c.Match(Text(2 * kSize));
  Cache::Seq b = c.Match(Text(2 * kSize));
  for (Cache::Seq* s : {&a, &b}) {
    ASSERT_TRUE(c.Grow(*s));
    c.manager.Announce(s->tables, s->tokens, 2 * kSize, s->chain);
  }
  EXPECT_NE(a.ids()[0], b.ids()[0]);
  EXPECT_EQ(c.pool().num_active(), 4);
  c.manager.Publish();
  c.Commit(a);
  c.Commit(b);
  EXPECT_EQ(a.pages(), b.pages());
  EXPECT_EQ(c.pool().num_active(), 2);
  EXPECT_EQ(c.manager.stats().dedupe_hits, 2);
  c.Audit({&a, &b});
}

// A state that is being computed is there from the next step on; who would wait for it is told.
TEST(InStep, StatesAreThereInTheNextStep) {
  CacheLayout layout;
  layout.block_size = kSize;
  layout.groups = {
      {.group = {CacheKind::kFull, kSize, 0}, .pool = 0},
      {.group = {.kind = CacheKind::kState, .page_size = kSize, .snapshot_interval = kSize},
       .pool = 1}};
  layout.pools = {{64}, {64}};
  std::vector<PagePool> pools;
  pools.emplace_back(20, kSize);
  pools.emplace_back(20, kSize);
  BlockManager m(layout, pools);
  const RootId root = m.InternRoot("");
  const auto tokens = Text(3 * kSize + 1);
  const SequenceSpec spec{.prompt_tokens = 3 * kSize + 1};
  std::vector<PrefixHash> chain, own;
  ExtendChain(tokens, kSize, chain);
  std::vector<PageCopy> copies;
  // The first block is known; the writer computes the other two.
  SequenceTables first = m.NewTables(root, {.prompt_tokens = kSize});
  ASSERT_TRUE(m.Grow(first, 0, kSize, copies));
  m.Commit(first, tokens, kSize, own);
  PrefixHit writer = m.MatchPrefix(root, tokens, chain, spec);
  ASSERT_EQ(writer.num_tokens, kSize);
  EXPECT_EQ(writer.num_tokens_next_step, kSize);
  ASSERT_TRUE(m.Grow(writer.tables, kSize, 3 * kSize + 1, copies));
  std::vector<PrefixHash> writers = chain;
  m.Announce(writer.tables, tokens, 3 * kSize + 1, writers);
  {
    const PrefixHit now = m.MatchPrefix(root, tokens, chain, spec);
    EXPECT_EQ(now.num_tokens, kSize);
    EXPECT_EQ(now.num_tokens_next_step, 3 * kSize);
    const PrefixHit other = m.MatchPrefix(root, Text(2 * kSize, 7000), {}, spec);
    EXPECT_EQ(other.num_tokens_next_step, 0);
  }
  m.Publish();
  m.Commit(writer.tables, tokens, 3 * kSize + 1, writers);
  const PrefixHit next = m.MatchPrefix(root, tokens, chain, spec);
  EXPECT_EQ(next.num_tokens, 3 * kSize);
  EXPECT_EQ(next.num_tokens_next_step, 3 * kSize);
  const SequenceTables* const live[] = {&first, &writer.tables, &next.tables};
  EXPECT_TRUE(m.Audit(live).ok()) << m.Audit(live);
}

// ---- the host tier ----

TEST(HostTier, EvictedPagesComeBack) {
  Cache c(4, kSize, {}, /*num_host=*/8);
  const auto tokens = Text(3 * kSize + 1);
  Cache::Seq first = c.Run(tokens);
  const std::vector<PageId> old = first.pages();
  first.tables = {};
  c.copies.clear();
  c.Run(Text(4 * kSize, 5000)).tables = {};
  EXPECT_EQ(c.manager.stats().saved, 3);
  EXPECT_EQ(Dropped(c.pool(), DropReason::kEvicted), 3);
  EXPECT_EQ(c.host[0].num_cached(), 3);
  ASSERT_EQ(c.copies.size(), 3u);  // before anybody writes there
  std::map<PageId, PageId> slot_of;
  for (const PageCopy& op : c.copies) {
    EXPECT_EQ(op.op, PageOp::kSave);
    slot_of[op.src] = op.dst;
  }
  const Cache::Seq again = c.Match(tokens);
  EXPECT_EQ(again.hit, 3 * kSize);
  EXPECT_EQ(c.manager.stats().loaded, 3);
  std::map<PageId, PageId> slot_to;
  for (const PageCopy& op : c.manager.TakeOps()) {
    if (op.op == PageOp::kLoad) slot_to[op.dst] = op.src;
  }
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(slot_to.at(again.ids()[i]), slot_of.at(old[i]));
  c.Audit({&again});
}

TEST(HostTier, TheLastFreePageIsEnough) {
  Cache c(5, kSize, {}, /*num_host=*/8);
  const auto tokens = Text(3 * kSize + 1);
  c.Run(tokens).tables = {};
  c.Run(Text(5 * kSize, 5000)).tables = {};
  const Cache::Seq busy = c.Run(Text(2 * kSize, 7000));
  ASSERT_EQ(c.pool().num_available(), 3);
  const Cache::Seq again = c.Match(tokens);
  EXPECT_EQ(again.hit, 3 * kSize);
  EXPECT_EQ(c.pool().num_available(), 0);
  c.Audit({&busy, &again});
}

TEST(HostTier, ItsOldestGoForGood) {
  Cache c(2, kSize, {}, /*num_host=*/3);
  for (int i = 0; i < 4; ++i) c.Run(Text(2 * kSize, 1000 * i)).tables = {};
  // Two are in the pool; of six that were evicted the host has the last three.
  EXPECT_EQ(c.host[0].num_cached(), 3);
  EXPECT_EQ(Dropped(c.host[0], DropReason::kEvicted), 3);
  EXPECT_EQ(c.Match(Join(Text(2 * kSize, 0), {1})).hit, 0);
  EXPECT_EQ(c.Match(Join(Text(2 * kSize, 1000), {1})).hit, kSize) << "its end went first";
  c.Audit({});
}

// How long a page is to be kept holds in both tiers.
TEST(HostTier, RetentionMovesAlong) {
  Cache c(3, kSize, {}, /*num_host=*/3);
  RetentionPolicy policy;
  policy.ranges.push_back({0, INT32_MAX, 90, /*ttl_ms=*/50});
  const auto dear = Text(2 * kSize);
  {
    Cache::Seq s{.tokens = dear};
    PrefixHit hit = c.manager.MatchPrefix(
        c.root, dear, {}, {.retention = std::make_shared<const RetentionPolicy>(policy)});
    s.tables = std::move(hit.tables);
    ASSERT_TRUE(c.Grow(s));
    c.Commit(s);
  }
  c.Run(Text(3 * kSize, 5000)).tables = {};
  EXPECT_EQ(c.host[0].num_cached(), 2);
  // Plain pages go through the tier and leave first.
  c.Run(Text(3 * kSize, 6000)).tables = {};
  c.Run(Text(3 * kSize, 7000)).tables = {};
  EXPECT_EQ(Dropped(c.host[0], DropReason::kEvicted), 5);
  const Cache::Seq again = c.Match(Join(dear, {1}));
  ASSERT_EQ(again.hit, 2 * kSize);
  for (const PageId page : again.ids()) {
    EXPECT_EQ(c.pool().retention(page), (Retention{90, 50}));
  }
  c.Audit({&again});
}

TEST(HostTier, WhoBringsPagesBackSaysHowLongTheyStay) {
  Cache c(4, kSize, {}, /*num_host=*/4);
  const auto tokens = Text(2 * kSize + 1);
  c.Run(tokens).tables = {};
  c.Run(Text(4 * kSize, 5000)).tables = {};
  RetentionPolicy policy;
  policy.ranges.push_back({0, kSize, 90, 0});  // of the first block only
  std::vector<PrefixHash> chain;
  ExtendChain(tokens, kSize, chain);
  const PrefixHit hit = c.manager.MatchPrefix(
      c.root, tokens, chain, {.retention = std::make_shared<const RetentionPolicy>(policy)});
  ASSERT_EQ(hit.num_tokens, 2 * kSize);
  ASSERT_EQ(c.manager.stats().loaded, 2);
  EXPECT_EQ(c.pool().retention(hit.tables.groups[0][0]), (Retention{90, kNoExpiry}));
  EXPECT_EQ(c.pool().retention(hit.tables.groups[0][1]), Retention{});
}

TEST(HostTier, WithoutRoomToLoadItIsAMiss) {
  Cache c(4, kSize, {}, /*num_host=*/8);
  const auto tokens = Text(3 * kSize + 1);
  c.Run(tokens).tables = {};
  Cache::Seq busy = c.Run(Text(3 * kSize, 5000));
  // Its first page is still in the pool, or all are in the host tier but one.
  const int32_t free = c.pool().num_available();
  const Cache::Seq hit = c.Match(tokens);
  EXPECT_LE(hit.hit, free * kSize);
  EXPECT_EQ(c.host[0].num_active(), 0);
  c.Audit({&busy, &hit});
}

TEST(HostTier, PrivatePagesAreNotKept) {
  Cache c(2, kSize, {}, /*num_host=*/4);
  const RootId mine = c.manager.InternRoot("mine", /*keep=*/false);
  c.Run(Text(2 * kSize), mine).tables = {};
  c.Run(Text(2 * kSize, 5000)).tables = {};
  EXPECT_EQ(c.host[0].num_cached(), 0);
  c.Audit({});
}

TEST(HostTier, FlushForgetsItToo) {
  Cache c(2, kSize, {}, /*num_host=*/4);
  c.Run(Text(2 * kSize)).tables = {};
  c.Run(Text(2 * kSize, 5000)).tables = {};
  EXPECT_EQ(c.host[0].num_cached(), 2);
  c.manager.Flush();
  EXPECT_EQ(c.host[0].num_cached(), 0);
  EXPECT_EQ(c.Match(Text(2 * kSize + 1)).hit, 0);
  c.Audit({});
}

// ---- swap ----

TEST(Swap, SavesWhatNoPrefixKeepsAndBringsItBack) {
  Cache c(6, kSize, {}, /*num_host=*/6);
  Cache::Seq s = c.Run(Text(2 * kSize + 3));
  const PageId tail = s.ids()[2];
  std::optional<SwappedTables> swapped = c.manager.SwapOut(s.tables, s.computed);
  ASSERT_TRUE(swapped);
  EXPECT_EQ(swapped->num_computed, 2 * kSize + 3);
  const std::vector<PageCopy> saves = c.manager.TakeOps();
  ASSERT_EQ(saves.size(), 1u) << "the prefix is found again";
  EXPECT_EQ(saves[0].op, PageOp::kSave);
  EXPECT_EQ(saves[0].src, tail);
  s.tables = {};
  EXPECT_EQ(c.pool().num_active(), 0);
  EXPECT_EQ(c.host[0].num_active(), 1);
  c.Audit({}, {&*swapped});
  // Meanwhile the prefix is evicted, to the host tier.
  c.Run(Text(6 * kSize, 5000)).tables = {};
  EXPECT_EQ(c.host[0].num_cached(), 2);
  c.copies.clear();
  std::optional<PrefixHit> back = c.manager.SwapIn(c.root, s.tokens, s.chain, *swapped);
  ASSERT_TRUE(back);
  EXPECT_EQ(back->num_tokens, 2 * kSize + 3);
  s.tables = std::move(back->tables);
  ASSERT_EQ(s.ids().size(), 3u);
  bool loaded_tail = false;
  for (const PageCopy& op : c.manager.TakeOps()) {
    loaded_tail |= op.op == PageOp::kLoad && op.src == saves[0].dst && op.dst == s.ids()[2];
  }
  EXPECT_TRUE(loaded_tail);
  c.Audit({&s}, {&*swapped});
  swapped.reset();
  EXPECT_EQ(c.host[0].num_active(), 0);
  EXPECT_EQ(c.manager.stats().swap_outs, 1);
  EXPECT_EQ(c.manager.stats().swap_ins, 1);
  EXPECT_TRUE(c.Decode(s, 7));
  c.Audit({&s});
}

TEST(Swap, AFullTierRefusesAndNothingChanges) {
  Cache c(8, kSize, {}, /*num_host=*/1);
  Cache::Seq a = c.Run(Text(3));
  Cache::Seq b = c.Run(Text(3, 500));
  const std::optional<SwappedTables> first = c.manager.SwapOut(a.tables, 3);
  ASSERT_TRUE(first);
  EXPECT_FALSE(c.manager.SwapOut(b.tables, 3));
  EXPECT_EQ(c.manager.TakeOps().size(), 1u);
  EXPECT_EQ(c.manager.stats().swap_outs, 1);
  c.Audit({&a, &b}, {&*first});
  Cache without(8, kSize);
  const Cache::Seq s = without.Run(Text(3));
  EXPECT_FALSE(without.manager.SwapOut(s.tables, 3));
}

TEST(Swap, WithoutRoomItWaitsAndNothingChanges) {
  Cache c(4, kSize, {}, /*num_host=*/3);
  Cache::Seq s = c.Run(Text(kSize + 3));
  const std::optional<SwappedTables> swapped = c.manager.SwapOut(s.tables, s.computed);
  ASSERT_TRUE(swapped);
  s.tables = {};
  Cache::Seq busy = c.Run(Text(2 * kSize + 1, 5000));
  c.manager.TakeOps();
  const int32_t host_cached = c.host[0].num_cached();
  EXPECT_FALSE(c.manager.SwapIn(c.root, s.tokens, s.chain, *swapped));
  EXPECT_TRUE(c.manager.TakeOps().empty());
  EXPECT_EQ(c.host[0].num_active(), 1);
  EXPECT_EQ(c.host[0].num_cached(), host_cached);
  c.Audit({&busy}, {&*swapped});
  busy.tables = {};
  const auto back = c.manager.SwapIn(c.root, s.tokens, s.chain, *swapped);
  ASSERT_TRUE(back);
  EXPECT_EQ(back->num_tokens, kSize + 3);
}

// Its prefix was evicted, and the tier had no room for it: what is left is a hit, the rest is
// computed again.
TEST(Swap, ALostPrefixIsComputedAgain) {
  Cache c(4, kSize, {}, /*num_host=*/1);
  Cache::Seq s = c.Run(Text(2 * kSize + 3));
  const std::optional<SwappedTables> swapped = c.manager.SwapOut(s.tables, s.computed);
  ASSERT_TRUE(swapped);
  s.tables = {};
  c.Run(Text(3 * kSize, 5000)).tables = {};  // evicts the prefix's second page
  const auto back = c.manager.SwapIn(c.root, s.tokens, s.chain, *swapped);
  ASSERT_TRUE(back);
  EXPECT_EQ(back->num_tokens, kSize);
  EXPECT_EQ(back->tables.groups[0].num_pages(), 1);
  EXPECT_EQ(c.manager.stats().swap_ins, 0);
}

}  // namespace
}  // namespace quire
