#include "paged_cache/cache_layout.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <optional>

namespace quire {
namespace {

constexpr size_t kByteAlignment = 64;  // of keys and values inside a page: a cache line
// Splitting layers into groups of equal page bytes saves a second pool, but each group costs a
// table per sequence and a plan per step.
constexpr size_t kMaxSplitGroups = 8;

bool IsWindowed(CacheKind kind) {
  return kind == CacheKind::kSlidingWindow || kind == CacheKind::kChunkedLocal;
}

// A spec of one role, the remainders split off.
struct RoleSpec {
  LayerCacheSpec spec;
  CacheRole role = CacheRole::kMain;
};

// Owning layers that may share tables.
struct Kind {
  CacheGroup group;
  size_t layer_bytes = 0;  // keys and values of one layer, per page
  std::vector<const RoleSpec*> layers;
};

absl::Status ValidateSpec(int32_t num_layers, int32_t block_size, const LayerCacheSpec& spec) {
  if (IsWindowed(spec.kind) && spec.window < 1) {
    return InvalidArgument("layer={}: window={} must be 1 or more", spec.layer, spec.window);
  }
  const bool has_entries = spec.kind == CacheKind::kCompressed || spec.kind == CacheKind::kIndexer;
  const int32_t r = spec.tokens_per_entry;
  if (r < 1 || r > 4096 || (r & (r - 1)) != 0 || (r > 1 && !has_entries)) {
    return InvalidArgument(
        "layer={}: tokens_per_entry={} must be a power of two up to 4096, and 1 for all kinds but "
        "compressed and indexer",
        spec.layer, r);
  }
  if (spec.snapshot_interval < 0 || spec.snapshot_interval % block_size != 0) {
    return InvalidArgument("layer={}: snapshot_interval={} must be a multiple of block_size={}",
                           spec.layer, spec.snapshot_interval, block_size);
  }
  if ((spec.remainder_window > 0) != (spec.remainder_bytes_per_page > 0) ||
      spec.remainder_window < 0 ||
      (spec.remainder_window > 0 && spec.kind != CacheKind::kCompressed)) {
    return InvalidArgument(
        "layer={}: remainder_window={} remainder_bytes_per_page={} go together, and with a "
        "compressed cache only",
        spec.layer, spec.remainder_window, spec.remainder_bytes_per_page);
  }
  if (spec.key_bytes_per_page % kByteAlignment != 0 ||
      spec.value_bytes_per_page % kByteAlignment != 0 ||
      spec.remainder_bytes_per_page % kByteAlignment != 0) {
    return InvalidArgument(
        "layer={}: key_bytes_per_page={} and value_bytes_per_page={} must be multiples of {}",
        spec.layer, spec.key_bytes_per_page, spec.value_bytes_per_page, kByteAlignment);
  }
  constexpr size_t kMost = std::numeric_limits<size_t>::max() / 4;
  const size_t room = kMost / static_cast<size_t>(num_layers);
  if (spec.key_bytes_per_page > room || spec.value_bytes_per_page > room ||
      spec.remainder_bytes_per_page > room) {
    return InvalidArgument("layer={}: key_bytes_per_page={} value_bytes_per_page={} are too large",
                           spec.layer, spec.key_bytes_per_page, spec.value_bytes_per_page);
  }
  if (spec.key_bytes_per_page + spec.value_bytes_per_page == 0) {
    return InvalidArgument(
        "layer={}: key_bytes_per_page=0 and value_bytes_per_page=0; a layer "
        "without a cache has no spec",
        spec.layer);
  }
  return absl::OkStatus();
}

absl::Status Validate(int32_t num_layers, int32_t block_size,
                      const std::vector<LayerCacheSpec>& specs) {
  constexpr int32_t kSizes[] = {8, 16, 32, 64, 128};
  if (std::find(std::begin(kSizes), std::end(kSizes), block_size) == std::end(kSizes)) {
    return InvalidArgument("block_size={} must be 8, 16, 32, 64 or 128", block_size);
  }
  std::map<std::pair<int32_t, CacheRole>, const LayerCacheSpec*> of_role;
  for (const LayerCacheSpec& spec : specs) {
    if (spec.layer < 0 || spec.layer >= num_layers) {
      return InvalidArgument("layer={} must be in [0, {})", spec.layer, num_layers);
    }
    if (!of_role.emplace(std::pair(spec.layer, RoleOf(spec.kind)), &spec).second) {
      return InvalidArgument("layer={} has two cache specs, it must have one", spec.layer);
    }
  }
  for (const LayerCacheSpec& spec : specs) {
    if (spec.shared_from < 0) {
      RETURN_IF_ERROR(ValidateSpec(num_layers, block_size, spec));
      continue;
    }
    const auto owner = of_role.find({spec.shared_from, RoleOf(spec.kind)});
    if (owner == of_role.end() || owner->second->shared_from >= 0) {
      return InvalidArgument("layer={}: shared_from={} must name a layer with a cache of its own",
                             spec.layer, spec.shared_from);
    }
  }
  return absl::OkStatus();
}

std::vector<RoleSpec> SplitRoles(const std::vector<LayerCacheSpec>& specs) {
  std::vector<RoleSpec> split;
  for (const LayerCacheSpec& spec : specs) {
    if (spec.shared_from >= 0) continue;
    split.push_back({spec, RoleOf(spec.kind)});
    if (spec.remainder_window == 0) continue;
    // A remainder as wide as an entry is the current, unfinished one: a chunk. A wider one overlaps
    // the entries before: a window.
    const bool chunk = spec.remainder_window == spec.tokens_per_entry;
    split.push_back({{.layer = spec.layer,
                      .kind = chunk ? CacheKind::kChunkedLocal : CacheKind::kSlidingWindow,
                      .window = spec.remainder_window,
                      .key_bytes_per_page = spec.remainder_bytes_per_page},
                     CacheRole::kRemainder});
  }
  std::stable_sort(split.begin(), split.end(), [](const RoleSpec& a, const RoleSpec& b) {
    return std::pair(a.role, a.spec.layer) < std::pair(b.role, b.spec.layer);
  });
  return split;
}

std::vector<Kind> CollectKinds(int32_t block_size, const std::vector<RoleSpec>& specs) {
  std::vector<Kind> kinds;
  for (const RoleSpec& s : specs) {
    const LayerCacheSpec& spec = s.spec;
    const CacheGroup group{.kind = spec.kind,
                           .page_size = GroupPageSize(block_size, spec.tokens_per_entry),
                           .window = IsWindowed(spec.kind) ? spec.window : 0,
                           .tokens_per_entry = spec.tokens_per_entry,
                           .snapshot_interval = spec.kind != CacheKind::kState ? 0
                                                : spec.snapshot_interval > 0
                                                    ? spec.snapshot_interval
                                                    : kDefaultSnapshotInterval};
    const size_t bytes = spec.key_bytes_per_page + spec.value_bytes_per_page;
    const auto it = std::find_if(kinds.begin(), kinds.end(), [&](const Kind& k) {
      return k.group == group && k.layer_bytes == bytes;
    });
    (it == kinds.end() ? kinds.emplace_back(Kind{group, bytes, {}}) : *it).layers.push_back(&s);
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

CacheRole RoleOf(CacheKind kind) {
  switch (kind) {
    case CacheKind::kIndexer:
      return CacheRole::kIndexer;
    case CacheKind::kState:
      return CacheRole::kState;
    case CacheKind::kCrossAttention:
      return CacheRole::kCross;
    default:
      return CacheRole::kMain;
  }
}

LayerPlacement CacheLayout::placement(int32_t layer, CacheRole role) const {
  const auto i = static_cast<size_t>(layer);
  if (role == CacheRole::kMain) return layers[i];
  const std::vector<LayerPlacement>& of_role = other_roles[static_cast<size_t>(role)];
  return of_role.empty() ? LayerPlacement{} : of_role[i];
}

absl::StatusOr<CacheLayout> MakeCacheLayout(int32_t num_layers, int32_t block_size,
                                            const std::vector<LayerCacheSpec>& specs) {
  RETURN_IF_ERROR(Validate(num_layers, block_size, specs));
  CacheLayout layout;
  layout.block_size = block_size;
  layout.layers.resize(static_cast<size_t>(std::max(num_layers, 0)));
  const std::vector<RoleSpec> owners = SplitRoles(specs);
  const auto place = [&](int32_t layer, CacheRole role) -> LayerPlacement& {
    auto& of_role =
        role == CacheRole::kMain ? layout.layers : layout.other_roles[static_cast<size_t>(role)];
    of_role.resize(layout.layers.size());
    return of_role[static_cast<size_t>(layer)];
  };
  const std::vector<Kind> kinds = CollectKinds(block_size, owners);
  const std::optional<size_t> common = CommonPageBytes(kinds);
  for (const Kind& kind : kinds) {
    const size_t per_group = common ? *common / kind.layer_bytes : kind.layers.size();
    for (size_t begin = 0; begin < kind.layers.size(); begin += per_group) {
      size_t offset = 0;
      for (size_t i = begin; i < begin + per_group; ++i) {
        const LayerCacheSpec& spec = kind.layers[i]->spec;
        place(spec.layer, kind.layers[i]->role) = {
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
      if (KeepsAll(kind.group.kind)) {
        layout.bytes_per_token += static_cast<int64_t>(offset) / kind.group.page_size;
      }
    }
  }
  for (const LayerCacheSpec& spec : specs) {
    if (spec.shared_from < 0) continue;
    const CacheRole role = RoleOf(spec.kind);
    place(spec.layer, role) = layout.placement(spec.shared_from, role);
    if (spec.kind == CacheKind::kCompressed) {
      const LayerPlacement remainder = layout.placement(spec.shared_from, CacheRole::kRemainder);
      if (remainder.group >= 0) place(spec.layer, CacheRole::kRemainder) = remainder;
    }
  }
  return layout;
}

}  // namespace quire
