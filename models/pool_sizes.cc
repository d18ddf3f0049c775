#include "models/pool_sizes.h"

#include <algorithm>
#include <limits>

#include "base/status.h"

namespace quire {
namespace {

constexpr int32_t kMostBlocks = std::numeric_limits<int32_t>::max() / 2;

bool Grows(const CacheGroup& g) {
  constexpr int32_t kFar = 1 << 24;  // tokens
  return MaxPages(g, 2 * kFar, 1, 0) > MaxPages(g, kFar, 1, 0);
}

// The largest n in [low, high] with fits(n), which must hold up to some point and not beyond;
// low - 1 if not even low fits.
template <typename Fits>
int32_t LargestThat(int32_t low, int32_t high, const Fits& fits) {
  int32_t good = low - 1;
  while (good < high) {
    const int32_t middle = good + (high - good + 1) / 2;
    if (fits(middle)) {
      good = middle;
    } else {
      high = middle - 1;
    }
  }
  return good;
}

int32_t Clamp(int64_t pages) { return static_cast<int32_t>(std::min<int64_t>(pages, kMostBlocks)); }

}  // namespace

int32_t MainPool(const CacheLayout& layout) {
  for (const GroupLayout& g : layout.groups) {
    if (Grows(g.group)) return g.pool;
  }
  return 0;
}

std::vector<int32_t> PagesOfSequence(const CacheLayout& layout, int32_t num_tokens,
                                     int32_t step_tokens) {
  std::vector<int64_t> pages(layout.pools.size());
  for (const GroupLayout& g : layout.groups) {
    pages[static_cast<size_t>(g.pool)] += MaxPages(g.group, num_tokens, step_tokens, 0);
  }
  std::vector<int32_t> out;
  for (const int64_t n : pages) out.push_back(Clamp(n));
  return out;
}

std::vector<int32_t> PoolPages(const CacheLayout& layout, const PoolMix& mix, int32_t main_blocks) {
  const auto main = static_cast<size_t>(MainPool(layout));
  const auto all_have = [&](int64_t num_seqs, int32_t tokens) {
    return num_seqs * PagesOfSequence(layout, tokens, 1)[main] <= main_blocks;
  };
  int64_t num_seqs = mix.max_num_seqs;
  const int32_t tokens = std::max(
      1, LargestThat(1, mix.max_model_len, [&](int32_t n) { return all_have(num_seqs, n); }));
  const std::vector<int32_t> each = PagesOfSequence(layout, tokens, 1);
  // Fewer sequences than asked for, or more of the longest: prefixes that stay cached.
  if (tokens == 1 || tokens == mix.max_model_len) num_seqs = main_blocks / std::max(1, each[main]);
  // The longest one that the main pool can hold must find room in the others.
  const int32_t most = LargestThat(1, mix.max_model_len, [&](int32_t n) {
    return PagesOfSequence(layout, n, mix.max_step_tokens)[main] <= main_blocks;
  });
  const std::vector<int32_t> longest = PagesOfSequence(layout, most, mix.max_step_tokens);
  std::vector<int64_t> pages(layout.pools.size());
  for (size_t p = 0; p < pages.size(); ++p) pages[p] = num_seqs * each[p];
  // One step's tokens come before any page is given back, whoever they belong to.
  for (const GroupLayout& g : layout.groups) {
    pages[static_cast<size_t>(g.pool)] +=
        (int64_t{mix.max_step_tokens} + g.group.page_size - 1) / g.group.page_size;
  }
  std::vector<int32_t> out;
  for (size_t p = 0; p < pages.size(); ++p) {
    out.push_back(p == main ? main_blocks : Clamp(std::max<int64_t>(pages[p], longest[p])));
  }
  return out;
}

int64_t BytesOfPools(const CacheLayout& layout, const std::vector<int32_t>& pages) {
  CHECK(pages.size() == layout.pools.size(), "{} sizes for {} pools", pages.size(),
        layout.pools.size());
  int64_t sum = 0;
  for (size_t p = 0; p < pages.size(); ++p) {
    int64_t bytes = 0;
    if (__builtin_mul_overflow(static_cast<int64_t>(layout.pools[p].page_bytes), int64_t{pages[p]},
                               &bytes) ||
        __builtin_add_overflow(sum, bytes, &sum)) {
      return std::numeric_limits<int64_t>::max();
    }
  }
  return sum;
}

int32_t MainBlocksIn(const CacheLayout& layout, const PoolMix& mix, int64_t bytes) {
  return LargestThat(1, kMostBlocks, [&](int32_t blocks) {
    return BytesOfPools(layout, PoolPages(layout, mix, blocks)) <= bytes;
  });
}

int32_t LongestInPools(const CacheLayout& layout, const PoolMix& mix,
                       const std::vector<int32_t>& pages) {
  return LargestThat(1, mix.max_model_len, [&](int32_t tokens) {
    const std::vector<int32_t> need = PagesOfSequence(layout, tokens, mix.max_step_tokens);
    for (size_t p = 0; p < need.size(); ++p) {
      if (need[p] > pages[p]) return false;
    }
    return true;
  });
}

}  // namespace quire
