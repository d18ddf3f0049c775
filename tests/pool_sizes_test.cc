// tests/pool_sizes_test.cc -- pages of each pool, worked out by hand for layouts of one and two
// pools, and against what admission asks of a request (BlockManager::WorstCasePages).
#include "models/pool_sizes.h"

#include <gtest/gtest.h>

#include "paged_cache/block_manager.h"

namespace quire {
namespace {

// One kv head of 256 in float32, keys and values, 16 tokens a page: 32 KiB per layer.
constexpr size_t kHalf = 16 * 1024;

CacheLayout Layout(int32_t sliding, int32_t full, int32_t window, int32_t block_size = 16) {
  std::vector<LayerCacheSpec> specs;
  for (int32_t i = 0; i < sliding + full; ++i) {
    const bool windowed = i < sliding;
    specs.push_back({.layer = i,
                     .kind = windowed ? CacheKind::kSlidingWindow : CacheKind::kFull,
                     .window = windowed ? window : 0,
                     .key_bytes_per_page = kHalf,
                     .value_bytes_per_page = kHalf});
  }
  const auto layout = MakeCacheLayout(sliding + full, block_size, specs);
  CHECK(layout.ok(), "{}", layout.status().ToString());
  return *layout;
}

size_t PoolOf(const CacheLayout& layout, CacheKind kind) {
  for (const GroupLayout& g : layout.groups) {
    if (g.group.kind == kind) return static_cast<size_t>(g.pool);
  }
  return 99;
}

TEST(PoolSizes, OnePoolIsWhatItIsToldToBe) {
  for (const CacheLayout& layout : {Layout(0, 4, 0), Layout(4, 0, 512), Layout(5, 1, 512)}) {
    ASSERT_EQ(layout.pools.size(), 1u);
    EXPECT_EQ(MainPool(layout), 0);
    for (const int32_t blocks : {1, 7, 100000}) {
      EXPECT_EQ(PoolPages(layout, {4096, 8, 512}, blocks), std::vector<int32_t>{blocks});
    }
  }
}

// 22 sliding layers of window 512 and 4 full ones: too many groups of equal bytes, so two pools.
TEST(PoolSizes, TheOtherPoolFollowsTheMix) {
  const CacheLayout layout = Layout(22, 4, 512);
  ASSERT_EQ(layout.pools.size(), 2u);
  const size_t main = PoolOf(layout, CacheKind::kFull);
  const size_t other = PoolOf(layout, CacheKind::kSlidingWindow);
  EXPECT_EQ(MainPool(layout), static_cast<int32_t>(main));
  const PoolMix mix{.max_model_len = 32768, .max_num_seqs = 8, .max_step_tokens = 512};
  // 8 sequences of 32,768 tokens: 8 * 2,048 blocks. Each holds 512 past and present tokens of the
  // window in at most 33 pages; the tokens of one step come on top, 32 pages.
  std::vector<int32_t> pages = PoolPages(layout, mix, 8 * 2048);
  EXPECT_EQ(pages[main], 8 * 2048);
  EXPECT_EQ(pages[other], 8 * 33 + 32);
  // Half of that main pool: 8 sequences of half the length have the same windows.
  EXPECT_EQ(PoolPages(layout, mix, 8 * 1024)[other], 8 * 33 + 32);
  // 80 blocks: 8 sequences of 160 tokens, which no window has passed yet: 10 pages each. (One of
  // 1,280 tokens alone would need no more than 65.)
  EXPECT_EQ(PoolPages(layout, mix, 80)[other], 80 + 32);
  // Four times the main pool: as many more sequences, whose pages stay cached.
  EXPECT_EQ(PoolPages(layout, mix, 4 * 8 * 2048)[other], 4 * 8 * 33 + 32);
  // One sequence alone may compute a whole step at once: 511 + 512 tokens touch at most 65 pages.
  const PoolMix alone{.max_model_len = 32768, .max_num_seqs = 1, .max_step_tokens = 512};
  EXPECT_EQ(PoolPages(layout, alone, 2048)[other], 33 + 32);
  EXPECT_EQ(PagesOfSequence(layout, 32768, 512)[other], 65);
  EXPECT_EQ(PagesOfSequence(layout, 32768, 512)[main], 2048);
  EXPECT_EQ(PagesOfSequence(layout, 100, 512)[other], 7) << "no more than the sequence has";
}

TEST(PoolSizes, BlocksFillTheBytesAndNoMore) {
  for (const CacheLayout& layout :
       {Layout(22, 4, 512), Layout(0, 4, 0), Layout(4, 0, 512), Layout(9, 2, 12, 128)}) {
    for (const int32_t seqs : {1, 8, 256}) {
      const PoolMix mix{.max_model_len = 8192, .max_num_seqs = seqs, .max_step_tokens = 64};
      for (const int64_t mib : {1, 10, 100, 1000, 100000}) {
        const int64_t bytes = mib << 20;
        const int32_t blocks = MainBlocksIn(layout, mix, bytes);
        if (blocks > 0) {
          EXPECT_LE(BytesOfPools(layout, PoolPages(layout, mix, blocks)), bytes);
        }
        EXPECT_GT(BytesOfPools(layout, PoolPages(layout, mix, blocks + 1)), bytes);
      }
      EXPECT_EQ(MainBlocksIn(layout, mix, 0), 0);
      EXPECT_EQ(MainBlocksIn(layout, mix, -5), 0);
    }
  }
}

TEST(PoolSizes, NeverFallsAsTheMainPoolGrows) {
  const CacheLayout layout = Layout(22, 4, 100);
  const PoolMix mix{.max_model_len = 2000, .max_num_seqs = 5, .max_step_tokens = 40};
  std::vector<int32_t> before(2);
  for (int32_t blocks = 1; blocks < 2000; ++blocks) {
    const std::vector<int32_t> pages = PoolPages(layout, mix, blocks);
    for (size_t p = 0; p < 2; ++p) EXPECT_GE(pages[p], before[p]) << blocks;
    before = pages;
  }
}

// What is reported as the longest sequence is exactly what admission grants.
TEST(PoolSizes, TheLongestIsWhatAdmissionGrants) {
  for (const CacheLayout& layout :
       {Layout(22, 4, 512), Layout(0, 4, 0), Layout(5, 1, 12), Layout(4, 0, 512)}) {
    const PoolMix mix{.max_model_len = 4096, .max_num_seqs = 4, .max_step_tokens = 64};
    for (const int32_t blocks : {1, 6, 30, 40, 100, 1000}) {
      const std::vector<int32_t> pages = PoolPages(layout, mix, blocks);
      const int32_t longest = LongestInPools(layout, mix, pages);
      std::vector<PagePool> pools;
      for (const int32_t n : pages) pools.emplace_back(n, layout.block_size);
      const BlockManager manager(layout, pools, {.max_step_tokens = 64});
      const auto fits = [&](int32_t tokens) {
        const PageNeed need = manager.WorstCasePages(tokens - 1, 1, 1);
        for (size_t p = 0; p < need.size(); ++p) {
          if (need[p] > pages[p]) return false;
        }
        return true;
      };
      if (longest > 0) {
        EXPECT_TRUE(fits(longest)) << longest;
      }
      if (longest < mix.max_model_len) {
        EXPECT_FALSE(fits(longest + 1)) << longest;
      }
    }
  }
}

}  // namespace
}  // namespace quire
