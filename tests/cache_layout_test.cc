// tests/cache_layout_test.cc -- groups, pools and offsets.
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
      const LayerPlacement at = layout.placement(s.layer, RoleOf(s.kind));
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
  EXPECT_EQ(layout.groups[2].group.snapshot_interval, 512);
  EXPECT_EQ(layout.placement(7, CacheRole::kState).group, 2);
  EXPECT_EQ(layout.placement(7, CacheRole::kMain).group, -1);
  EXPECT_EQ(layout.placement(7, CacheRole::kCross).group, -1);
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

// Compressed entries of 4 and of 128 tokens, each with the raw tokens that are not an entry yet;
// the first selects by an indexer; and a decoder layer with states, its own keys and an encoder's.
TEST(CacheLayout, ALayerOwnsCachesInSeveralRoles) {
  const std::vector<LayerCacheSpec> specs = {
      {.layer = 0,
       .kind = CacheKind::kCompressed,
       .key_bytes_per_page = 4 * 1024,
       .tokens_per_entry = 4,
       .remainder_window = 8,
       .remainder_bytes_per_page = 16 * 2048},
      {.layer = 0,
       .kind = CacheKind::kIndexer,
       .key_bytes_per_page = 4 * 128,
       .tokens_per_entry = 4},
      {.layer = 1,
       .kind = CacheKind::kCompressed,
       .key_bytes_per_page = 1024,
       .tokens_per_entry = 128,
       .remainder_window = 128,
       .remainder_bytes_per_page = 16 * 2048},
      {.layer = 2, .kind = CacheKind::kLatent, .key_bytes_per_page = 16 * 1152},
      {.layer = 2, .kind = CacheKind::kState, .key_bytes_per_page = 64, .snapshot_interval = 64},
      {.layer = 2,
       .kind = CacheKind::kCrossAttention,
       .key_bytes_per_page = 512,
       .value_bytes_per_page = 512},
      {.layer = 3, .kind = CacheKind::kCompressed, .shared_from = 0, .tokens_per_entry = 4},
  };
  const CacheLayout layout = MakeCacheLayout(4, 16, specs).value();
  ASSERT_EQ(layout.groups.size(), 8);
  const auto group = [&](int32_t layer, CacheRole role) {
    return layout.groups[static_cast<size_t>(layout.placement(layer, role).group)].group;
  };
  EXPECT_EQ(group(0, CacheRole::kMain),
            (CacheGroup{.kind = CacheKind::kCompressed, .page_size = 16, .tokens_per_entry = 4}));
  EXPECT_EQ(group(0, CacheRole::kRemainder),
            (CacheGroup{.kind = CacheKind::kSlidingWindow, .page_size = 16, .window = 8}));
  EXPECT_EQ(group(0, CacheRole::kIndexer),
            (CacheGroup{.kind = CacheKind::kIndexer, .page_size = 16, .tokens_per_entry = 4}));
  EXPECT_EQ(
      group(1, CacheRole::kMain),
      (CacheGroup{.kind = CacheKind::kCompressed, .page_size = 128, .tokens_per_entry = 128}));
  EXPECT_EQ(group(1, CacheRole::kRemainder),
            (CacheGroup{.kind = CacheKind::kChunkedLocal, .page_size = 16, .window = 128}));
  EXPECT_EQ(group(2, CacheRole::kState).snapshot_interval, 64);
  EXPECT_EQ(group(2, CacheRole::kCross).kind, CacheKind::kCrossAttention);
  EXPECT_EQ(layout.placement(3, CacheRole::kMain).group,
            layout.placement(0, CacheRole::kMain).group);
  EXPECT_EQ(layout.placement(3, CacheRole::kRemainder).group,
            layout.placement(0, CacheRole::kRemainder).group);
  EXPECT_EQ(layout.placement(3, CacheRole::kIndexer).group, -1);
  // 1,024 bytes per 4 tokens, 128 per 4, 1,024 per 128, and a latent of 1,152 for each.
  EXPECT_EQ(layout.bytes_per_token, 256 + 32 + 8 + 1152);
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
  auto three = Layers(3, CacheKind::kCompressed);
  three[0].tokens_per_entry = 3;
  auto entries_of_full = Layers(3);
  entries_of_full[1].tokens_per_entry = 4;
  auto snapshots = Layers(3, CacheKind::kState);
  snapshots[2].snapshot_interval = 24;
  auto remainder = Layers(3, CacheKind::kCompressed);
  remainder[1].remainder_window = 4;
  auto other_role = Layers(3);
  other_role[1].kind = CacheKind::kIndexer;
  other_role[1].shared_from = 0;
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
      {"layer=0: tokens_per_entry=3", 16, three},
      {"layer=1: tokens_per_entry=4", 16, entries_of_full},
      {"layer=2: snapshot_interval=24", 16, snapshots},
      {"layer=1: remainder_window=4 remainder_bytes_per_page=0", 16, remainder},
      {"layer=1: shared_from=0", 16, other_role},
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

}  // namespace
}  // namespace quire
