// tests/page_file_store_test.cc -- what a page file store keeps, and in which order it lets go.
//
// Expected bytes: reference/page_file/make_pages.py, which shares no code with the store.
#include "paged_cache/page_file_store.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <random>

#include "absl/container/flat_hash_set.h"
#include "base/json.h"
#include "tests/page_file_harness.h"

namespace quire {
namespace {

std::string FromHex(std::string_view hex) {
  std::string bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes += static_cast<char>(std::stoi(std::string(hex.substr(i, 2)), nullptr, 16));
  }
  return bytes;
}
std::string Field(const Json& json, std::string_view name) {
  return FromHex(json[name].as_string().value());
}

TEST(PageFile, HasTheBytesOfTheDocumentedFormat) {
  const Json want = Json::Parse(ReadBytes(ReferencePath("page_file/pages.json"))).value();
  EXPECT_EQ(want["root_key"].as_string(), RootPageKey(Field(want, "root")).ToHex());
  const TempDir dir;
  const PageFileStoreOptions options = SmallOptions(dir);
  ASSERT_EQ(want["fingerprint"].as_string(), options.layout.fingerprint);
  std::vector<PageEntry> entries;
  for (size_t i = 0; i < want["pages"].size(); ++i) {
    const Json page = want["pages"].at(i);
    PageEntry entry;
    entry.key = Sha256Digest::FromHex(page["key"].as_string().value()).value();
    entry.parent = Sha256Digest::FromHex(page["parent"].as_string().value()).value();
    entry.depth = static_cast<int32_t>(page["depth"].as_int().value());
    entry.root = Field(page, "root");
    for (size_t t = 0; t < page["tokens"].size(); ++t) {
      entry.tokens.push_back(static_cast<TokenId>(page["tokens"].at(t).as_int().value()));
    }
    for (size_t g = 0; g < page["groups"].size(); ++g) {
      const std::string bytes = FromHex(page["groups"].at(g).as_string().value());
      const auto* begin = reinterpret_cast<const std::byte*>(bytes.data());
      entry.groups.emplace_back(begin, begin + bytes.size());
    }
    EXPECT_EQ(PageKey(entry.parent, entry.tokens), entry.key);
    entries.push_back(entry);
  }
  {
    const auto store = OpenStore(options);
    for (const PageEntry& entry : entries) ASSERT_TRUE(store->Put(entry));
    store->Flush();
  }
  for (size_t i = 0; i < entries.size(); ++i) {
    const std::string file = Field(want["pages"].at(i), "file");
    EXPECT_EQ(ReadBytes(PathOf(options, entries[i].key)), file);
    WriteBytes(PathOf(options, entries[i].key), file);
  }
  const auto store = OpenStore(options);  // and reads them
  for (const PageEntry& entry : entries) EXPECT_TRUE(Serves(*store, entry));
}

TEST(PageFileStore, ServesWhatWasPutNowAndAfterARestart) {
  const TempDir dir;
  PageFileStoreOptions options = SmallOptions(dir);
  const PageEntry a = First(1);
  const PageEntry b = Next(a, 50);
  const PageEntry bare = MakeEntry(&b, "", TokensFrom(9), 0);  // in no group, but on the path
  for (const bool sync : {false, true}) {
    options.sync_writes = sync;
    const auto store = OpenStore(options);
    store->Clear();
    EXPECT_FALSE(GetLike(*store, a).has_value());
    for (const PageEntry* entry : {&a, &b, &bare}) {
      ASSERT_TRUE(store->Put(*entry));
      EXPECT_TRUE(store->Contains(entry->key));
      EXPECT_TRUE(Serves(*store, *entry));  // from the queue or the file, whichever it is by now
    }
    store->Flush();
    for (const PageEntry* entry : {&a, &b, &bare}) EXPECT_TRUE(Serves(*store, *entry));
    const PageFileStats stats = store->stats();
    EXPECT_EQ(stats.entries, 3u);
    EXPECT_EQ(stats.bytes, Measure(options).bytes);
    EXPECT_EQ(stats.queued_bytes, 0u);
    EXPECT_EQ(stats.puts, 3u);
    EXPECT_EQ(stats.written, 3u);
    EXPECT_EQ(stats.gets, 7u);
    EXPECT_EQ(stats.hits, 6u);
  }
  const auto store = OpenStore(options);
  for (const PageEntry* entry : {&a, &b, &bare}) EXPECT_TRUE(Serves(*store, *entry));
  EXPECT_EQ(store->stats().entries, 3u);
  EXPECT_EQ(store->stats().bytes, Measure(options).bytes);
  EXPECT_EQ(SumOfFaults(store->stats()), 0u);
}

TEST(PageFileStore, GroupsOfOnePageMayComeOneByOne) {
  const TempDir dir;
  const PageFileStoreOptions options = SmallOptions(dir);
  const PageEntry whole = First(1);
  const PageEntry full = MakeEntry(nullptr, "r", TokensFrom(1), 1);
  const PageEntry sliding = MakeEntry(nullptr, "r", TokensFrom(1), 2);
  {
    const auto store = OpenStore(options);
    for (const bool flush_between : {false, true}) {
      store->Clear();
      ASSERT_TRUE(store->Put(full));
      if (flush_between) store->Flush();
      EXPECT_TRUE(Serves(*store, full));
      ASSERT_TRUE(store->Put(sliding));
      EXPECT_TRUE(Serves(*store, whole));
      store->Flush();
      EXPECT_TRUE(Serves(*store, whole));
      EXPECT_EQ(Measure(options).pages, 1u);
      EXPECT_EQ(Measure(options).bytes, store->stats().bytes);
    }
    const uint64_t written = store->stats().written;
    ASSERT_TRUE(store->Put(full));  // nothing new
    ASSERT_TRUE(store->Put(whole));
    store->Flush();
    EXPECT_EQ(store->stats().written, written);
  }
  EXPECT_TRUE(Serves(*OpenStore(options), whole));
}

TEST(PageFileStore, RemoveAndClearDeleteFiles) {
  const TempDir dir;
  const PageFileStoreOptions options = SmallOptions(dir);
  const auto store = OpenStore(options);
  ASSERT_TRUE(store->Put(First(1)));
  ASSERT_TRUE(store->Put(First(2)));
  store->Flush();
  EXPECT_TRUE(store->Remove(First(1).key));
  EXPECT_FALSE(store->Remove(First(1).key));
  EXPECT_FALSE(store->Contains(First(1).key));
  EXPECT_EQ(Measure(options).pages, 1u);
  for (int i = 0; i < 50; ++i) ASSERT_TRUE(store->Put(First(100 + i)));
  store->Clear();  // some are queued, one may be half written
  EXPECT_EQ(store->stats().entries, 0u);
  store->Flush();
  EXPECT_EQ(Measure(options).pages, 0u);
  EXPECT_EQ(Measure(options).temps, 0u);
  EXPECT_EQ(store->stats().bytes, 0u);
  ASSERT_TRUE(store->Put(First(1)));
  store->Flush();
  EXPECT_TRUE(Serves(*store, First(1)));
}

TEST(PageFileStore, EvictsTheLeastRecentlyUsed) {
  const TempDir dir;
  PageFileStoreOptions options = SmallOptions(dir);
  const uint64_t page_bytes = PageFileBytes(First(1), options.layout);
  options.max_bytes = 3 * page_bytes + page_bytes / 2;
  const auto store = OpenStore(options);
  const auto put = [&](const PageEntry& entry) {
    EXPECT_TRUE(store->Put(entry));
    store->Flush();
    EXPECT_LE(Measure(options).bytes, options.max_bytes);
  };
  for (int i = 1; i <= 3; ++i) put(First(i));
  EXPECT_TRUE(Serves(*store, First(1)));
  put(First(4));  // 2 was used the longest ago
  EXPECT_FALSE(store->Contains(First(2).key));
  EXPECT_EQ(store->stats().evicted, 1u);
  EXPECT_TRUE(store->Put(First(3)));  // it is there: used again
  put(First(5));
  EXPECT_FALSE(store->Contains(First(1).key));
  for (const int i : {3, 4, 5}) EXPECT_TRUE(Serves(*store, First(i)));
  EXPECT_EQ(Measure(options).pages, 3u);
}

TEST(PageFileStore, EvictsLeavesBeforeTheirParents) {
  const TempDir dir;
  PageFileStoreOptions options = SmallOptions(dir);
  const PageEntry root = First(1);
  const PageEntry child = Next(root, 10);
  const PageEntry leaf = Next(child, 20);
  const PageEntry other = First(2);
  options.max_bytes = 4 * PageFileBytes(root, options.layout);
  const auto store = OpenStore(options);
  for (const PageEntry* entry : {&root, &child, &leaf, &other}) {
    ASSERT_TRUE(store->Put(*entry));
    store->Flush();
  }
  ASSERT_TRUE(store->Put(First(3)));  // root is the oldest, but leaf goes
  store->Flush();
  EXPECT_FALSE(store->Contains(leaf.key));
  EXPECT_TRUE(store->Contains(root.key));
  ASSERT_TRUE(store->Put(First(4)));  // then child, which was of use as long as its leaf was
  store->Flush();
  EXPECT_FALSE(store->Contains(child.key));
  for (const PageEntry& entry : {root, other, First(3), First(4)}) {
    EXPECT_TRUE(store->Contains(entry.key));
  }
}

TEST(PageFileStore, AParentIsAsRecentAsItsLastChild) {
  const TempDir dir;
  PageFileStoreOptions options = SmallOptions(dir);
  const PageEntry root = First(1);
  const PageEntry child = Next(root, 10);
  options.max_bytes = 3 * PageFileBytes(root, options.layout);
  const auto store = OpenStore(options);
  for (const PageEntry& entry : {root, First(2), child}) {
    ASSERT_TRUE(store->Put(entry));
    store->Flush();
  }
  ASSERT_TRUE(store->Remove(child.key));
  for (const int i : {3, 4}) {  // room for one: 2 goes, whose last use was before the child's
    ASSERT_TRUE(store->Put(First(i)));
    store->Flush();
  }
  EXPECT_TRUE(store->Contains(root.key));
  EXPECT_FALSE(store->Contains(First(2).key));
}

TEST(PageFileStore, AChainThatIsTooLongKeepsItsBeginning) {
  const TempDir dir;
  PageFileStoreOptions options = SmallOptions(dir);
  std::vector<PageEntry> chain = {First(1)};
  while (chain.size() < 8) chain.push_back(Next(chain.back(), 1));
  options.max_bytes = 4 * PageFileBytes(chain[0], options.layout);
  const auto store = OpenStore(options);
  for (size_t i = chain.size(); i > 0; --i) {
    ASSERT_TRUE(store->Put(chain[i - 1]));
    store->Flush();
  }
  for (size_t i = 0; i < chain.size(); ++i) EXPECT_EQ(store->Contains(chain[i].key), i < 4) << i;
  EXPECT_EQ(store->stats().evicted, 4u);

  // A page that only its own ancestors could make room for is dropped.
  ASSERT_TRUE(store->Put(chain[4]));
  store->Flush();
  for (size_t i = 0; i < chain.size(); ++i) EXPECT_EQ(store->Contains(chain[i].key), i < 4) << i;
  EXPECT_EQ(store->stats().evicted, 4u);
  EXPECT_EQ(store->stats().dropped_no_room, 1u);
}

TEST(PageFileStore, RecencySurvivesARestart) {
  const TempDir dir;
  PageFileStoreOptions options = SmallOptions(dir);
  {
    const auto store = OpenStore(options);
    for (int i = 0; i < 4; ++i) ASSERT_TRUE(store->Put(First(i)));
    store->Flush();
    const timespec times[] = {{1000, 0}, {1000, 0}};
    for (int i = 0; i < 4; ++i) {
      ASSERT_EQ(utimensat(AT_FDCWD, PathOf(options, First(i).key).c_str(), times, 0), 0);
    }
    for (const int i : {3, 1}) EXPECT_TRUE(Serves(*store, First(i)));  // sets their times
  }
  options.max_bytes = 2 * PageFileBytes(First(0), options.layout);
  const auto store = OpenStore(options);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(store->Contains(First(i).key), i % 2 == 1) << i;
  EXPECT_EQ(store->stats().evicted, 2u);
  EXPECT_EQ(Measure(options).pages, 2u);
}

// Random puts, uses, removals and restarts: the bound holds on the disk, the index says what is
// there, and nothing goes before its children.
TEST(PageFileStore, RandomWalkKeepsTheBoundAndTheOrder) {
  const TempDir dir;
  PageFileStoreOptions options = SmallOptions(dir);
  std::vector<PageEntry> tree = {First(0), First(1), First(2)};
  while (tree.size() < 40) {
    tree.push_back(Next(tree[tree.size() * 2 / 5], static_cast<int32_t>(tree.size())));
  }
  const uint64_t page_bytes = PageFileBytes(tree.back(), options.layout);
  options.max_bytes = 12 * page_bytes;
  std::mt19937_64 rng(7);
  auto store = OpenStore(options);
  uint64_t evicted = 0;
  uint64_t restarts = 0;
  for (int step = 0; step < 1500; ++step) {
    const PageEntry& entry = tree[rng() % tree.size()];
    absl::flat_hash_set<Sha256Digest> before;
    for (const PageEntry& e : tree) {
      if (store->Contains(e.key)) before.insert(e.key);
    }
    const uint64_t dropped = store->stats().dropped_no_room;
    const int op = static_cast<int>(rng() % 20);
    if (op < 12) {
      ASSERT_TRUE(store->Put(entry));
      store->Flush();
      ASSERT_TRUE(store->Contains(entry.key) || store->stats().dropped_no_room == dropped + 1);
    } else if (op < 18) {
      const bool is_there = before.contains(entry.key);
      ASSERT_EQ(static_cast<bool>(Serves(*store, entry)), is_there);
    } else if (op == 18) {
      ASSERT_EQ(store->Remove(entry.key), before.contains(entry.key));
    } else {
      evicted += store->stats().evicted;
      store.reset();
      store = OpenStore(options);
      ++restarts;
    }
    uint64_t present = 0;
    for (const PageEntry& e : tree) {
      present += store->Contains(e.key) ? 1 : 0;
      if (e.depth == 0 || op >= 18 || !store->Contains(e.key)) continue;
      // An entry that lost its parent in this step lost it to an eviction out of order.
      ASSERT_FALSE(before.contains(e.parent) && !store->Contains(e.parent)) << step;
    }
    const OnDisk disk = Measure(options);
    ASSERT_EQ(disk.pages, present);
    ASSERT_EQ(disk.bytes, store->stats().bytes);
    ASSERT_LE(disk.bytes, options.max_bytes);
    ASSERT_EQ(disk.temps, 0u);
    ASSERT_EQ(SumOfFaults(store->stats()), 0u);
  }
  EXPECT_GT(evicted, 100u);
  EXPECT_GT(restarts, 20u);
}

TEST(PageFileStore, WhatCanNeverFitIsRefused) {
  const TempDir dir;
  PageFileStoreOptions options = SmallOptions(dir);
  options.max_bytes = PageFileBytes(First(0), options.layout) - 1;
  const auto store = OpenStore(options);
  EXPECT_FALSE(store->Put(First(0)));
  EXPECT_EQ(store->stats().dropped_no_room, 1u);
  EXPECT_EQ(store->stats().entries, 0u);

  PageFileStoreOptions large = SmallOptions(dir);
  large.directory = dir.File("large");
  large.max_bytes = large.queue_bytes = uint64_t{1} << 30;
  const auto roomy = OpenStore(large);
  const auto with_root = [](size_t bytes) {
    return MakeEntry(nullptr, std::string(bytes, 'x'), TokensFrom(0));
  };
  EXPECT_FALSE(roomy->Put(with_root(kMaxRootBytes + 1)));
  EXPECT_TRUE(roomy->Put(with_root(kMaxRootBytes)));
  roomy->Flush();
  EXPECT_TRUE(Serves(*roomy, with_root(kMaxRootBytes)));
}

TEST(PageFileStore, VisitsParentsFirstAndRecentPrefixesFirst) {
  const TempDir dir;
  const PageFileStoreOptions options = SmallOptions(dir);
  std::vector<PageEntry> old_chain = {First(1)};
  while (old_chain.size() < 5) old_chain.push_back(Next(old_chain.back(), 1));
  std::vector<PageEntry> new_chain = {old_chain[0], old_chain[1]};  // two pages shared
  while (new_chain.size() < 5) new_chain.push_back(Next(new_chain.back(), 2));
  const PageEntry orphan = Next(First(77), 1);
  std::vector<Sha256Digest> expected;
  expected.reserve(8);
  for (const PageEntry& e : new_chain) expected.push_back(e.key);
  for (size_t i = 2; i < old_chain.size(); ++i) expected.push_back(old_chain[i].key);

  const auto check = [&](PageFileStore& store) {
    std::vector<Sha256Digest> visited;
    store.ForEach([&](const PageEntry& entry) {
      EXPECT_TRUE(store.Contains(entry.key));  // the store may be called
      visited.push_back(entry.key);
      return true;
    });
    EXPECT_EQ(visited, expected);
    visited.clear();
    store.ForEach([&](const PageEntry& entry) {
      visited.push_back(entry.key);
      return visited.size() < 3;
    });
    EXPECT_EQ(visited.size(), 3u);
  };
  {
    const auto store = OpenStore(options);
    for (size_t i = 5; i > 0; --i) ASSERT_TRUE(store->Put(old_chain[i - 1]));
    for (size_t i = 5; i > 0; --i) ASSERT_TRUE(store->Put(new_chain[i - 1]));
    ASSERT_TRUE(store->Put(orphan));
    store->Flush();
    ASSERT_TRUE(Serves(*store, old_chain[4]));
    for (const PageEntry& e : new_chain) ASSERT_TRUE(Serves(*store, e));
    check(*store);
  }
  time_t when = 1000;
  for (const auto* chain : {&old_chain, &new_chain}) {
    for (const PageEntry& e : *chain) {
      const timespec times[] = {{++when, 0}, {when, 0}};
      ASSERT_EQ(utimensat(AT_FDCWD, PathOf(options, e.key).c_str(), times, 0), 0);
    }
  }
  const auto store = OpenStore(options);
  EXPECT_EQ(store->stats().entries, expected.size() + 1);
  check(*store);
}

}  // namespace
}  // namespace quire
