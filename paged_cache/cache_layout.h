// paged_cache/cache_layout.h -- which layers share page tables, and where their bytes lie in a
// page.
//
// A model describes each cache-owning layer by a LayerCacheSpec; MakeCacheLayout forms groups
// (layers with equal kind, window and page size) and gives groups of equal page bytes one pool.
// Layers that read another layer's cache have its offsets (cross-layer sharing = equal offset).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "paged_cache/cache_policy.h"

namespace quire {

struct LayerCacheSpec {
  int32_t layer = 0;
  CacheKind kind = CacheKind::kFull;
  int32_t window = 0;             // tokens; sliding and chunked kinds
  size_t key_bytes_per_page = 0;  // as the attention kernel lays it out, multiples of 64
  size_t value_bytes_per_page = 0;
  int32_t shared_from = -1;  // >= 0: owns nothing, reads that layer's pages
};

struct LayerPlacement {
  int32_t group = -1;     // -1: this layer has no cache
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
  std::vector<LayerPlacement> layers;  // [num_layers]
  std::vector<GroupLayout> groups;
  std::vector<PoolLayout> pools;  // distinct page sizes in bytes
  int64_t bytes_per_token = 0;    // growing groups only (full attention)
};

// ERRORS: kInvalidArgument naming layer and field (block_size not 8, 16, 32, 64 or 128; a layer
// that shares from a layer without a cache; windows of 0).
absl::StatusOr<CacheLayout> MakeCacheLayout(int32_t num_layers, int32_t block_size,
                                            const std::vector<LayerCacheSpec>& specs);

}  // namespace quire
