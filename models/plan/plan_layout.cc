#include "models/plan/plan_layout.h"

#include <algorithm>

#include "models/plan/formula.h"

namespace quire {
namespace {

CacheKind KindOf(PartKind kind) {
  switch (kind) {
    case PartKind::kFull:
    case PartKind::kCross:  // of known length here: like a sequence of its own
      return CacheKind::kFull;
    case PartKind::kSliding:
      return CacheKind::kSlidingWindow;
    case PartKind::kChunked:
      return CacheKind::kChunkedLocal;
    case PartKind::kLatent:
      return CacheKind::kLatent;
    case PartKind::kCompressed:
      return CacheKind::kCompressed;
    case PartKind::kIndexer:
      return CacheKind::kIndexer;
    case PartKind::kState:
      return CacheKind::kState;
  }
  return CacheKind::kFull;
}

// Pages begin on cache lines.
size_t Aligned(int64_t bytes) { return static_cast<size_t>((bytes + 63) / 64 * 64); }

LayerCacheSpec SpecOf(const CachePart& p, const KvFormat& kv, int64_t block_size) {
  LayerCacheSpec spec{.kind = KindOf(p.kind), .window = static_cast<int32_t>(p.window)};
  spec.tokens_per_entry = static_cast<int32_t>(p.tokens_per_entry);
  if (p.kind == PartKind::kState) {
    spec.key_bytes_per_page = Aligned(FixedBytes(p, kv));
    return spec;
  }
  const int64_t entries = std::max(block_size / p.tokens_per_entry, int64_t{1});
  const auto page = [&](int64_t dim, int64_t heads) {
    if (dim == 0) return size_t{0};
    return Aligned(SaturatingProduct(
        {entries, heads,
         SaturatingSum({SaturatingProduct({dim, kv.element_bytes}), kv.scale_bytes})}));
  };
  const bool latent = p.kind == PartKind::kLatent;
  spec.key_bytes_per_page = latent ? page(p.latent_dim, 1) : page(p.key_dim, p.kv_heads);
  spec.value_bytes_per_page = latent ? page(p.rope_dim, 1) : page(p.value_dim, p.kv_heads);
  return spec;
}

}  // namespace

absl::StatusOr<CacheLayout> PlanLayout(const ModelShape& shape, const KvFormat& kv,
                                       int64_t block_size) {
  std::vector<LayerCacheSpec> specs;
  const auto num_layers = static_cast<int32_t>(shape.layers.size());
  // A layer has one cache per role; a second one (a window beside compressed entries) stands as a
  // layer of its own.
  int32_t next = num_layers;
  for (int32_t i = 0; i < num_layers; ++i) {
    const LayerShape& layer = shape.layers[static_cast<size_t>(i)];
    bool taken[kNumCacheRoles] = {};
    int64_t buffers = 0;
    bool overlaps = false;
    for (const CachePart& p : layer.parts) {
      buffers = SaturatingSum({buffers, p.buffer_elements});
      overlaps = overlaps || p.overlap_elements > 0;
    }
    for (const CachePart& p : layer.parts) {
      LayerCacheSpec spec = SpecOf(p, kv, block_size);
      if (spec.key_bytes_per_page + spec.value_bytes_per_page == 0) continue;  // an empty state
      bool& role = taken[static_cast<size_t>(RoleOf(spec.kind))];
      spec.layer = role ? next++ : i;
      role = true;
      if (p.kind == PartKind::kCompressed && buffers > 0) {
        spec.remainder_window = static_cast<int32_t>(p.tokens_per_entry * (overlaps ? 2 : 1));
        spec.remainder_bytes_per_page = Aligned(SaturatingProduct({block_size, buffers, 4}));
      }
      specs.push_back(spec);
    }
  }
  return MakeCacheLayout(next, static_cast<int32_t>(block_size), specs);
}

}  // namespace quire
