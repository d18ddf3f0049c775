// tests/cache_layout_test.cc -- groups, pools and offsets; and the policy functions by brute force.
#include "paged_cache/cache_layout.h"

#include <gtest/gtest.h>

#include <set>

namespace quire {
namespace {

std::vector<LayerCacheSpec> Layers(int32_t n, CacheKind kind = CacheKind::kFull,
                                   int32_t window = 0) {
  std::vector<LayerCacheSpec> specs;
  for (int32_t i = 0; i < n; ++i) {
    specs.push_back({.layer = i,
                     .kind = kind,
                     .window = window,
                     .key_bytes_per_page = 1024,
                     .value_bytes_per_page = 512});
  }
  return specs;
}

// Every byte of a page belongs to exactly one layer's keys or values.
void ExpectNoOverlap(const CacheLayout& layout, const std::vector<LayerCacheSpec>& specs) {
  for (size_t g = 0; g < layout.groups.size(); ++g) {
    std::set<size_t> lines;
    size_t bytes = 0;
    for (const LayerCacheSpec& s : specs) {
      const LayerPlacement& at = layout.layers[static_cast<size_t>(s.layer)];
      if (s.shared_from >= 0 || at.group != static_cast<int32_t>(g)) continue;
      for (const auto& [offset, size] : {std::pair{at.key_offset, s.key_bytes_per_page},
                                         {at.value_offset, s.value_bytes_per_page}}) {
        bytes += size;
        for (size_t b = offset; b < offset + size; b += 64) EXPECT_TRUE(lines.insert(b).second);
      }
    }
    const size_t page = layout.pools[static_cast<size_t>(layout.groups[g].pool)].page_bytes;
    EXPECT_EQ(bytes, page);
    EXPECT_EQ(lines.size() * 64, page);
    EXPECT_LT(*lines.rbegin(), page);
  }
}

TEST(CacheLayout, OneFullGroup) {
  const auto specs = Layers(30);
  const CacheLayout layout = MakeCacheLayout(30, 16, specs).value();
  ASSERT_EQ(layout.groups.size(), 1);
  EXPECT_EQ(layout.groups[0].num_layers, 30);
  EXPECT_EQ(layout.groups[0].group.page_size, 16);
  ASSERT_EQ(layout.pools.size(), 1);
  EXPECT_EQ(layout.pools[0].page_bytes, 30 * 1536);
  EXPECT_EQ(layout.bytes_per_token, 30 * 1536 / 16);
  ExpectNoOverlap(layout, specs);
}

TEST(CacheLayout, FiveSlidingLayersPerFullOneShareOnePool) {
  auto specs = Layers(30, CacheKind::kSlidingWindow, 512);
  for (int32_t i = 5; i < 30; i += 6) specs[static_cast<size_t>(i)].kind = CacheKind::kFull;
  const CacheLayout layout = MakeCacheLayout(30, 16, specs).value();
  ASSERT_EQ(layout.groups.size(), 6);
  EXPECT_EQ(layout.pools.size(), 1);
  int full = 0;
  for (const GroupLayout& g : layout.groups) {
    EXPECT_EQ(g.num_layers, 5);
    full += g.group.kind == CacheKind::kFull;
    EXPECT_EQ(g.group.window, g.group.kind == CacheKind::kFull ? 0 : 512);
  }
  EXPECT_EQ(full, 1);
  EXPECT_EQ(layout.pools[0].page_bytes, 5 * 1536);
  EXPECT_EQ(layout.bytes_per_token, 5 * 1536 / 16);  // only full layers grow
  ExpectNoOverlap(layout, specs);
}

TEST(CacheLayout, UnevenLayersGetPoolsOfTheirOwn) {
  auto specs = Layers(26, CacheKind::kSlidingWindow, 512);
  for (const size_t i : {5, 11, 17}) specs[i].kind = CacheKind::kFull;
  // 23 sliding and 3 full layers divide only by one: 26 groups would be too many tables.
  const CacheLayout layout = MakeCacheLayout(26, 16, specs).value();
  ASSERT_EQ(layout.groups.size(), 2);
  ASSERT_EQ(layout.pools.size(), 2);
  for (const GroupLayout& g : layout.groups) {
    EXPECT_EQ(layout.pools[static_cast<size_t>(g.pool)].page_bytes,
              static_cast<size_t>(g.num_layers) * 1536);
  }
  ExpectNoOverlap(layout, specs);
}

TEST(CacheLayout, WiderFullLayersStillMeetInEqualPages) {
  // 8 sliding layers of 1,536 bytes and 2 full ones of 3,072: pages of 6,144 bytes for both.
  auto specs = Layers(10, CacheKind::kSlidingWindow, 128);
  for (const size_t i : {4, 9}) {
    specs[i].kind = CacheKind::kFull;
    specs[i].key_bytes_per_page = 2048;
    specs[i].value_bytes_per_page = 1024;
  }
  const CacheLayout layout = MakeCacheLayout(10, 32, specs).value();
  ASSERT_EQ(layout.pools.size(), 1);
  EXPECT_EQ(layout.pools[0].page_bytes, 6144);
  EXPECT_EQ(layout.groups.size(), 3);
  ExpectNoOverlap(layout, specs);
}

TEST(CacheLayout, ChunkedAndStateLayers) {
  auto specs = Layers(8, CacheKind::kChunkedLocal, 64);
  specs[3].kind = CacheKind::kFull;
  specs[7].kind = CacheKind::kState;
  specs[7].key_bytes_per_page = 64 * 1000;
  const CacheLayout layout = MakeCacheLayout(8, 16, specs).value();
  ASSERT_EQ(layout.groups.size(), 3);
  EXPECT_EQ(layout.groups[0].group.kind, CacheKind::kChunkedLocal);
  EXPECT_EQ(layout.groups[0].group.window, 64);
  EXPECT_EQ(layout.groups[2].group.kind, CacheKind::kState);
  EXPECT_EQ(layout.groups[2].group.window, 0);
  EXPECT_EQ(layout.pools.size(), 3);
  ExpectNoOverlap(layout, specs);
}

TEST(CacheLayout, TwoWindowsAreTwoGroups) {
  auto specs = Layers(4, CacheKind::kSlidingWindow, 64);
  specs[1].window = specs[3].window = 128;
  const CacheLayout layout = MakeCacheLayout(4, 16, specs).value();
  ASSERT_EQ(layout.groups.size(), 2);
  EXPECT_EQ(layout.layers[0].group, layout.layers[2].group);
  EXPECT_NE(layout.layers[0].group, layout.layers[1].group);
  EXPECT_EQ(layout.pools.size(), 1);
}

TEST(CacheLayout, SharedLayersHaveTheOwnersOffsets) {
  auto specs = Layers(6);
  specs[0].shared_from = 3;  // also from a later layer
  specs[5].shared_from = 3;
  specs.erase(specs.begin() + 4);  // and layer 4 has no cache at all
  const CacheLayout layout = MakeCacheLayout(6, 16, specs).value();
  for (const size_t i : {0, 5}) {
    EXPECT_EQ(layout.layers[i].group, layout.layers[3].group);
    EXPECT_EQ(layout.layers[i].key_offset, layout.layers[3].key_offset);
    EXPECT_EQ(layout.layers[i].value_offset, layout.layers[3].value_offset);
  }
  EXPECT_EQ(layout.layers[4].group, -1);
  EXPECT_EQ(layout.groups[0].num_layers, 3);
  EXPECT_EQ(layout.pools[0].page_bytes, 3 * 1536);
  ExpectNoOverlap(layout, specs);
}

TEST(CacheLayout, RefusesWhatCannotBe) {
  struct Case {
    const char* what;
    int32_t block_size;
    std::vector<LayerCacheSpec> specs;
  };
  auto shared_chain = Layers(3);
  shared_chain[1].shared_from = 0;
  shared_chain[2].shared_from = 1;
  auto shared_outside = Layers(3);
  shared_outside[1].shared_from = 7;
  auto outside = Layers(3);
  outside[2].layer = 3;
  auto twice = Layers(3);
  twice[2].layer = 0;
  auto odd = Layers(3);
  odd[1].key_bytes_per_page = 100;
  auto huge = Layers(3);
  huge[1].value_bytes_per_page = ~size_t{63};
  auto none = Layers(3);
  none[1].key_bytes_per_page = none[1].value_bytes_per_page = 0;
  const Case cases[] = {
      {"block_size=12", 12, Layers(3)},
      {"block_size=0", 0, Layers(3)},
      {"block_size=256", 256, Layers(3)},
      {"layer=0: window=0", 16, Layers(3, CacheKind::kSlidingWindow, 0)},
      {"layer=0: window=-1", 16, Layers(3, CacheKind::kChunkedLocal, -1)},
      {"layer=2: shared_from=1", 16, shared_chain},
      {"layer=1: shared_from=7", 16, shared_outside},
      {"layer=3 must be in [0, 3)", 16, outside},
      {"layer=0 has two", 16, twice},
      {"layer=1: key_bytes_per_page=100", 16, odd},
      {"layer=1: key_bytes_per_page=1024 value_bytes_per_page=18446744073709551552", 16, huge},
      {"layer=1: key_bytes_per_page=0", 16, none},
  };
  for (const Case& c : cases) {
    const absl::Status status = MakeCacheLayout(3, c.block_size, c.specs).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << c.what;
    EXPECT_NE(Message(status).find(c.what), std::string::npos) << Message(status);
  }
  for (const int32_t size : {8, 16, 32, 64, 128}) {
    EXPECT_TRUE(MakeCacheLayout(3, size, Layers(3)).ok()) << size;
  }
}

// ---- cache_policy.h ----

// The first position that a query at `pos` sees, by the definition of each mask.
int32_t FirstVisible(const CacheGroup& g, int32_t pos) {
  switch (g.kind) {
    case CacheKind::kFull:
      return 0;
    case CacheKind::kSlidingWindow:
      return std::max(0, pos - (g.window - 1));  // `window` keys, its own among them
    case CacheKind::kChunkedLocal:
      return pos - pos % g.window;
    case CacheKind::kState:
      return std::max(0, pos - 1);  // the state after the token before
  }
  return -1;
}

std::vector<CacheGroup> Groups() {
  std::vector<CacheGroup> groups = {{CacheKind::kFull, 4, 0}, {CacheKind::kState, 4, 0}};
  for (int32_t window = 1; window <= 13; ++window) {
    groups.push_back({CacheKind::kSlidingWindow, 4, window});
    groups.push_back({CacheKind::kChunkedLocal, 4, window});
  }
  return groups;
}

TEST(CachePolicy, KeepsExactlyTheVisiblePages) {
  for (const CacheGroup& g : Groups()) {
    int32_t last = 0;
    for (int32_t n = 0; n < 100; ++n) {
      const int32_t first = FirstLivePage(g, n);
      ASSERT_EQ(first, FirstVisible(g, n) / 4)
          << "kind " << static_cast<int>(g.kind) << " window " << g.window << " num_computed " << n;
      ASSERT_GE(first, last);
      last = first;
    }
  }
}

TEST(CachePolicy, MaxPagesCoversEveryStep) {
  for (const CacheGroup& g : Groups()) {
    for (const int32_t step : {1, 3, 8, 40}) {
      for (const int32_t rollback : {0, 5}) {
        if (g.kind == CacheKind::kState && rollback > 0) continue;  // states are not taken back
        int32_t most = 0;
        for (int32_t from = 0; from < 40; ++from) {
          const int32_t to = std::min(40, from + step);
          std::set<int32_t> pages;  // read or written
          const int32_t first = FirstVisible(g, std::max(0, from - rollback));
          for (int32_t pos = first; pos < from; ++pos) pages.insert(pos / 4);
          for (int32_t pos = from; pos < to; ++pos) {
            if (g.kind != CacheKind::kState || pos == to - 1) pages.insert(pos / 4);
          }
          most = std::max(most, static_cast<int32_t>(pages.size()));
        }
        const int32_t bound = MaxPages(g, 40, step, rollback);
        EXPECT_GE(bound, most) << "kind " << static_cast<int>(g.kind) << " window " << g.window;
        EXPECT_LE(bound, std::min(10, most + 1)) << "window " << g.window << " step " << step;
      }
    }
  }
  EXPECT_EQ(MaxPages({CacheKind::kFull, 16, 0}, 2147483647, 2147483647, 0), 134217728);
}

}  // namespace
}  // namespace quire
