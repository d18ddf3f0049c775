#include "paged_cache/cache_layout.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>

namespace quire {
namespace {

constexpr size_t kByteAlignment = 64;  // of keys and values inside a page: a cache line
// Splitting layers into groups of equal page bytes saves a second pool, but each group costs a
// table per sequence and a plan per step.
constexpr size_t kMaxSplitGroups = 8;

// Owning layers that may share tables.
struct Kind {
  CacheGroup group;
  size_t layer_bytes = 0;  // keys and values of one layer, per page
  std::vector<const LayerCacheSpec*> layers;
};

absl::Status Validate(int32_t num_layers, int32_t block_size,
                      const std::vector<LayerCacheSpec>& specs) {
  constexpr int32_t kSizes[] = {8, 16, 32, 64, 128};
  if (std::find(std::begin(kSizes), std::end(kSizes), block_size) == std::end(kSizes)) {
    return InvalidArgument("block_size={} must be 8, 16, 32, 64 or 128", block_size);
  }
  std::vector<const LayerCacheSpec*> of_layer(static_cast<size_t>(std::max(num_layers, 0)));
  for (const LayerCacheSpec& spec : specs) {
    if (spec.layer < 0 || spec.layer >= num_layers) {
      return InvalidArgument("layer={} must be in [0, {})", spec.layer, num_layers);
    }
    const LayerCacheSpec*& slot = of_layer[static_cast<size_t>(spec.layer)];
    if (slot != nullptr) {
      return InvalidArgument("layer={} has two cache specs, it must have one", spec.layer);
    }
    slot = &spec;
  }
  for (const LayerCacheSpec& spec : specs) {
    if (spec.shared_from >= 0) {
      const LayerCacheSpec* owner =
          spec.shared_from < num_layers ? of_layer[static_cast<size_t>(spec.shared_from)] : nullptr;
      if (owner == nullptr || owner->shared_from >= 0) {
        return InvalidArgument("layer={}: shared_from={} must name a layer with a cache of its own",
                               spec.layer, spec.shared_from);
      }
      continue;
    }
    const bool windowed =
        spec.kind == CacheKind::kSlidingWindow || spec.kind == CacheKind::kChunkedLocal;
    if (windowed && spec.window < 1) {
      return InvalidArgument("layer={}: window={} must be 1 or more", spec.layer, spec.window);
    }
    if (spec.key_bytes_per_page % kByteAlignment != 0 ||
        spec.value_bytes_per_page % kByteAlignment != 0) {
      return InvalidArgument(
          "layer={}: key_bytes_per_page={} and value_bytes_per_page={} must be multiples of {}",
          spec.layer, spec.key_bytes_per_page, spec.value_bytes_per_page, kByteAlignment);
    }
    constexpr size_t kMost = std::numeric_limits<size_t>::max() / 2;
    const size_t room = kMost / static_cast<size_t>(num_layers);
    if (spec.key_bytes_per_page > room || spec.value_bytes_per_page > room) {
      return InvalidArgument(
          "layer={}: key_bytes_per_page={} value_bytes_per_page={} are too large", spec.layer,
          spec.key_bytes_per_page, spec.value_bytes_per_page);
    }
    if (spec.key_bytes_per_page + spec.value_bytes_per_page == 0) {
      return InvalidArgument(
          "layer={}: key_bytes_per_page=0 and value_bytes_per_page=0; a layer "
          "without a cache has no spec",
          spec.layer);
    }
  }
  return absl::OkStatus();
}

std::vector<Kind> CollectKinds(int32_t block_size, const std::vector<LayerCacheSpec>& specs) {
  std::vector<const LayerCacheSpec*> ordered;
  for (const LayerCacheSpec& spec : specs) {
    if (spec.shared_from < 0) ordered.push_back(&spec);
  }
  std::sort(ordered.begin(), ordered.end(),
            [](const auto* a, const auto* b) { return a->layer < b->layer; });
  std::vector<Kind> kinds;
  for (const LayerCacheSpec* spec : ordered) {
    const bool windowed =
        spec->kind == CacheKind::kSlidingWindow || spec->kind == CacheKind::kChunkedLocal;
    const CacheGroup group{spec->kind, block_size, windowed ? spec->window : 0};
    const size_t bytes = spec->key_bytes_per_page + spec->value_bytes_per_page;
    const auto it = std::find_if(kinds.begin(), kinds.end(), [&](const Kind& k) {
      return k.group.kind == group.kind && k.group.window == group.window && k.layer_bytes == bytes;
    });
    (it == kinds.end() ? kinds.emplace_back(Kind{group, bytes, {}}) : *it).layers.push_back(spec);
  }
  return kinds;
}

// Bytes that all groups' pages should have, if the layers divide so: then all share one pool.
std::optional<size_t> CommonPageBytes(const std::vector<Kind>& kinds) {
  if (kinds.size() < 2) return std::nullopt;
  size_t common = 0;
  for (const Kind& k : kinds) common = std::gcd(common, k.layers.size() * k.layer_bytes);
  size_t num_groups = 0;
  for (const Kind& k : kinds) {
    if (common % k.layer_bytes != 0) return std::nullopt;
    num_groups += k.layers.size() * k.layer_bytes / common;
  }
  if (num_groups > kMaxSplitGroups) return std::nullopt;
  return common;
}

}  // namespace

absl::StatusOr<CacheLayout> MakeCacheLayout(int32_t num_layers, int32_t block_size,
                                            const std::vector<LayerCacheSpec>& specs) {
  RETURN_IF_ERROR(Validate(num_layers, block_size, specs));
  CacheLayout layout;
  layout.block_size = block_size;
  layout.layers.resize(static_cast<size_t>(std::max(num_layers, 0)));
  const std::vector<Kind> kinds = CollectKinds(block_size, specs);
  const std::optional<size_t> common = CommonPageBytes(kinds);
  for (const Kind& kind : kinds) {
    const size_t per_group = common ? *common / kind.layer_bytes : kind.layers.size();
    for (size_t begin = 0; begin < kind.layers.size(); begin += per_group) {
      size_t offset = 0;
      for (size_t i = begin; i < begin + per_group; ++i) {
        const LayerCacheSpec& spec = *kind.layers[i];
        layout.layers[static_cast<size_t>(spec.layer)] = {
            .group = static_cast<int32_t>(layout.groups.size()),
            .key_offset = offset,
            .value_offset = offset + spec.key_bytes_per_page};
        offset += kind.layer_bytes;
      }
      auto pool = std::find_if(layout.pools.begin(), layout.pools.end(),
                               [&](const PoolLayout& p) { return p.page_bytes == offset; });
      if (pool == layout.pools.end()) pool = layout.pools.insert(pool, PoolLayout{offset});
      layout.groups.push_back({.group = kind.group,
                               .pool = static_cast<int32_t>(pool - layout.pools.begin()),
                               .num_layers = static_cast<int32_t>(per_group)});
      if (kind.group.kind == CacheKind::kFull) {
        layout.bytes_per_token += static_cast<int64_t>(offset) / block_size;
      }
    }
  }
  for (const LayerCacheSpec& spec : specs) {
    if (spec.shared_from >= 0) {
      layout.layers[static_cast<size_t>(spec.layer)] =
          layout.layers[static_cast<size_t>(spec.shared_from)];
    }
  }
  return layout;
}

}  // namespace quire
