// models/plan/shapes_latent.cc -- latent attention (MLA), with and without a sparse indexer, and
// DeepSeek-V4's windows with compressed entries.
//
// MLA caches one latent (after its norm) and one rotated key part per token and layer; models of
// that kind state as many key-value heads as heads, so head counts tell nothing here.
#include <algorithm>

#include "models/plan/shape_builder.h"
#include "models/plan/shape_readers.h"

namespace quire {
namespace {

struct LatentSizes {
  int64_t q_rank = 0;  // 0: queries are projected at once
  int64_t kv_rank = 1;
  int64_t nope_dim = 1;
  int64_t rope_dim = 0;
  int64_t value_dim = 1;
  bool bias = false;
};

LatentSizes ReadLatent(ConfigKeys& k) {
  return {.q_rank = k.Get("q_lora_rank", 0),
          .kv_rank = k.Need("kv_lora_rank"),
          .nope_dim = k.Need("qk_nope_head_dim"),
          .rope_dim = k.Get("qk_rope_head_dim", 64),
          .value_dim = k.Need("v_head_dim"),
          .bias = k.Flag("attention_bias", false)};
}

void CountLatent(ParameterCount& c, int64_t hidden, int64_t heads, const LatentSizes& s) {
  const int64_t q_dim = heads * (s.nope_dim + s.rope_dim);
  if (s.q_rank > 0) {
    c.Linear(hidden, s.q_rank, s.bias);
    c.Vector(s.q_rank);
    c.Linear(s.q_rank, q_dim);
  } else {
    c.Linear(hidden, q_dim);
  }
  c.Linear(hidden, s.kv_rank + s.rope_dim, s.bias);
  c.Vector(s.kv_rank);
  c.Linear(s.kv_rank, heads * (s.nope_dim + s.value_dim));
  c.Linear(heads * s.value_dim, hidden, s.bias);
}

CachePart LatentPart(int64_t heads, const LatentSizes& s) {
  return {.kind = PartKind::kLatent,
          .latent_dim = s.kv_rank,
          .rope_dim = s.rope_dim,
          .plain_elements = heads * (s.nope_dim + s.rope_dim + s.value_dim)};
}

// Routed and shared experts of one layer.
ParameterCount Experts(ConfigKeys& k, int64_t hidden) {
  ParameterCount c;
  const int64_t inner = k.Need("moe_intermediate_size");
  CountExperts(c, hidden, inner, k.NeedAny({"n_routed_experts", "num_experts"}, kMaxExperts));
  const int64_t shared = k.Get("n_shared_experts", 1, 1024);
  if (shared > 0) CountMlp(c, hidden, inner * shared, true);
  return c;
}

struct Indexer {
  int64_t heads = 0;
  int64_t dim = 0;
};

// Which layers have an indexer of their own; the others reuse an earlier one's choice.
std::vector<bool> OwnIndexers(ShapeBuilder& b) {
  ConfigKeys& k = b.keys;
  std::vector<std::string> types = k.Names("indexer_types", b.num_layers);
  std::vector<bool> own(static_cast<size_t>(b.num_layers), true);
  if (!types.empty()) {
    for (size_t i = 0; i < types.size(); ++i) own[i] = types[i] != "shared";
    return own;
  }
  const int64_t freq = std::max<int64_t>(k.Get("index_topk_freq", 1, kMaxLayers), 1);
  const int64_t offset = k.Get("index_skip_topk_offset", 2, kMaxLayers);
  for (int64_t i = 0; i < b.num_layers; ++i) {
    own[static_cast<size_t>(i)] = std::max<int64_t>(i - offset + 1, 0) % freq == 0;
  }
  return own;
}

void SetWidths(ShapeBuilder& b, const LatentSizes& s) {
  const int64_t heads = b.attention.num_heads;
  b.shape.activations.q_dim = heads * (s.nope_dim + s.rope_dim);
  b.shape.activations.kv_dim = heads * (s.nope_dim + s.rope_dim);
  b.shape.activations.rotary_dims = {s.rope_dim};
  b.attention = {heads, 1, 0};
}

absl::StatusOr<ModelShape> ReadDeepseek(const JsonFields& fields, bool indexed) {
  ShapeBuilder b = StartShape(fields);
  ConfigKeys& k = b.keys;
  const int64_t heads = b.attention.num_heads;
  const LatentSizes s = ReadLatent(k);
  const int64_t wide = k.Need("intermediate_size");
  const int64_t first = std::min(k.Get("first_k_dense_replace", 0, kMaxLayers), b.num_layers);
  std::vector<std::string> blocks = k.Names("mlp_layer_types", b.num_layers);
  for (int64_t i = static_cast<int64_t>(blocks.size()); i < b.num_layers; ++i) {
    blocks.emplace_back(i < first ? "dense" : "sparse");
  }
  Indexer indexer;
  std::vector<bool> own(static_cast<size_t>(b.num_layers), false);
  if (indexed) {
    indexer = {k.Need("index_n_heads", kMaxHeads), k.Need("index_head_dim")};
    own = OwnIndexers(b);
  }
  ParameterCount attention, experts, dense, index;
  CountLatent(attention, b.hidden, heads, s);
  attention.Norm(2 * b.hidden);
  CountMlp(dense, b.hidden, wide, true);
  const bool any_sparse = std::find(blocks.begin(), blocks.end(), "sparse") != blocks.end();
  if (any_sparse) experts = Experts(k, b.hidden);
  index.Linear(s.q_rank, indexer.heads * indexer.dim);
  index.Linear(b.hidden, indexer.dim + indexer.heads);
  index.Norm(indexer.dim, true);
  for (int64_t i = 0; i < b.num_layers; ++i) {
    const auto at = static_cast<size_t>(i);
    LayerShape layer{.parts = {LatentPart(heads, s)}};
    b.count.Add(attention);
    b.count.Add(blocks[at] == "sparse" ? experts : dense);
    if (own[at]) {
      b.count.Add(index);
      layer.parts.push_back({.kind = PartKind::kIndexer, .key_dim = indexer.dim});
    }
    b.shape.layers.push_back(std::move(layer));
  }
  b.CountEmbedding(false);
  b.count.Norm(b.hidden);
  SetWidths(b, s);
  return b.Finish(wide);
}

}  // namespace

absl::StatusOr<ModelShape> DeepseekShape(const JsonFields& f) { return ReadDeepseek(f, false); }
absl::StatusOr<ModelShape> DeepseekIndexedShape(const JsonFields& f) {
  return ReadDeepseek(f, true);
}

// Two attentions and two dense blocks per layer beside one set of experts, some of which compute
// nothing (but have gate and up weights all the same).
absl::StatusOr<ModelShape> LongcatFlashShape(const JsonFields& fields) {
  ShapeBuilder b = StartShape(fields);
  ConfigKeys& k = b.keys;
  if (k.Has("num_layers")) b.num_layers = k.Need("num_layers", kMaxLayers);
  const int64_t heads = b.attention.num_heads;
  const LatentSizes s = ReadLatent(k);
  const int64_t wide = k.Need("ffn_hidden_size");
  const int64_t inner = k.Need("expert_ffn_hidden_size");
  const int64_t experts = k.Need("n_routed_experts", kMaxExperts);
  const int64_t zero = k.Get("zero_expert_num", 0, kMaxExperts);
  ParameterCount half;
  CountLatent(half, b.hidden, heads, s);
  half.Norm(2 * b.hidden);
  CountMlp(half, b.hidden, wide, true);
  ParameterCount layer;
  layer.Add(half, 2);
  layer.Linear(b.hidden, experts + zero);
  ParameterCount in, out;
  in.Linear(b.hidden, 2 * inner);
  out.Linear(inner, b.hidden);
  layer.Add(in, experts + zero);
  layer.Add(out, experts);
  b.count.Add(layer, b.num_layers);
  b.CountEmbedding(false);
  b.count.Norm(b.hidden);
  b.shape.layers.assign(static_cast<size_t>(2 * b.num_layers), {.parts = {LatentPart(heads, s)}});
  SetWidths(b, s);
  return b.Finish(wide);
}

namespace {

// Keys are values, so one array serves as both. Published as compress_rates by name; older configs
// give a ratio per layer.
struct Compression {
  std::vector<std::string> types;
  int64_t sparse_rate = 4;
  int64_t heavy_rate = 128;
};

constexpr std::string_view kSparse = "compressed_sparse_attention";
constexpr std::string_view kHeavy = "heavily_compressed_attention";

Compression ReadCompression(ShapeBuilder& b) {
  ConfigKeys& k = b.keys;
  Compression c;
  c.sparse_rate = k.Get("compress_rate_csa", 4, 1 << 20);
  c.heavy_rate = k.Get("compress_rate_hca", 128, 1 << 20);
  if (k.Has("compress_rates")) {
    ConfigKeys rates = k.Object("compress_rates");
    c.sparse_rate = rates.Get(kSparse, c.sparse_rate, 1 << 20);
    c.heavy_rate = rates.Get(kHeavy, c.heavy_rate, 1 << 20);
    k.Keep(rates.status());
  }
  c.sparse_rate = std::max<int64_t>(c.sparse_rate, 1);
  c.heavy_rate = std::max<int64_t>(c.heavy_rate, 1);
  std::vector<std::string> fallback;
  // One more than layers where draft layers are listed, too.
  const std::vector<int64_t> ratios = k.Numbers("compress_ratios", -1, 1 << 20);
  for (size_t i = 0; i < static_cast<size_t>(b.num_layers); ++i) {
    if (i < ratios.size()) {
      fallback.emplace_back(ratios[i] == 0               ? "sliding_attention"
                            : ratios[i] == c.sparse_rate ? kSparse
                                                         : kHeavy);
    } else {
      fallback.emplace_back(i < 2 || i % 2 == 0 ? kHeavy : kSparse);
    }
  }
  c.types =
      b.LayerTypes("layer_types", std::move(fallback), {"sliding_attention", kSparse, kHeavy});
  return c;
}

// Entries of `dim` elements that pool `rate` tokens, projected to `series` * dim first. With two
// series neighbouring entries overlap: the last window's tokens are kept for the next.
CachePart CompressedPart(PartKind kind, int64_t dim, int64_t rate, int64_t series) {
  CachePart part{.kind = kind, .key_dim = dim, .tokens_per_entry = rate};
  part.buffer_elements = 2 * series * dim;  // keys and gates
  part.overlap_elements = series > 1 ? 2 * rate * dim : 0;
  if (kind == PartKind::kCompressed) part.plain_elements = dim;
  return part;
}

void CountCompressor(ParameterCount& c, int64_t hidden, int64_t dim, int64_t rate, int64_t series) {
  c.Vector(rate * series * dim);  // position bias
  c.Vector(dim);
  c.Linear(hidden, 2 * series * dim);
}

}  // namespace

absl::StatusOr<ModelShape> DeepseekV4Shape(const JsonFields& fields) {
  ShapeBuilder b = StartShape(fields);
  ConfigKeys& k = b.keys;
  const int64_t heads = b.attention.num_heads;
  const int64_t dim = b.attention.head_dim;
  const int64_t q_rank = k.Need("q_lora_rank");
  const int64_t out_dim = k.Need("o_groups", kMaxHeads) * k.Need("o_lora_rank");
  const int64_t streams = k.Need("hc_mult", 1024);
  const int64_t window = k.Need("sliding_window", kMaxPosition);
  const Indexer indexer{k.Need("index_n_heads", kMaxHeads), k.Need("index_head_dim")};
  const Compression compression = ReadCompression(b);

  ParameterCount attention;
  attention.Linear(b.hidden, q_rank);
  attention.Vector(q_rank);
  attention.Linear(q_rank, heads * dim);
  attention.Linear(b.hidden, dim);
  attention.Vector(dim);
  attention.Linear(heads * dim, k.Need("o_lora_rank"));
  attention.Linear(out_dim, b.hidden);
  attention.Vector(heads);  // sinks
  attention.Norm(2 * b.hidden);
  ParameterCount mix;  // of the residual streams, before attention and before the experts
  mix.Linear(streams * b.hidden, (2 + streams) * streams, true);
  mix.Vector(3);
  attention.Add(mix, 2);
  attention.Add(Experts(k, b.hidden));
  ParameterCount sparse, heavy;
  CountCompressor(sparse, b.hidden, dim, compression.sparse_rate, 2);
  CountCompressor(sparse, b.hidden, indexer.dim, compression.sparse_rate, 2);
  sparse.Linear(q_rank, indexer.heads * indexer.dim);
  sparse.Linear(b.hidden, indexer.heads);
  CountCompressor(heavy, b.hidden, dim, compression.heavy_rate, 1);

  CachePart near{.kind = PartKind::kSliding, .key_dim = dim, .window = window};
  for (const std::string& type : compression.types) {
    LayerShape layer{.parts = {near}};
    b.count.Add(attention);
    if (type == kSparse || type == kHeavy) layer.parts[0].beside_compressed = true;
    if (type == kSparse) {
      b.count.Add(sparse);
      layer.parts.push_back(CompressedPart(PartKind::kCompressed, dim, compression.sparse_rate, 2));
      layer.parts.push_back(
          CompressedPart(PartKind::kIndexer, indexer.dim, compression.sparse_rate, 2));
    } else if (type == kHeavy) {
      b.count.Add(heavy);
      layer.parts.push_back(CompressedPart(PartKind::kCompressed, dim, compression.heavy_rate, 1));
    }
    b.shape.layers.push_back(std::move(layer));
  }
  b.CountEmbedding(false);
  b.count.Norm(b.hidden);
  b.count.Linear(streams * b.hidden, streams, true);
  b.count.Vector(1);
  return b.Finish(k.Need("moe_intermediate_size") * k.Get("num_experts_per_tok", 6, 1024));
}

// Delta attention on most layers, latent attention with an indexer on the others; several residual
// streams. Multimodal: only the language model is counted.
absl::StatusOr<ModelShape> Glm5NextShape(const JsonFields& fields) {
  ShapeBuilder b = StartShape(fields);
  ConfigKeys& k = b.keys;
  const int64_t heads = b.attention.num_heads;
  const LatentSizes s = ReadLatent(k);
  const Indexer indexer{k.Need("index_n_heads", kMaxHeads), k.Need("index_head_dim")};
  const int64_t pool = k.Get("index_kpool", 1, 1024);
  const int64_t streams = k.Need("hc_mult", 1024);
  const int64_t state_heads = k.Need("linear_num_heads", kMaxHeads);
  const int64_t state_dim = k.Need("linear_head_dim");
  const int64_t kernel = k.Need("linear_conv_kernel_dim", 1024);
  const int64_t width = state_heads * state_dim;
  const std::vector<std::string> types = b.LayerTypes(
      "layer_types", EveryNth(b.num_layers, 4, "linear_attention", "deepseek_sparse_attention"),
      {"linear_attention", "deepseek_sparse_attention", "full_attention"});
  std::vector<std::string> blocks = k.Names("mlp_layer_types", b.num_layers);
  for (int64_t i = static_cast<int64_t>(blocks.size()); i < b.num_layers; ++i) {
    blocks.emplace_back(i < 3 ? "dense" : "sparse");
  }
  const std::vector<bool> own = OwnIndexers(b);
  const int64_t wide = k.Need("intermediate_size");

  ParameterCount state, latent, index, mix, dense;
  state.Linear(b.hidden, width);      // q
  state.Linear(b.hidden, 2 * width);  // k, v
  state.Vector(3 * width * kernel);
  state.Linear(b.hidden, state_heads);    // write strength
  state.Vector(state_heads + width);      // decay
  state.Linear(b.hidden, 2 * state_dim);  // gates, low rank
  state.Linear(state_dim, 2 * width);
  state.Vector(state_dim);
  state.Linear(width, b.hidden);
  CountLatent(latent, b.hidden, heads, s);
  index.Linear(s.q_rank, indexer.heads * indexer.dim);
  index.Linear(b.hidden, 2 * indexer.dim + indexer.heads);
  index.Vector(pool * indexer.dim);
  index.Norm(indexer.dim, true);
  mix.Linear(streams * b.hidden, (2 + streams) * streams, true);
  mix.Vector(3);
  CountMlp(dense, b.hidden, wide, true);
  const ParameterCount experts = Experts(k, b.hidden);
  for (size_t i = 0; i < types.size(); ++i) {
    LayerShape layer;
    if (types[i] == "linear_attention") {
      b.count.Add(state);
      layer.parts = {StatePart(width * state_dim, 3 * width, kernel)};
    } else {
      b.count.Add(latent);
      layer.parts = {LatentPart(heads, s)};
      if (own[i]) {
        b.count.Add(index);
        // The key, its gate and its place in the pool.
        layer.parts.push_back({.kind = PartKind::kIndexer, .key_dim = 2 * indexer.dim + 1});
      }
    }
    b.count.Norm(2 * b.hidden);
    b.count.Add(mix, 2);
    b.count.Add(blocks[i] == "sparse" ? experts : dense);
    b.shape.layers.push_back(std::move(layer));
  }
  b.CountEmbedding(false);
  b.count.Norm(b.hidden);
  SetWidths(b, s);
  return b.Finish(wide);
}

}  // namespace quire
