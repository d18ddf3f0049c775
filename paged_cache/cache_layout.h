// paged_cache/cache_layout.h -- which layers share page tables, and where their bytes lie in a
// page.
//
// A model describes each cache-owning layer by a LayerCacheSpec; MakeCacheLayout forms groups
// (layers with equal kind, window and page size) and gives groups of equal page bytes one pool.
// Layers that read another layer's cache have its offsets (cross-layer sharing = equal offset).
//
// A layer may own several caches in different roles, each with a spec of its own: attention (main),
// the keys that its indexer selects by, a recurrent state beside the attention, the encoder's keys
// and values. A compressed cache brings its remainder along: the raw inputs that are not an entry
// yet, a small sliding or chunked group that is forked, truncated and found like any other.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "paged_cache/cache_policy.h"

namespace quire {

// What a layer owns a cache for.
enum class CacheRole : uint8_t { kMain, kIndexer, kState, kCross, kRemainder };
inline constexpr int kNumCacheRoles = 5;

struct LayerCacheSpec {
  int32_t layer = 0;
  CacheKind kind = CacheKind::kFull;
  int32_t window = 0;  // tokens; sliding and chunked kinds
  // As the attention kernel lays out a page of GroupPageSize(block_size, tokens_per_entry) tokens,
  // multiples of 64. Of a state: all of it, in key_bytes_per_page.
  size_t key_bytes_per_page = 0;
  size_t value_bytes_per_page = 0;
  int32_t shared_from = -1;  // >= 0: owns nothing, reads that layer's pages of the same role

  int32_t tokens_per_entry = 1;   // kCompressed, kIndexer: a power of two
  int32_t snapshot_interval = 0;  // kState: tokens, a multiple of the block size; 0 = 512
  // kCompressed: raw inputs kept until they are an entry, and for overlapping entries longer:
  // remainder_window tokens of remainder_bytes_per_page per page of block_size tokens. 0 = none.
  int32_t remainder_window = 0;
  size_t remainder_bytes_per_page = 0;
};

inline constexpr int32_t kDefaultSnapshotInterval = 512;

struct LayerPlacement {
  int32_t group = -1;     // -1: this layer has no such cache
  size_t key_offset = 0;  // bytes from the page's start
  size_t value_offset = 0;
};

struct GroupLayout {
  CacheGroup group;
  int32_t pool = 0;        // index into CacheLayout::pools
  int32_t num_layers = 0;  // that own bytes
};

struct PoolLayout {
  size_t page_bytes = 0;
};

struct CacheLayout {
  int32_t block_size = 16;
  std::vector<LayerPlacement> layers;  // [num_layers], CacheRole::kMain
  // [num_layers] each, or empty if no layer has that role; [kMain] is unused.
  std::array<std::vector<LayerPlacement>, kNumCacheRoles> other_roles;
  std::vector<GroupLayout> groups;
  std::vector<PoolLayout> pools;  // distinct page sizes in bytes
  int64_t bytes_per_token = 0;    // growing groups only, entries spread over their tokens

  // REQUIRES: 0 <= layer < num_layers.
  LayerPlacement placement(int32_t layer, CacheRole role) const;
};

CacheRole RoleOf(CacheKind kind);

// ERRORS: kInvalidArgument naming layer and field (block_size not 8, 16, 32, 64 or 128; a layer
// that shares from a layer without a cache; windows of 0).
absl::StatusOr<CacheLayout> MakeCacheLayout(int32_t num_layers, int32_t block_size,
                                            const std::vector<LayerCacheSpec>& specs);

}  // namespace quire
