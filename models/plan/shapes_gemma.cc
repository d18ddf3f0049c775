// models/plan/shapes_gemma.cc -- Gemma 3n and 4: the last layers read the cache of the last layer
// of their own kind that has one; inputs per layer; wider heads on full layers.
#include <algorithm>
#include <map>

#include "models/plan/shape_builder.h"
#include "models/plan/shape_readers.h"

namespace quire {
namespace {

constexpr std::string_view kSliding = "sliding_attention";
constexpr std::string_view kFull = "full_attention";

// Appends a layer that caches, or that reads the last one of its type that does.
void AppendLayer(ShapeBuilder& b, const std::vector<std::string>& types, size_t index, bool shares,
                 const CachePart& part) {
  if (!shares) {
    b.shape.layers.push_back({.parts = {part}});
    return;
  }
  LayerShape layer;
  for (size_t i = index; i-- > 0;) {
    if (types[i] == types[index] && !b.shape.layers[i].parts.empty()) {
      layer.shared_from = static_cast<int32_t>(i);
      break;
    }
  }
  if (layer.shared_from < 0) {
    b.keys.Refuse("num_kv_shared_layers",
                  fmt::format("leaves no {} layer to share from", types[index]));
  }
  b.shape.layers.push_back(layer);
}

// Embeddings that every layer adds for itself.
void CountInputsPerLayer(ParameterCount& model, ParameterCount& layer, const ShapeBuilder& b,
                         int64_t dim, int64_t vocab) {
  if (dim == 0) return;
  const int64_t width = b.num_layers * dim;
  model.Linear(vocab, width);
  model.Linear(b.hidden, width);
  model.Vector(dim);
  layer.Linear(b.hidden, dim);
  layer.Linear(dim, b.hidden);
  layer.Vector(b.hidden);
}

}  // namespace

absl::StatusOr<ModelShape> Gemma3nShape(const JsonFields& fields) {
  ShapeBuilder b = StartShape(fields);
  ConfigKeys& k = b.keys;
  const std::vector<std::string> types =
      b.LayerTypes("layer_types", EveryNth(b.num_layers, 5, kSliding, kFull), {kSliding, kFull});
  const int64_t window = k.Get("sliding_window", 512, kMaxPosition);
  const int64_t shared = std::min(k.Get("num_kv_shared_layers", 15, kMaxLayers), b.num_layers);
  const int64_t streams = k.Get("altup_num_inputs", 4, 1024);
  const int64_t rank = k.Get("laurel_rank", 64);
  std::vector<int64_t> inner;
  if (k.fields().json()["intermediate_size"].is_array()) {
    inner = k.Numbers("intermediate_size", b.num_layers);
  }
  if (inner.empty()) {
    inner.assign(static_cast<size_t>(b.num_layers), k.Need("intermediate_size"));
  }
  inner.resize(static_cast<size_t>(b.num_layers));

  ParameterCount layer;
  layer.Vector(6 * b.hidden);  // four norms, the scale and the norm of the streams
  layer.Vector(streams * streams + streams * streams * streams);
  layer.Linear(b.hidden, streams);
  layer.Linear(b.hidden, 2 * rank);
  layer.Vector(b.hidden);
  CountInputsPerLayer(b.count, layer, b, k.Get("hidden_size_per_layer_input", 256),
                      k.Get("vocab_size_per_layer_input", 262144, kMaxVocab));
  for (size_t i = 0; i < types.size(); ++i) {
    const bool shares = static_cast<int64_t>(i) >= b.num_layers - shared;
    b.count.Add(layer);
    CountAttention(b.count, b.hidden,
                   {.sizes = b.attention, .qk_norm = QkNorm::kPerHead, .shares_kv = shares});
    CountMlp(b.count, b.hidden, inner[i], true);
    AppendLayer(b, types, i, shares, SlidingPart(b.attention, types[i] == kFull ? 0 : window));
  }
  b.count.Linear(b.hidden, SaturatingProduct({2 * std::max<int64_t>(streams - 1, 0), b.hidden}));
  b.CountEmbedding(true);
  b.count.Norm(b.hidden);
  return b.Finish(*std::max_element(inner.begin(), inner.end()));
}

absl::StatusOr<ModelShape> Gemma4Shape(const JsonFields& fields) {
  ShapeBuilder b = StartShape(fields);
  ConfigKeys& k = b.keys;
  const std::vector<std::string> types =
      b.LayerTypes("layer_types", EveryNth(b.num_layers, 6, kSliding, kFull), {kSliding, kFull});
  const int64_t window = k.Get("sliding_window", 512, kMaxPosition);
  const int64_t shared = std::min(k.Get("num_kv_shared_layers", 0, kMaxLayers), b.num_layers);
  const bool k_is_v = k.Flag("attention_k_eq_v", false);
  const bool wide_mlp = k.Flag("use_double_wide_mlp", false);
  const int64_t inner = k.Need("intermediate_size");
  // Full layers have heads of their own size: listed per layer, or by two keys for all of them.
  AttentionSizes global = b.attention;
  global.head_dim = k.Get("global_head_dim", 512);
  if (k_is_v) global.num_kv_heads = k.Get("num_global_key_value_heads", global.num_kv_heads);
  std::vector<AttentionSizes> sizes;
  ConfigKeys overrides = k.Object("per_layer_config");
  for (size_t i = 0; i < types.size(); ++i) {
    AttentionSizes s = b.attention;
    if (k.Has("per_layer_config")) {
      ConfigKeys own = overrides.Object(fmt::format("{}", i));
      s.head_dim = own.Get("head_dim", s.head_dim);
      s.num_kv_heads = own.Get("num_key_value_heads", s.num_kv_heads, kMaxHeads);
      k.Keep(own.status());
    } else if (types[i] == kFull) {
      s = global;
    }
    sizes.push_back(s);
  }
  k.Keep(overrides.status());

  ParameterCount layer;
  layer.Vector(4 * b.hidden);
  CountInputsPerLayer(b.count, layer, b, k.Get("hidden_size_per_layer_input", 256),
                      k.Get("vocab_size_per_layer_input", 262144, kMaxVocab));
  if (k.Flag("enable_moe_block", false)) {
    const int64_t experts = k.Need("num_experts", kMaxExperts);
    CountExperts(layer, b.hidden, k.Need("moe_intermediate_size"), experts);
    layer.Vector(experts + b.hidden);  // router scales
    layer.Vector(3 * b.hidden);
  }
  for (size_t i = 0; i < types.size(); ++i) {
    const bool full = types[i] == kFull;
    const bool shares = shared < b.num_layers && static_cast<int64_t>(i) >= b.num_layers - shared;
    b.count.Add(layer);
    CountAttention(b.count, b.hidden,
                   {.sizes = sizes[i],
                    .qk_norm = QkNorm::kPerHead,
                    .shares_kv = shares,
                    .k_is_v = k_is_v && full});
    CountMlp(b.count, b.hidden, wide_mlp && shares ? 2 * inner : inner, true);
    AppendLayer(b, types, i, shares, SlidingPart(sizes[i], full ? 0 : window));
    ActivationShape& a = b.shape.activations;
    a.q_dim = std::max(a.q_dim, sizes[i].num_heads * sizes[i].head_dim);
    a.kv_dim = std::max(a.kv_dim, sizes[i].num_kv_heads * sizes[i].head_dim);
  }
  b.CountEmbedding(true);
  b.count.Norm(b.hidden);
  return b.Finish(inner);
}

}  // namespace quire
