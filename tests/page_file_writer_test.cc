// tests/page_file_writer_test.cc -- a page file store's queue and its writing thread.
#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <thread>

#include "absl/container/flat_hash_map.h"
#include "paged_cache/page_file_store.h"
#include "tests/page_file_harness.h"

namespace quire {
namespace {

TEST(PageFileStore, DestructorWritesWhatIsQueued) {
  const TempDir dir;
  const PageFileStoreOptions options = SmallOptions(dir);
  {
    const auto store = OpenStore(options);
    for (int i = 0; i < 100; ++i) ASSERT_TRUE(store->Put(First(i)));
  }
  EXPECT_EQ(Measure(options).pages, 100u);
  const auto store = OpenStore(options);
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(Serves(*store, First(i)));
}

TEST(PageFileStore, AFullQueueRefusesAndCounts) {
  const TempDir dir;
  PageFileStoreOptions options = SmallOptions(dir);
  options.queue_bytes = PageFileBytes(First(0), options.layout) - 1;
  {
    const auto store = OpenStore(options);
    EXPECT_FALSE(store->Put(First(0)));
    EXPECT_FALSE(store->Contains(First(0).key));
    EXPECT_EQ(store->stats().dropped_queue_full, 1u);
    EXPECT_EQ(store->stats().queued_bytes, 0u);
  }
  const uint64_t page_bytes = PageFileBytes(First(0), options.layout);
  options.queue_bytes = 3 * page_bytes;
  WriterGate gate;
  options.before_write = [&gate] { gate.Pass(); };
  const auto store = OpenStore(options);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(store->Put(First(i)), i < 3) << i;
  gate.AwaitWriter();  // what is being written still counts
  EXPECT_FALSE(store->Put(First(5)));
  EXPECT_EQ(store->stats().dropped_queue_full, 3u);
  EXPECT_EQ(store->stats().queued_bytes, 3 * page_bytes);
  EXPECT_EQ(Measure(options).pages, 0u);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(Serves(*store, First(i)));  // from the queue
  gate.Open();
  store->Flush();
  EXPECT_EQ(store->stats().queued_bytes, 0u);
  EXPECT_EQ(store->stats().written, 3u);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(Serves(*store, First(i)));
  EXPECT_EQ(store->stats().entries, 3u);
}

// What happens to an entry while it is being written, and while it waits for that.
TEST(PageFileStore, ChangesMeetTheWriter) {
  const TempDir dir;
  PageFileStoreOptions options = SmallOptions(dir);
  WriterGate gate;
  options.before_write = [&gate] { gate.Pass(); };
  const auto store = OpenStore(options);
  const auto flush = [&] {
    gate.Open();
    store->Flush();
    gate.Close();
    EXPECT_EQ(store->stats().bytes, Measure(options).bytes);
    EXPECT_EQ(store->stats().entries, Measure(options).pages);
    EXPECT_EQ(SumOfFaults(store->stats()), 0u);
  };
  ASSERT_TRUE(store->Put(First(1)));
  gate.AwaitWriter();
  ASSERT_TRUE(store->Remove(First(1).key));
  EXPECT_FALSE(GetLike(*store, First(1)).has_value());
  flush();
  EXPECT_FALSE(store->Contains(First(1).key));
  EXPECT_EQ(Measure(options).pages, 0u);

  ASSERT_TRUE(store->Put(MakeEntry(nullptr, "r", TokensFrom(2), 1)));
  gate.AwaitWriter();
  ASSERT_TRUE(store->Put(MakeEntry(nullptr, "r", TokensFrom(2), 2)));  // while group 0 is written
  EXPECT_TRUE(Serves(*store, First(2)));
  flush();
  EXPECT_TRUE(Serves(*store, First(2)));

  const uint64_t written = store->stats().written;
  ASSERT_TRUE(store->Put(First(3)));
  gate.AwaitWriter();
  ASSERT_TRUE(store->Put(First(4)));
  ASSERT_TRUE(store->Remove(First(4).key));
  ASSERT_TRUE(store->Put(First(4)));  // queued twice, written once
  flush();
  EXPECT_TRUE(Serves(*store, First(4)));
  EXPECT_EQ(store->stats().written, written + 2);
}

// Four threads on a store that holds a part of the entries: whatever is served is right, and the
// books agree in the end. Meant for the tsan preset above all.
TEST(PageFileStore, ThreadsPutGetRemoveAndVisit) {
  const TempDir dir;
  PageFileStoreOptions options = SmallOptions(dir);
  std::vector<PageEntry> tree;
  tree.reserve(64);
  for (int i = 0; i < 8; ++i) tree.push_back(First(i));
  while (tree.size() < 64) tree.push_back(Next(tree[tree.size() - 8], 3));
  options.max_bytes = 30 * PageFileBytes(tree[0], options.layout);
  options.queue_bytes = 10 * PageFileBytes(tree[0], options.layout);
  std::atomic<int> served{0};
  std::atomic<int> visited{0};
  std::atomic<int> wrong{0};
  absl::flat_hash_map<Sha256Digest, const PageEntry*> by_key;
  for (const PageEntry& e : tree) by_key[e.key] = &e;
  {
    const auto store = OpenStore(options);
    const auto walk = [&](uint64_t seed) {
      std::mt19937_64 rng(seed);
      for (int step = 0; step < 800; ++step) {
        const PageEntry& entry = tree[rng() % tree.size()];
        switch (rng() % 16) {
          case 0:
            store->Remove(entry.key);
            break;
          case 1:
            if (rng() % 64 == 0) store->Clear();
            break;
          case 2:
            store->ForEach([&](const PageEntry& e) {
              wrong += SameEntry(e, *by_key.at(e.key)) ? 0 : 1;
              ++visited;
              return true;
            });
            break;
          case 3:
            if (rng() % 8 == 0) store->Flush();
            break;
          default:
            if (rng() % 2 == 0) {
              store->Put(entry);
            } else if (const auto got = GetLike(*store, entry)) {
              wrong += SameEntry(*got, entry) ? 0 : 1;
              ++served;
            }
        }
      }
    };
    std::vector<std::thread> threads;
    for (uint64_t t = 0; t < 4; ++t) threads.emplace_back(walk, t);
    for (std::thread& t : threads) t.join();
    store->Flush();
    EXPECT_EQ(store->stats().bytes, Measure(options).bytes);
    EXPECT_EQ(store->stats().entries, Measure(options).pages);
    EXPECT_LE(store->stats().bytes, options.max_bytes);
    EXPECT_EQ(store->stats().write_errors, 0u);
    EXPECT_GT(store->stats().written, 50u);
  }
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(served, 50);
  EXPECT_GT(visited, 50) << served;
  const auto store = OpenStore(options);
  EXPECT_EQ(SumOfFaults(store->stats()), 0u);
  EXPECT_EQ(store->stats().entries, Measure(options).pages);
}

}  // namespace
}  // namespace quire
