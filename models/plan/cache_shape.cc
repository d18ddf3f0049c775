#include "models/plan/cache_shape.h"

#include <algorithm>

namespace quire {

int64_t SaturatingProduct(std::initializer_list<int64_t> factors) {
  int64_t product = 1;
  for (const int64_t factor : factors) {
    DCHECK(factor >= 0, "factor {}", factor);
    if (factor == 0) return 0;
    if (__builtin_mul_overflow(product, factor, &product) || product > kTooLarge) {
      product = kTooLarge;
    }
  }
  return product;
}

int64_t SaturatingSum(std::initializer_list<int64_t> terms) {
  int64_t sum = 0;
  for (const int64_t term : terms) {
    DCHECK(term >= 0, "term {}", term);
    if (__builtin_add_overflow(sum, term, &sum)) return kTooLarge;
  }
  return std::min(sum, kTooLarge);
}

std::string_view NameOf(PartKind kind) {
  switch (kind) {
    case PartKind::kFull:
      return "full";
    case PartKind::kSliding:
      return "sliding";
    case PartKind::kChunked:
      return "chunked";
    case PartKind::kLatent:
      return "latent";
    case PartKind::kCompressed:
      return "compressed";
    case PartKind::kIndexer:
      return "indexer";
    case PartKind::kState:
      return "state";
    case PartKind::kCross:
      return "cross";
  }
  return "?";
}

int64_t ElementsPerEntry(const CachePart& part) {
  switch (part.kind) {
    case PartKind::kState:
      return 0;
    case PartKind::kLatent:
      return SaturatingSum({part.latent_dim, part.rope_dim});
    default:
      return SaturatingProduct({part.kv_heads, SaturatingSum({part.key_dim, part.value_dim})});
  }
}

int64_t VectorsPerEntry(const CachePart& part) {
  switch (part.kind) {
    case PartKind::kState:
      return 0;
    case PartKind::kLatent:
      return part.rope_dim > 0 ? 2 : 1;
    default:
      return SaturatingProduct({part.kv_heads, part.value_dim > 0 ? 2 : 1});
  }
}

int64_t EntriesAt(const CachePart& part, int64_t tokens, bool capped) {
  switch (part.kind) {
    case PartKind::kState:
      return 0;
    case PartKind::kSliding:
    case PartKind::kChunked:
      // The next query sees `window` keys with its own, so one less is kept.
      return capped ? std::min(tokens, std::max<int64_t>(part.window - 1, 0)) : tokens;
    default:
      return tokens / std::max<int64_t>(part.tokens_per_entry, 1);
  }
}

std::vector<PartGroup> GroupParts(const ModelShape& shape) {
  std::vector<PartGroup> groups;
  for (const LayerShape& layer : shape.layers) {
    for (const CachePart& part : layer.parts) {
      const auto it = std::find_if(groups.begin(), groups.end(),
                                   [&](const PartGroup& g) { return g.part == part; });
      if (it == groups.end()) {
        groups.push_back({part, 1});
      } else {
        ++it->num_layers;
      }
    }
  }
  return groups;
}

absl::Status CheckShape(const ModelShape& shape) {
  if (shape.parameters >= kTooLarge) {
    return InvalidArgument("{}: the sizes in its config multiply to more than 2^60 parameters",
                           shape.name);
  }
  const ActivationShape& a = shape.activations;
  constexpr int64_t kWidest = int64_t{1} << 32;
  if (std::max({a.hidden_dim, a.q_dim, a.kv_dim, a.mlp_dim, a.vocab_size}) > kWidest) {
    return InvalidArgument("{}: the sizes in its config give activations wider than 2^32",
                           shape.name);
  }
  int64_t per_token = 0;
  int64_t fixed = 0;
  for (const LayerShape& layer : shape.layers) {
    for (const CachePart& part : layer.parts) {
      if (part.kind != PartKind::kState &&
          (ElementsPerEntry(part) < 1 || part.kv_heads < 1 || part.kv_heads > shape.num_heads)) {
        return InvalidArgument(
            "{}: its config gives a {} layer {} key-value heads and {} elements "
            "per entry; both must be 1 or more, and heads at most {}",
            shape.name, NameOf(part.kind), part.kv_heads, ElementsPerEntry(part), shape.num_heads);
      }
      per_token = SaturatingSum({per_token, ElementsPerEntry(part), part.plain_elements});
      fixed = SaturatingSum({fixed, part.recurrent_elements, part.overlap_elements,
                             SaturatingProduct({part.conv_channels, part.conv_kernel}),
                             SaturatingProduct({part.buffer_elements, part.tokens_per_entry})});
    }
  }
  // Bytes of kMaxPosition tokens stay below 2^60.
  constexpr int64_t kMost = int64_t{1} << 27;
  if (per_token > kMost || fixed > kMost << 20) {
    return InvalidArgument(
        "{}: its config gives {} cached elements per token and {} per sequence, "
        "limits are {} and {}",
        shape.name, per_token, fixed, kMost, kMost << 20);
  }
  return absl::OkStatus();
}

}  // namespace quire
