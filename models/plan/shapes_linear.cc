// models/plan/shapes_linear.cc -- models between attention and linear attention: gated delta rules,
// lightning attention, short convolutions. Selective state spaces are in shapes_state.cc.
//
// A state is one matrix per head in float32 and the columns of a short convolution; it does not
// grow with the sequence.
#include <algorithm>

#include "models/plan/shape_builder.h"
#include "models/plan/shape_readers.h"

namespace quire {
namespace {

constexpr std::string_view kLinear = "linear_attention";
constexpr std::string_view kFull = "full_attention";

// Gated delta rule: matrices of key_dim x value_dim for every value head.
struct DeltaSizes {
  int64_t key_heads = 1;
  int64_t value_heads = 1;
  int64_t key_dim = 1;
  int64_t value_dim = 1;
  int64_t kernel = 4;
};

DeltaSizes ReadDelta(ConfigKeys& k) {
  return {.key_heads = k.Need("linear_num_key_heads", kMaxHeads),
          .value_heads = k.Need("linear_num_value_heads", kMaxHeads),
          .key_dim = k.Need("linear_key_head_dim"),
          .value_dim = k.Need("linear_value_head_dim"),
          .kernel = k.Need("linear_conv_kernel_dim", 1024)};
}

CachePart DeltaPart(const DeltaSizes& s) {
  return StatePart(SaturatingProduct({s.value_heads, s.key_dim, s.value_dim}),
                   2 * s.key_heads * s.key_dim + s.value_heads * s.value_dim, s.kernel);
}

void CountDelta(ParameterCount& c, int64_t hidden, const DeltaSizes& s) {
  const int64_t channels = 2 * s.key_heads * s.key_dim + s.value_heads * s.value_dim;
  const int64_t values = s.value_heads * s.value_dim;
  c.Linear(hidden, channels + values + 2 * s.value_heads);  // q, k, v; gate; strength and decay
  c.Vector(SaturatingProduct({channels, s.kernel}));
  c.Vector(2 * s.value_heads + s.value_dim);
  c.Linear(values, hidden);
}

// Three delta layers to one of full attention with an output gate.
absl::StatusOr<ModelShape> ReadQwenHybrid(const JsonFields& fields, bool experts) {
  ShapeBuilder b = StartShape(fields);
  ConfigKeys& k = b.keys;
  const DeltaSizes s = ReadDelta(k);
  const int64_t interval = k.Get("full_attention_interval", 4, kMaxLayers);
  const std::vector<std::string> types = b.LayerTypes(
      "layer_types", EveryNth(b.num_layers, interval, kLinear, kFull), {kLinear, kFull});
  ParameterCount delta, attention, block;
  CountDelta(delta, b.hidden, s);
  CountAttention(attention, b.hidden,
                 {.sizes = b.attention, .qk_norm = QkNorm::kPerHead, .output_gate = true});
  int64_t mlp_dim = 0;
  if (experts) {
    const int64_t inner = k.Need("moe_intermediate_size");
    CountExperts(block, b.hidden, inner, k.Need("num_experts", kMaxExperts));
    CountMlp(block, b.hidden, k.Need("shared_expert_intermediate_size"), true);
    block.Linear(b.hidden, 1);
    mlp_dim = inner * k.Get("num_experts_per_tok", 8, 1024);
  } else {
    mlp_dim = k.Need("intermediate_size");
    CountMlp(block, b.hidden, mlp_dim, true);
  }
  block.Norm(2 * b.hidden);
  for (const std::string& type : types) {
    const bool full = type == kFull;
    b.count.Add(full ? attention : delta);
    b.count.Add(block);
    b.shape.layers.push_back({.parts = {full ? FullPart(b.attention) : DeltaPart(s)}});
  }
  b.CountEmbedding(false);
  b.count.Norm(b.hidden);
  return b.Finish(mlp_dim);
}

}  // namespace

absl::StatusOr<ModelShape> QwenHybridShape(const JsonFields& f) { return ReadQwenHybrid(f, false); }
absl::StatusOr<ModelShape> QwenHybridMoeShape(const JsonFields& f) {
  return ReadQwenHybrid(f, true);
}

absl::StatusOr<ModelShape> OlmoHybridShape(const JsonFields& fields) {
  ShapeBuilder b = StartShape(fields);
  ConfigKeys& k = b.keys;
  const DeltaSizes s = ReadDelta(k);
  const std::vector<std::string> types =
      b.LayerTypes("layer_types", EveryNth(b.num_layers, 4, kLinear, kFull), {kLinear, kFull});
  const int64_t inner = k.Need("intermediate_size");
  ParameterCount delta, attention, block;
  CountDelta(delta, b.hidden, s);
  CountAttention(attention, b.hidden, {.sizes = b.attention, .qk_norm = QkNorm::kWhole});
  CountMlp(block, b.hidden, inner, true);
  block.Norm(2 * b.hidden);
  for (const std::string& type : types) {
    const bool full = type == kFull;
    b.count.Add(full ? attention : delta);
    b.count.Add(block);
    CachePart part = full ? FullPart(b.attention) : DeltaPart(s);
    b.shape.layers.push_back({.parts = {part}});
  }
  b.CountEmbedding(false);
  b.count.Norm(b.hidden);
  return b.Finish(inner);
}

// Convolutions over a few tokens instead of attention on most layers.
absl::StatusOr<ModelShape> Lfm2Shape(const JsonFields& fields) {
  ShapeBuilder b = StartShape(fields);
  ConfigKeys& k = b.keys;
  std::vector<std::string> fallback = EveryNth(b.num_layers, 0, "conv", "");
  for (const int64_t i : k.Numbers("full_attn_idxs", -1, b.num_layers - 1)) {
    fallback[static_cast<size_t>(i)] = kFull;
  }
  const std::vector<std::string> types = b.LayerTypes("layer_types", fallback, {"conv", kFull});
  const int64_t kernel = k.Get("conv_L_cache", 3, 1024);
  const bool conv_bias = k.Flag("conv_bias", false);
  int64_t inner = k.NeedAny({"block_ff_dim", "intermediate_size"});
  const bool experts = k.Has("num_experts");
  if (!experts && k.Flag("block_auto_adjust_ff_dim", true)) {
    // Two thirds, times a factor, rounded up.
    const double factor = k.fields().json()["block_ffn_dim_multiplier"].as_double().value_or(1.0);
    const int64_t multiple = std::max<int64_t>(k.Get("block_multiple_of", 256), 1);
    if (!(factor > 0 && factor < 1024)) {
      k.Refuse("block_ffn_dim_multiplier", "must be in (0, 1024)");
    } else {
      inner = static_cast<int64_t>(factor * static_cast<double>(2 * inner / 3));
    }
    inner = (inner + multiple - 1) / multiple * multiple;
  }
  ParameterCount conv, attention, dense, sparse;
  conv.Linear(b.hidden, 3 * b.hidden, conv_bias);
  conv.Vector(b.hidden * kernel + (conv_bias ? b.hidden : 0));
  conv.Linear(b.hidden, b.hidden, conv_bias);
  CountAttention(attention, b.hidden, {.sizes = b.attention, .qk_norm = QkNorm::kPerHead});
  CountMlp(dense, b.hidden, inner, true);
  if (experts) {
    CountExperts(sparse, b.hidden, k.Need("moe_intermediate_size"),
                 k.Need("num_experts", kMaxExperts));
  }
  const int64_t num_dense = experts ? k.Get("num_dense_layers", 2, kMaxLayers) : b.num_layers;
  for (size_t i = 0; i < types.size(); ++i) {
    const bool full = types[i] == kFull;
    b.count.Add(full ? attention : conv);
    b.count.Add(static_cast<int64_t>(i) < num_dense ? dense : sparse);
    b.count.Norm(2 * b.hidden);
    // All `kernel` columns are read together with the new one, so kernel - 1 are kept.
    b.shape.layers.push_back(
        {.parts = {full ? FullPart(b.attention) : StatePart(0, b.hidden, kernel)}});
  }
  b.CountEmbedding(true);
  b.count.Norm(b.hidden);
  return b.Finish(std::max(inner, 3 * b.hidden));
}

// Lightning attention: a matrix of head_dim x head_dim per head, no convolution.
absl::StatusOr<ModelShape> MiniMaxShape(const JsonFields& fields) {
  ShapeBuilder b = StartShape(fields);
  ConfigKeys& k = b.keys;
  std::vector<std::string> fallback = EveryNth(b.num_layers, 2, kFull, kLinear);
  const std::vector<int64_t> old = k.Numbers("attn_type_list", b.num_layers, 1);
  for (size_t i = 0; i < old.size(); ++i) fallback[i] = old[i] == 1 ? kFull : kLinear;
  const std::vector<std::string> types = b.LayerTypes("layer_types", fallback, {kLinear, kFull});
  const int64_t width = b.attention.num_heads * b.attention.head_dim;
  const int64_t inner = k.Need("intermediate_size");
  ParameterCount state, attention, block;
  state.Linear(b.hidden, 4 * width);  // q, k, v and the gate
  state.Vector(width);
  state.Linear(width, b.hidden);
  CountAttention(attention, b.hidden, {.sizes = b.attention});
  CountExperts(block, b.hidden, inner, k.Need("num_local_experts", kMaxExperts));
  block.Norm(2 * b.hidden);
  for (const std::string& type : types) {
    const bool full = type == kFull;
    b.count.Add(full ? attention : state);
    b.count.Add(block);
    b.shape.layers.push_back(
        {.parts = {full ? FullPart(b.attention)
                        : StatePart(SaturatingProduct({width, b.attention.head_dim}), 0, 0)}});
  }
  b.CountEmbedding(false);
  b.count.Norm(b.hidden);
  return b.Finish(inner * k.Get("num_experts_per_tok", 2, 1024));
}

}  // namespace quire
