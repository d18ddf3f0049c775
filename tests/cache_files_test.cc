// tests/cache_files_test.cc -- the cache's way through its tiers: pages evicted to the host tier,
// from there to files, and back; caches saved and loaded. Bytes are real: each page is filled with
// what its prefix says, and what a hit brings must be that.
#include "paged_cache/cache_files.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <random>

#include "paged_cache/block_manager.h"
#include "paged_cache/page_file_store.h"
#include "paged_cache/page_storage.h"
#include "tests/weight_files.h"

namespace quire {
namespace {

constexpr int32_t kBlock = 8;
constexpr size_t kPageBytes = 128;

struct WorldOptions {
  int32_t num_pages = 8;
  int32_t num_host = 0;
  bool windowed = false;
  BlockManagerOptions manager;
};

// A manager with real bytes, and the step of an engine that writes a function of the prefix.
struct World {
  CacheLayout layout;
  std::vector<PagePool> pools, host;
  std::unique_ptr<PageStorage> storage;
  std::unique_ptr<PageFileStore> files;
  std::unique_ptr<BlockManager> manager;
  std::vector<PageCopy> copies;

  static CacheLayout LayoutOf(bool windowed) {
    std::vector<LayerCacheSpec> specs = {{.layer = 0, .key_bytes_per_page = kPageBytes}};
    if (windowed) {
      specs.push_back({.layer = 1,
                       .kind = CacheKind::kSlidingWindow,
                       .window = 12,
                       .key_bytes_per_page = kPageBytes});
    }
    return MakeCacheLayout(static_cast<int32_t>(specs.size()), kBlock, specs).value();
  }

  explicit World(const WorldOptions& o, const std::string& tier = {})
      : layout(LayoutOf(o.windowed)) {
    std::vector<int32_t> pages, slots;
    for (size_t i = 0; i < layout.pools.size(); ++i) {
      pools.emplace_back(o.num_pages, kBlock);
      pages.push_back(o.num_pages);
      if (o.num_host > 0) {
        host.emplace_back(o.num_host, kBlock);
        slots.push_back(o.num_host);
      }
    }
    storage = PageStorage::Create(layout, pages, {}, slots).value();
    if (!tier.empty()) files = Open(tier);
    manager = std::make_unique<BlockManager>(layout, pools, o.manager, host);
    if (files != nullptr) manager->AttachFiles(*files, *storage);
  }

  std::unique_ptr<PageFileStore> Open(const std::string& directory,
                                      const std::string& model = "toy") const {
    return PageFileStore::Open({.directory = directory,
                                .layout = MakePageFileLayout(layout, model),
                                .max_bytes = 1 << 20,
                                .queue_bytes = 1 << 20})
        .value();
  }

  static uint64_t Number(const std::string& root, std::span<const TokenId> prefix) {
    uint64_t n = std::hash<std::string>()(root);
    for (const TokenId t : prefix) n = (n ^ static_cast<uint64_t>(t)) * 0x9e3779b97f4a7c15 + 1;
    return n;
  }
  uint64_t* Cell(size_t group, PageId page) const {
    return reinterpret_cast<uint64_t*>(storage->page(layout.groups[group].pool, page));
  }

  // Runs `tokens` to their end in one step; checks what a hit brought. Returns the cached tokens.
  int32_t Run(const std::string& root, const std::vector<TokenId>& tokens) {
    const auto n = static_cast<int32_t>(tokens.size());
    const RootId id = manager->InternRoot(root, true, "salt");
    std::vector<PrefixHash> chain;
    manager->ExtendChain(id, tokens, chain);
    PrefixHit hit = manager->MatchPrefix(id, tokens, chain);
    EXPECT_TRUE(manager->Grow(hit.tables, hit.num_tokens, n, copies));
    manager->Announce(hit.tables, tokens, n, chain);
    storage->Copy(copies, manager->fills());
    copies.clear();
    for (size_t g = 0; g < layout.groups.size(); ++g) {
      const std::span<const PageId> ids = hit.tables.groups[g].ids();
      for (int32_t i = 0; i * kBlock < n; ++i) {
        const auto end = static_cast<size_t>(std::min(n, (i + 1) * kBlock));
        const uint64_t content = Number(root, {tokens.data(), end}) + g;
        const PageId page = ids[static_cast<size_t>(i)];
        if (page == kNullPage) continue;
        if ((i + 1) * kBlock > hit.num_tokens) {
          std::fill_n(Cell(g, page), kPageBytes / 8, content);
        } else {
          for (size_t k = 0; k < kPageBytes / 8; ++k) EXPECT_EQ(Cell(g, page)[k], content) << i;
        }
      }
    }
    manager->Publish();
    manager->Commit(hit.tables, tokens, n, chain);
    const SequenceTables* const live[] = {&hit.tables};
    EXPECT_TRUE(manager->Audit(live).ok()) << manager->Audit(live);
    return hit.num_tokens;
  }
};

std::vector<TokenId> Text(int32_t n, TokenId first) {
  std::vector<TokenId> tokens(static_cast<size_t>(n));
  for (int32_t i = 0; i < n; ++i) tokens[static_cast<size_t>(i)] = first + i % 7;
  return tokens;
}

TEST(CacheFiles, RootBytesGoRoundAndRefuseNonsense) {
  for (const auto& [key, salt] : {std::pair<std::string, std::string>{"", ""},
                                  {"model 7", "tenant"},
                                  {std::string("a\0b", 3), "5:x"},
                                  {"9:", ":"}}) {
    const auto parsed = ParseFileRootBytes(FileRootBytes(key, salt));
    ASSERT_TRUE(parsed.has_value());
    EXPECT_EQ(*parsed, std::pair(key, salt));
  }
  for (const std::string bad : {"", ":", "1", "1:", "1:a", "1:a1:", "1:a1:bc", "a:b",
                                "-1:a0:", "99999999999999999999:a0:", "18446744073709551615:a0:"}) {
    EXPECT_FALSE(ParseFileRootBytes(bad).has_value()) << bad;
  }
  std::mt19937 rng(1);
  for (int i = 0; i < 20'000; ++i) {
    std::string bytes;
    for (uint32_t n = rng() % 12; n > 0; --n) bytes += "0123:ab"[rng() % 7];
    if (const auto parsed = ParseFileRootBytes(bytes)) {
      const auto again = ParseFileRootBytes(FileRootBytes(parsed->first, parsed->second));
      EXPECT_EQ(again, parsed) << bytes;
    }
  }
}

// What the pool evicts is found in the host tier, and what that evicts in files; with more prefixes
// than either holds, every second ask is still a hit.
TEST(CacheFiles, EvictedPrefixesComeBackThroughTheTiers) {
  const TempDir dir;
  World w({.num_pages = 8, .num_host = 6}, dir.File("tier"));
  for (int round = 0; round < 3; ++round) {
    for (int32_t p = 0; p < 6; ++p) {
      const int32_t cached = w.Run("root", Text(4 * kBlock + 3, 100 * p));
      EXPECT_EQ(cached, round > 0 ? 4 * kBlock : 0) << "prefix " << p << " round " << round;
      w.files->Flush();
    }
  }
  const CacheStats stats = w.manager->stats();
  EXPECT_GT(stats.saved, 0);
  EXPECT_GT(stats.file_saved, 0);
  EXPECT_GT(stats.file_loaded, 0);
  EXPECT_EQ(w.Run("another root", Text(4 * kBlock + 3, 100)), 0);
}

TEST(CacheFiles, TheTierSurvivesARestart) {
  const TempDir dir;
  const std::vector<TokenId> text = Text(4 * kBlock + 1, 5);
  {
    World w({.num_pages = 8, .num_host = 4}, dir.File("tier"));
    for (const TokenId first : {5, 50, 90, 130}) w.Run("root", Text(4 * kBlock + 1, first));
    w.files->Flush();
  }
  World w({.num_pages = 8, .num_host = 4}, dir.File("tier"));
  EXPECT_EQ(w.Run("root", text), 4 * kBlock);
  EXPECT_EQ(w.manager->stats().file_loaded, 4);
  EXPECT_EQ(w.Run("root", text), 4 * kBlock);
  EXPECT_EQ(w.manager->stats().file_loaded, 4) << "now it is in the pool";
}

class SaveAndLoad : public testing::TestWithParam<std::pair<bool, PrefixHashAlgorithm>> {};

TEST_P(SaveAndLoad, BringsEveryPrefixBackAsItWas) {
  const TempDir dir;
  const WorldOptions options{.num_pages = 40,
                             .num_host = 8,
                             .windowed = GetParam().first,
                             .manager = {.hash_algorithm = GetParam().second}};
  const std::vector<std::vector<TokenId>> prompts = {
      Text(5 * kBlock + 2, 7), Text(5 * kBlock + 2, 70), Text(3 * kBlock + 2, 7)};
  CacheTransfer saved;
  {
    World w(options);
    for (const auto& p : prompts) w.Run("root", p);
    w.Run("other", prompts[0]);
    const auto files = w.Open(dir.File("saved"));
    saved = w.manager->Save(*files, *w.storage);
    EXPECT_GT(saved.entries, 10);
    EXPECT_EQ(saved.tokens, saved.entries * kBlock);
    EXPECT_EQ(saved.dropped, 0);
  }
  World w(options);
  const auto files = w.Open(dir.File("saved"));
  const CacheTransfer loaded = w.manager->Load(*files, *w.storage);
  EXPECT_EQ(loaded.entries, saved.entries);
  EXPECT_EQ(loaded.bytes, saved.bytes);
  EXPECT_EQ(loaded.dropped, 0);
  EXPECT_TRUE(w.manager->Audit({}).ok()) << w.manager->Audit({});
  EXPECT_EQ(w.Run("root", prompts[0]), 5 * kBlock);
  EXPECT_EQ(w.Run("root", prompts[1]), 5 * kBlock);
  EXPECT_EQ(w.Run("other", prompts[0]), 5 * kBlock);
  EXPECT_EQ(w.Run("third", prompts[0]), 0);
  const CacheTransfer again = w.manager->Load(*files, *w.storage);
  EXPECT_EQ(again.entries, 0);
  EXPECT_EQ(again.known, saved.entries);
}

INSTANTIATE_TEST_SUITE_P(Layouts, SaveAndLoad,
                         testing::Values(std::pair{false, PrefixHashAlgorithm::kXxh3},
                                         std::pair{true, PrefixHashAlgorithm::kXxh3},
                                         std::pair{false, PrefixHashAlgorithm::kSha256Cbor}));

// A pool too small for all that was saved gets the beginnings of what was used last.
TEST(CacheFiles, LoadsOnlyIntoBlankPages) {
  const TempDir dir;
  {
    World w({.num_pages = 40});
    w.Run("root", Text(10 * kBlock + 1, 7));
    const auto files = w.Open(dir.File("saved"));
    EXPECT_EQ(w.manager->Save(*files, *w.storage).entries, 10);
  }
  World w({.num_pages = 6});
  w.Run("root", Text(2 * kBlock + 1, 900));  // two cached pages, one blank again
  const auto files = w.Open(dir.File("saved"));
  const CacheTransfer loaded = w.manager->Load(*files, *w.storage);
  EXPECT_EQ(loaded.entries, 4);
  EXPECT_EQ(loaded.dropped, 6);
  EXPECT_EQ(w.pools[0].num_cached(), 6);
  EXPECT_EQ(w.Run("root", Text(5 * kBlock, 7)), 4 * kBlock);
}

// Files that are cut, changed or swapped cost a miss and are counted; nothing of them is served.
TEST(CacheFiles, CorruptFilesAreDropped) {
  for (const int fault : {0, 1, 2, 3}) {
    const TempDir dir;
    {
      World w({.num_pages = 40});
      w.Run("root", Text(6 * kBlock + 1, 7));
      const auto files = w.Open(dir.File("saved"));
      ASSERT_EQ(w.manager->Save(*files, *w.storage).entries, 6);
    }
    std::vector<std::filesystem::path> pages;
    for (const auto& f : std::filesystem::recursive_directory_iterator(dir.File("saved"))) {
      if (f.is_regular_file() && f.file_size() > kPageBytes) pages.push_back(f.path());
    }
    ASSERT_EQ(pages.size(), 6u);
    std::sort(pages.begin(), pages.end());
    if (fault == 0) std::filesystem::resize_file(pages[0], 100);
    if (fault == 1) {
      std::fstream file(pages[1], std::ios::in | std::ios::out | std::ios::binary);
      file.seekg(-40, std::ios::end);
      const char byte = static_cast<char>(file.get() ^ 1);
      file.seekp(-40, std::ios::end);
      file.put(byte);
    }
    if (fault == 2) {
      std::filesystem::rename(pages[0], dir.File("aside"));
      std::filesystem::rename(pages[1], pages[0]);
      std::filesystem::rename(dir.File("aside"), pages[1]);
    }
    World w({.num_pages = 40});
    const auto files = w.Open(dir.File("saved"), fault == 3 ? "another model" : "toy");
    w.manager->Load(*files, *w.storage);
    uint64_t faults = 0;
    for (const uint64_t n : files->stats().faults) faults += n;
    EXPECT_EQ(faults, std::vector<uint64_t>({1, 1, 2, 6})[static_cast<size_t>(fault)]) << fault;
    EXPECT_LT(w.Run("root", Text(6 * kBlock + 1, 7)), 6 * kBlock);  // Run checks the bytes
  }
}

}  // namespace
}  // namespace quire
