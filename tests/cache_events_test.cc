// tests/cache_events_test.cc -- what outsiders are told of the cache.
//
// The oracle is an index as a router keeps one, made from events alone. After each of many random
// operations it must be the block manager's own prefix tree.
#include "paged_cache/cache_events.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <numeric>
#include <set>
#include <tuple>

#include "paged_cache/page_file_store.h"
#include "paged_cache/page_storage.h"
#include "tests/cache_harness.h"
#include "tests/cache_walk.h"

namespace quire {
namespace {

using Kind = CacheEvents::Kind;

// Group, tier, salt and all tokens of the prefix.
using Content = std::tuple<int32_t, CacheTier, std::string, std::vector<TokenId>>;

// What a router knows.
class RouterIndex {
 public:
  explicit RouterIndex(int32_t block_size) : block_size_(block_size) {}

  void Apply(const CacheEvents& events) {
    for (const CacheEvents::Event& e : events.events) {
      if (e.kind == Kind::kCleared) {
        stored_.clear();
        continue;
      }
      PrefixHash parent = e.parent;
      for (int32_t i = 0; i < e.num_blocks; ++i) {
        const PrefixHash hash = events.hashes.at(static_cast<size_t>(e.first_hash + i));
        const std::tuple at(e.group, e.tier, hash);
        if (e.kind == Kind::kRemoved) {
          EXPECT_EQ(stored_.erase(at), 1u) << "removed, but not there";
          ++num_removed_;
          continue;
        }
        std::vector<TokenId> tokens;
        if (e.has_parent || i > 0) {
          ASSERT_TRUE(tokens_of_.contains(parent)) << "a parent that nobody was told of";
          tokens = tokens_of_.at(parent);
        }
        const auto first = events.tokens.begin() + e.first_token + i * block_size_;
        ASSERT_LE(e.first_token + (i + 1) * block_size_, std::ssize(events.tokens));
        tokens.insert(tokens.end(), first, first + block_size_);
        tokens_of_[hash] = tokens;
        const std::string salt = e.salt < 0 ? "" : events.salts.at(static_cast<size_t>(e.salt));
        EXPECT_TRUE(stored_.emplace(at, Content(e.group, e.tier, salt, tokens)).second)
            << "stored twice";
        parent = hash;
        ++num_stored_;
      }
    }
  }
  std::multiset<Content> contents() const {
    std::multiset<Content> all;
    for (const auto& [at, content] : stored_) all.insert(content);
    return all;
  }
  int64_t num_stored() const { return num_stored_; }
  int64_t num_removed() const { return num_removed_; }

 private:
  int32_t block_size_;
  std::map<std::tuple<int32_t, CacheTier, PrefixHash>, Content> stored_;
  std::map<PrefixHash, std::vector<TokenId>> tokens_of_;  // of all prefixes ever told
  int64_t num_stored_ = 0;
  int64_t num_removed_ = 0;
};

// The prefix tree as the manager shows it.
std::multiset<Content> TreeOf(const BlockManager& m) {
  std::multiset<Content> all;
  const PrefixIndex& index = m.index();
  index.ForEach([&](NodeId node) {
    if (!index.root_keeps(index.root(node))) return;
    std::vector<TokenId> tokens;
    for (NodeId n = node; index.depth(n) > 0; n = index.parent(n)) {
      tokens.insert(tokens.begin(), index.tokens_of(n).begin(), index.tokens_of(n).end());
    }
    for (size_t g = 0; g < m.layout().groups.size(); ++g) {
      if (!HasEvents(m.layout().groups[g].group, m.block_size())) continue;
      if (!index.has_content(node, g)) continue;
      all.emplace(static_cast<int32_t>(g),
                  index.page(node, g) != kNullPage ? CacheTier::kPool : CacheTier::kHost,
                  std::string(index.cache_salt(index.root(node))), tokens);
    }
  });
  return all;
}

struct EventsCase {
  const char* name;
  ModelOptions options;
};

std::vector<EventsCase> Cases() {
  const BlockManagerOptions rollback{.max_step_tokens = 5, .max_truncate_tokens = 3};
  const GroupLayout full = ModelGroup(CacheKind::kFull);
  return {
      {"full", {.num_pages = {8}, .manager = {.max_step_tokens = 5}, .salts = true}},
      {"collisions",
       {.num_pages = {12}, .manager = {.max_step_tokens = 5, .hash_bits = 3}, .salts = true}},
      {"host", {.num_pages = {6}, .num_host = {7}, .manager = rollback, .salts = true}},
      {"sliding",
       {.groups = {full, ModelGroup(CacheKind::kSlidingWindow, 5, 1)},
        .num_pages = {10, 8},
        .num_host = {8, 6},
        .manager = rollback,
        .salts = true}},
      {"latent",
       {.groups = {ModelGroup(CacheKind::kLatent), EntryGroup(CacheKind::kIndexer, 1)},
        .num_pages = {14},
        .manager = rollback,
        .salts = true}},
      {"state",
       {.groups = {StateGroup(4, 1), full},
        .num_pages = {10, 16},
        .manager = rollback,
        .salts = true}},
  };
}

class EventWalks : public testing::TestWithParam<EventsCase> {};

TEST_P(EventWalks, ARoutersIndexIsThePrefixTree) {
  const char* only = std::getenv("QUIRE_SEED");
  const uint32_t first = only == nullptr ? 0 : static_cast<uint32_t>(std::atoi(only));
  const uint32_t last = only == nullptr ? 40 : first + 1;
  int64_t stored = 0;
  int64_t removed = 0;
  int64_t salted = 0;
  for (uint32_t seed = first; seed < last; ++seed) {
    SCOPED_TRACE(testing::Message() << "reproduce with QUIRE_SEED=" << seed);
    Walk walk(seed, GetParam().options);
    BlockManager& m = walk.model().manager();
    m.EnableEvents();
    RouterIndex router(CacheModel::kSize);
    for (int i = 0; i < 200 && !testing::Test::HasFailure(); ++i) {
      SCOPED_TRACE(testing::Message() << "step " << i);
      walk.Step();
      if (i % 3 != 0) continue;  // several steps in one batch, too
      router.Apply(m.TakeEvents());
      ASSERT_EQ(router.contents(), TreeOf(m));
      // Who comes now and is told all at once knows the same.
      RouterIndex newcomer(CacheModel::kSize);
      newcomer.Apply(m.SnapshotEvents());
      ASSERT_EQ(newcomer.contents(), router.contents());
      for (const Content& content : router.contents()) salted += !std::get<2>(content).empty();
    }
    walk.Finish();
    router.Apply(m.TakeEvents());
    ASSERT_EQ(router.contents(), TreeOf(m));
    EXPECT_TRUE(m.TakeEvents().empty());
    stored += router.num_stored();
    removed += router.num_removed();
  }
  if (only != nullptr) return;
  EXPECT_GT(stored, 1000);
  EXPECT_GT(removed, 200);
  EXPECT_GT(salted, 100);
}

INSTANTIATE_TEST_SUITE_P(AllKinds, EventWalks, testing::ValuesIn(Cases()),
                         [](const auto& c) { return std::string(c.param.name); });

// ---- one thing at a time ----

constexpr int32_t kSize = 16;

TEST(CacheEvents, OffByDefault) {
  Cache c(8, kSize);
  c.Run(Text(2 * kSize));
  EXPECT_FALSE(c.manager.has_events());
  EXPECT_TRUE(c.manager.TakeEvents().empty());
}

TEST(CacheEvents, AChainIsOneEventAndItsEvictionAnother) {
  Cache c(4, kSize);
  c.manager.EnableEvents();
  const CacheEvents start = c.manager.TakeEvents();
  ASSERT_EQ(start.events.size(), 1u);
  EXPECT_EQ(start.events[0].kind, Kind::kCleared);
  c.Run(Text(3 * kSize + 1)).tables = {};
  const CacheEvents stored = c.manager.TakeEvents();
  ASSERT_EQ(stored.events.size(), 1u);
  EXPECT_EQ(stored.events[0].kind, Kind::kStored);
  EXPECT_EQ(stored.events[0].num_blocks, 3);
  EXPECT_FALSE(stored.events[0].has_parent);
  EXPECT_EQ(stored.tokens, Text(3 * kSize));
  // Goes on where it was.
  Cache::Seq more = c.Run(Text(4 * kSize));
  const CacheEvents next = c.manager.TakeEvents();
  ASSERT_EQ(next.events.size(), 1u);
  EXPECT_TRUE(next.events[0].has_parent);
  EXPECT_EQ(next.events[0].parent, stored.hashes[2]);
  EXPECT_EQ(next.events[0].num_blocks, 1);
  more.tables = {};
  c.Run(Text(4 * kSize, 7000)).tables = {};
  const CacheEvents evicted = c.manager.TakeEvents();
  std::set<PrefixHash> gone;
  for (const CacheEvents::Event& e : evicted.events) {
    if (e.kind != Kind::kRemoved) continue;
    for (int32_t i = 0; i < e.num_blocks; ++i) {
      gone.insert(evicted.hashes[static_cast<size_t>(e.first_hash + i)]);
    }
  }
  std::set<PrefixHash> were(stored.hashes.begin(), stored.hashes.end());
  were.insert(next.hashes[0]);
  EXPECT_EQ(gone, were);
}

TEST(CacheEvents, AFullFlushIsOneWordAndOneOfASaltIsNot) {
  Cache c(8, kSize);
  c.manager.EnableEvents();
  const RootId other = c.manager.InternRoot("other", true, "tenant-b");
  c.Run(Text(2 * kSize)).tables = {};
  c.Run(Text(2 * kSize), other).tables = {};
  c.manager.TakeEvents();
  c.manager.Flush("other");
  const CacheEvents salt = c.manager.TakeEvents();
  ASSERT_EQ(salt.events.size(), 1u);
  EXPECT_EQ(salt.events[0].kind, Kind::kRemoved);
  EXPECT_EQ(salt.events[0].num_blocks, 2);
  c.manager.Flush();
  const CacheEvents all = c.manager.TakeEvents();
  ASSERT_EQ(all.events.size(), 1u);
  EXPECT_EQ(all.events[0].kind, Kind::kCleared);
  // And what comes then is told again.
  c.Run(Text(2 * kSize)).tables = {};
  EXPECT_EQ(c.manager.TakeEvents().hashes.size(), 2u);
}

TEST(CacheEvents, WhatARequestKeepsToItselfIsNotTold) {
  Cache c(8, kSize);
  c.manager.EnableEvents();
  c.manager.TakeEvents();
  const RootId mine = c.manager.InternRoot("mine", /*keep=*/false);
  c.Run(Text(2 * kSize), mine).tables = {};
  EXPECT_TRUE(c.manager.TakeEvents().empty());
  EXPECT_TRUE(c.manager.SnapshotEvents().empty());
}

TEST(CacheEvents, SaltsMakeOtherBlocksOfTheSameTokens) {
  Cache c(16, kSize);
  c.manager.EnableEvents();
  c.manager.TakeEvents();
  const RootId a = c.manager.InternRoot("a", true, "tenant-a");
  const RootId b = c.manager.InternRoot("b", true, "tenant-b");
  c.Run(Text(kSize)).tables = {};
  c.Run(Text(kSize), a).tables = {};
  c.Run(Text(kSize), b).tables = {};
  const CacheEvents events = c.manager.TakeEvents();
  ASSERT_EQ(events.events.size(), 3u);
  std::set<uint64_t> hashes;
  std::set<std::string> bytes;
  for (const PrefixHash& hash : events.hashes) {
    hashes.insert(EventHash(hash, events.algorithm));
    bytes.insert(EventHashBytes(hash, events.algorithm));
  }
  EXPECT_EQ(hashes.size(), 3u);
  EXPECT_EQ(bytes.size(), 3u);
  EXPECT_EQ(events.events[0].salt, -1);
  EXPECT_EQ(events.salts, (std::vector<std::string>{"tenant-a", "tenant-b"}));
}

// Roots that differ in what is no part of the hash (such as how positions are rotated) have blocks
// of equal names: a name is gone when the last of them is.
TEST(CacheEvents, EqualNamesAreCounted) {
  Cache c(8, kSize);
  c.manager.EnableEvents();
  const RootId other = c.manager.InternRoot("other");
  c.Run(Text(kSize)).tables = {};
  c.Run(Text(kSize), other).tables = {};
  EXPECT_EQ(c.manager.TakeEvents().hashes.size(), 1u);
  c.manager.Flush("other");
  EXPECT_TRUE(c.manager.TakeEvents().empty());
  c.manager.Flush("");
  EXPECT_EQ(c.manager.TakeEvents().events.size(), 1u);
}

// FIELD's hash contract: printed by vLLM 0.33's own functions (see sha256_cbor_test).
TEST(CacheEvents, Sha256CborNamesAreThoseOfOtherEngines) {
  Cache c(8, kSize, {.hash_algorithm = PrefixHashAlgorithm::kSha256Cbor});
  c.manager.EnableEvents();
  c.manager.TakeEvents();
  const auto run = [&](RootId root) {
    std::vector<TokenId> tokens(32);
    std::iota(tokens.begin(), tokens.end(), 0);
    SequenceTables t = c.manager.NewTables(root);
    std::vector<PrefixHash> chain;
    ASSERT_TRUE(c.manager.Grow(t, 0, 32, c.copies));
    c.manager.Commit(t, tokens, 32, chain);
  };
  run(c.root);
  run(c.manager.InternRoot("salted", true, "tenant-a"));
  const CacheEvents events = c.manager.TakeEvents();
  ASSERT_EQ(events.hashes.size(), 4u);
  EXPECT_EQ(EventHash(events.hashes[0], events.algorithm), 2233398808101521225u);
  EXPECT_EQ(EventHash(events.hashes[1], events.algorithm), 17911472383915781900u);
  const auto hex = [&](size_t i) {
    Sha256Digest digest;
    const std::string bytes = EventHashBytes(events.hashes[i], events.algorithm);
    EXPECT_EQ(bytes.size(), digest.bytes.size());
    std::copy(bytes.begin(), bytes.end(), digest.bytes.begin());
    return digest.ToHex();
  };
  EXPECT_EQ(hex(0), "dc918a88b139e5afe60b88eda27508d4aee16c10fdc354791efea06206ac0749");
  EXPECT_EQ(hex(1), "c300ec275d7bf08af8fc63e76cdc0086911bbc7091e03c5cf892553bef84ef0c");
  EXPECT_EQ(hex(2), "4e31e1ced73eb044a95997f0109d0ddab3d9145878214f1a0ee37c048b397859");
  EXPECT_EQ(hex(3), "dd153a6b48192c90c7d94ac9bb001d90b8150f328f74b1ea6f85313d4ecba23f");
}

TEST(CacheEvents, AnOverfullLogStartsAnew) {
  CacheEventLog log(PrefixHashAlgorithm::kXxh3, 1, /*max_blocks=*/10);
  const auto block = [](uint64_t i) {
    static const TokenId kToken = 5;
    return CacheEventLog::Block{.hash = {i, i}, .tokens = {&kToken, 1}};
  };
  for (uint64_t i = 0; i < 100; ++i) {  // stored and gone again, over and over
    log.Stored(block(1), CacheTier::kPool);
    log.Removed(block(1), CacheTier::kPool);
  }
  ASSERT_TRUE(log.needs_restart());
  log.Restart();
  log.Stored(block(7), CacheTier::kPool);
  const CacheEvents events = log.Take();
  ASSERT_EQ(events.events.size(), 2u);
  EXPECT_EQ(events.events[0].kind, Kind::kCleared);
  EXPECT_EQ(events.hashes.size(), 1u);
  EXPECT_EQ(log.num_stored(), 1u);
}

// Many more changes than one batch holds: the manager tells what is there then, and only that.
TEST(CacheEvents, TheManagerTellsAllAnewAfterTooMuch) {
  Cache c(4, kSize);
  c.manager.EnableEvents();
  RouterIndex router(kSize);
  for (int i = 0; i < 3000; ++i) c.Run(Text(2 * kSize, 100 + i)).tables = {};
  const CacheEvents events = c.manager.TakeEvents();
  EXPECT_LT(events.hashes.size(), 10'000u);
  ASSERT_FALSE(events.empty());
  EXPECT_EQ(events.events[0].kind, Kind::kCleared);
  router.Apply(events);
  EXPECT_EQ(router.contents(), TreeOf(c.manager));
}

// ---- files ----

TEST(CacheEvents, FilesAreATierOfTheirOwn) {
  const auto folder = std::filesystem::path(testing::TempDir()) / "cache_events_files";
  std::filesystem::remove_all(folder);
  CacheLayout layout = FullLayout(kSize);
  PageFileStoreOptions options{.directory = folder,
                               .layout = MakePageFileLayout(layout, "test"),
                               .max_bytes = 1 << 20,
                               .queue_bytes = 1 << 20};
  const auto count = [](const CacheEvents& events, Kind kind) {
    int32_t n = 0;
    for (const CacheEvents::Event& e : events.events) {
      if (e.kind == kind && e.tier == CacheTier::kFiles) n += e.num_blocks;
    }
    return n;
  };
  auto store = PageFileStore::Open(options);
  ASSERT_TRUE(store.ok()) << store.status();
  {
    Cache c(2, kSize, {}, /*num_host=*/2);
    const int32_t two[] = {2};
    const auto storage_owner = PageStorage::Create(layout, two, {}, two);
    ASSERT_TRUE(storage_owner.ok()) << storage_owner.status();
    PageStorage& storage = **storage_owner;
    // The root that the harness interned comes before the files.
    BlockManager m(c.layout, c.pools, {}, c.host);
    m.AttachFiles(**store, storage);
    m.EnableEvents();
    RouterIndex router(kSize);
    const auto run = [&](TokenId first) {
      const auto tokens = Text(2 * kSize, first);
      SequenceTables t = m.NewTables(m.InternRoot("r"));
      std::vector<PrefixHash> chain;
      std::vector<PageCopy> ops;
      ASSERT_TRUE(m.Grow(t, 0, 2 * kSize, ops));
      storage.Copy(ops, m.fills());
      m.Publish();
      m.Commit(t, tokens, 2 * kSize, chain);
    };
    for (int i = 0; i < 4; ++i) run(1000 * (i + 1));
    CacheEvents events = m.TakeEvents();
    const int32_t in_files = count(events, Kind::kStored);
    EXPECT_GT(in_files, 0);
    EXPECT_EQ(static_cast<uint64_t>(in_files), (*store)->stats().entries);
    router.Apply(events);
    RouterIndex newcomer(kSize);
    newcomer.Apply(m.SnapshotEvents());
    EXPECT_EQ(newcomer.contents(), router.contents());
    // A full flush leaves files as they are, and says so.
    m.Flush();
    router.Apply(m.TakeEvents());
    EXPECT_EQ(router.contents().size(), static_cast<size_t>(in_files));
    (*store)->Clear();
    events = m.TakeEvents();
    EXPECT_EQ(count(events, Kind::kRemoved), in_files);
    router.Apply(events);
    EXPECT_TRUE(router.contents().empty());
  }
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace quire
