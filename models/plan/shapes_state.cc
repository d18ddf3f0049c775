// models/plan/shapes_state.cc -- models with recurrent layers: selective state spaces, gated delta
// rules, lightning attention, short convolutions; alone, between attention layers or beside them.
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

// Selective state space, second form: heads of `head_dim` with `state_size` each, in groups that
// share their input and output matrices.
struct Mamba2Sizes {
  int64_t inner = 1;
  int64_t heads = 1;
  int64_t state_size = 1;
  int64_t groups = 1;
  int64_t kernel = 4;
  bool conv_bias = true;
  bool bias = false;
  bool norm = true;
};

void CountMamba2(ParameterCount& c, int64_t hidden, const Mamba2Sizes& s) {
  const int64_t channels = s.inner + 2 * s.groups * s.state_size;
  c.Linear(hidden, s.inner + channels + s.heads, s.bias);
  c.Vector(SaturatingProduct({channels, s.kernel}));
  if (s.conv_bias) c.Vector(channels);
  c.Vector(3 * s.heads);  // decay, skip, step bias
  if (s.norm) c.Vector(s.inner);
  c.Linear(s.inner, hidden, s.bias);
}

CachePart Mamba2Part(const Mamba2Sizes& s) {
  return StatePart(SaturatingProduct({s.inner, s.state_size}),
                   s.inner + 2 * s.groups * s.state_size, s.kernel);
}

// Keys with the prefix "mamba_".
Mamba2Sizes ReadMamba2(ConfigKeys& k, int64_t hidden) {
  Mamba2Sizes s;
  s.inner = hidden * k.Get("mamba_expand", 2, 1024);
  if (k.Has("mamba_d_ssm")) s.inner = k.Need("mamba_d_ssm");
  s.heads = k.Need("mamba_n_heads", kMaxHeads);
  s.state_size = k.Need("mamba_d_state");
  s.groups = k.Get("mamba_n_groups", 1, kMaxHeads);
  s.kernel = k.Get("mamba_d_conv", 4, 1024);
  s.conv_bias = k.Flag("mamba_conv_bias", true);
  s.bias = k.Flag("mamba_proj_bias", false);
  return s;
}

// First form: one channel each, no heads; the step has a low rank.
struct Mamba1Sizes {
  int64_t inner = 1;
  int64_t state_size = 1;
  int64_t rank = 1;
  int64_t kernel = 4;
  bool conv_bias = true;
  bool bias = false;
  bool norms = false;  // of step, input and output
};

void CountMamba1(ParameterCount& c, int64_t hidden, const Mamba1Sizes& s) {
  c.Linear(hidden, 2 * s.inner, s.bias);
  c.Vector(SaturatingProduct({s.inner, s.kernel}));
  if (s.conv_bias) c.Vector(s.inner);
  c.Linear(s.inner, s.rank + 2 * s.state_size);
  c.Linear(s.rank, s.inner, true);
  c.Vector(SaturatingProduct({s.inner, s.state_size}));
  c.Vector(s.inner);
  if (s.norms) c.Vector(s.rank + 2 * s.state_size);
  c.Linear(s.inner, hidden, s.bias);
}

CachePart Mamba1Part(const Mamba1Sizes& s) {
  return StatePart(SaturatingProduct({s.inner, s.state_size}), s.inner, s.kernel);
}

// "auto" or a number.
int64_t TimeStepRank(ConfigKeys& k, std::string_view key, int64_t hidden) {
  const bool automatic = !k.Has(key) || k.fields().json()[key].is_string();
  return automatic ? (hidden + 15) / 16 : k.Need(key);
}

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

absl::StatusOr<ModelShape> MambaShape(const JsonFields& fields) {
  ShapeBuilder b = StartShape(fields, false);
  ConfigKeys& k = b.keys;
  const Mamba1Sizes s{.inner = b.hidden * k.Get("expand", 2, 1024),
                      .state_size = k.Need("state_size"),
                      .rank = TimeStepRank(k, "time_step_rank", b.hidden),
                      .kernel = k.Get("conv_kernel", 4, 1024),
                      .conv_bias = k.Flag("use_conv_bias", true),
                      .bias = k.Flag("use_bias", false)};
  ParameterCount layer;
  CountMamba1(layer, b.hidden, s);
  layer.Norm(b.hidden);
  b.count.Add(layer, b.num_layers);
  b.shape.layers.assign(static_cast<size_t>(b.num_layers), {.parts = {Mamba1Part(s)}});
  b.CountEmbedding(true);
  b.count.Norm(b.hidden);
  return b.Finish(2 * s.inner);
}

absl::StatusOr<ModelShape> Mamba2Shape(const JsonFields& fields) {
  ShapeBuilder b = StartShape(fields, false);
  ConfigKeys& k = b.keys;
  const Mamba2Sizes s{.inner = b.hidden * k.Get("expand", 2, 1024),
                      .heads = k.Need("num_heads", kMaxHeads),
                      .state_size = k.Need("state_size"),
                      .groups = k.Get("n_groups", 1, kMaxHeads),
                      .kernel = k.Get("conv_kernel", 4, 1024),
                      .conv_bias = k.Flag("use_conv_bias", true),
                      .bias = k.Flag("use_bias", false)};
  ParameterCount layer;
  CountMamba2(layer, b.hidden, s);
  layer.Norm(b.hidden);
  b.count.Add(layer, b.num_layers);
  b.shape.layers.assign(static_cast<size_t>(b.num_layers), {.parts = {Mamba2Part(s)}});
  b.CountEmbedding(false);
  b.count.Norm(b.hidden);
  return b.Finish(2 * s.inner);
}

absl::StatusOr<ModelShape> JambaShape(const JsonFields& fields) {
  ShapeBuilder b = StartShape(fields);
  ConfigKeys& k = b.keys;
  const Mamba1Sizes s{.inner = b.hidden * k.Get("mamba_expand", 2, 1024),
                      .state_size = k.Need("mamba_d_state"),
                      .rank = TimeStepRank(k, "mamba_dt_rank", b.hidden),
                      .kernel = k.Get("mamba_d_conv", 4, 1024),
                      .conv_bias = k.Flag("mamba_conv_bias", true),
                      .bias = k.Flag("mamba_proj_bias", false),
                      .norms = true};
  const int64_t attn_period = k.Need("attn_layer_period", kMaxLayers);
  const int64_t attn_offset = k.Get("attn_layer_offset", 4, kMaxLayers);
  const int64_t expert_period = k.Need("expert_layer_period", kMaxLayers);
  const int64_t expert_offset = k.Get("expert_layer_offset", 1, kMaxLayers);
  const int64_t num_experts = k.Get("num_experts", 16, kMaxExperts);
  const int64_t inner = k.Need("intermediate_size");
  ParameterCount mamba, attention, dense, experts;
  CountMamba1(mamba, b.hidden, s);
  CountAttention(attention, b.hidden, {.sizes = b.attention});
  CountMlp(dense, b.hidden, inner, true);
  CountExperts(experts, b.hidden, inner, num_experts);
  for (int64_t i = 0; i < b.num_layers; ++i) {
    const bool full = i % attn_period == attn_offset;
    const bool sparse = num_experts > 1 && i % expert_period == expert_offset;
    b.count.Add(full ? attention : mamba);
    b.count.Add(sparse ? experts : dense);
    b.count.Norm(2 * b.hidden);
    b.shape.layers.push_back({.parts = {full ? FullPart(b.attention) : Mamba1Part(s)}});
  }
  b.CountEmbedding(false);
  b.count.Norm(b.hidden);
  return b.Finish(2 * s.inner);
}

absl::StatusOr<ModelShape> BambaShape(const JsonFields& fields) {
  ShapeBuilder b = StartShape(fields);
  ConfigKeys& k = b.keys;
  const Mamba2Sizes s = ReadMamba2(k, b.hidden);
  const std::vector<int64_t> full = k.Numbers("attn_layer_indices", -1, kMaxLayers);
  const int64_t inner = k.Need("intermediate_size");
  const bool bias = k.Flag("attention_bias", false);
  ParameterCount mamba, attention, block;
  CountMamba2(mamba, b.hidden, s);
  CountAttention(attention, b.hidden, {.sizes = b.attention, .qkv_bias = bias, .o_bias = bias});
  CountMlp(block, b.hidden, inner, true, k.Flag("mlp_bias", false));
  block.Norm(2 * b.hidden);
  for (int64_t i = 0; i < b.num_layers; ++i) {
    const bool attends = std::find(full.begin(), full.end(), i) != full.end();
    b.count.Add(attends ? attention : mamba);
    b.count.Add(block);
    b.shape.layers.push_back({.parts = {attends ? FullPart(b.attention) : Mamba2Part(s)}});
  }
  b.CountEmbedding(false);
  b.count.Norm(b.hidden);
  return b.Finish(std::max(inner, 2 * s.inner));
}

absl::StatusOr<ModelShape> GraniteHybridShape(const JsonFields& fields) {
  ShapeBuilder b = StartShape(fields);
  ConfigKeys& k = b.keys;
  const std::vector<std::string> types =
      b.LayerTypes("layer_types", EveryNth(b.num_layers, 0, kLinear, ""), {kLinear, kFull});
  const bool any_state = std::find(types.begin(), types.end(), kLinear) != types.end();
  const Mamba2Sizes s = any_state ? ReadMamba2(k, b.hidden) : Mamba2Sizes{};
  const int64_t experts = k.Get("num_local_experts", 0, kMaxExperts);
  const int64_t shared = k.Need("shared_intermediate_size");
  const bool bias = k.Flag("attention_bias", false);
  ParameterCount mamba, attention, block;
  CountMamba2(mamba, b.hidden, s);
  CountAttention(attention, b.hidden, {.sizes = b.attention, .qkv_bias = bias, .o_bias = bias});
  if (experts > 0) CountExperts(block, b.hidden, k.Need("intermediate_size"), experts);
  CountMlp(block, b.hidden, shared, true);
  block.Norm(2 * b.hidden);
  for (const std::string& type : types) {
    const bool full = type == kFull;
    b.count.Add(full ? attention : mamba);
    b.count.Add(block);
    b.shape.layers.push_back({.parts = {full ? FullPart(b.attention) : Mamba2Part(s)}});
  }
  b.CountEmbedding(false);
  b.count.Norm(b.hidden);
  return b.Finish(std::max(shared, 2 * s.inner));
}

// State and attention side by side in every layer.
absl::StatusOr<ModelShape> FalconH1Shape(const JsonFields& fields) {
  ShapeBuilder b = StartShape(fields);
  ConfigKeys& k = b.keys;
  Mamba2Sizes s = ReadMamba2(k, b.hidden);
  s.norm = k.Flag("mamba_rms_norm", true);
  const bool bias = k.Flag("attention_bias", false);
  const int64_t inner = k.Need("intermediate_size");
  ParameterCount layer;
  CountMamba2(layer, b.hidden, s);
  CountAttention(layer, b.hidden, {.sizes = b.attention, .qkv_bias = bias, .o_bias = bias});
  CountMlp(layer, b.hidden, inner, true, k.Flag("mlp_bias", false));
  layer.Norm(2 * b.hidden);
  b.count.Add(layer, b.num_layers);
  b.shape.layers.assign(static_cast<size_t>(b.num_layers),
                        {.parts = {FullPart(b.attention), Mamba2Part(s)}});
  b.CountEmbedding(false);
  b.count.Norm(b.hidden);
  return b.Finish(std::max(inner, 2 * s.inner));
}

// One block per layer: state, attention, dense or experts, by a list or by a pattern of letters.
absl::StatusOr<ModelShape> NemotronHShape(const JsonFields& fields) {
  ShapeBuilder b(fields);
  ConfigKeys& k = b.keys;
  std::vector<std::string> types = k.Names("layers_block_type", -1);
  if (types.empty()) types = k.Names("layer_types", -1);
  if (types.empty()) {
    for (const char c : k.Text("hybrid_override_pattern", "")) {
      types.emplace_back(c == 'M'   ? kLinear
                         : c == '*' ? kFull
                         : c == 'E' ? std::string_view("moe")
                                    : std::string_view("mlp"));
    }
  }
  if (types.empty() || types.size() > static_cast<size_t>(kMaxLayers)) {
    k.Refuse("layers_block_type", fmt::format("must list 1 to {} layers", kMaxLayers));
    types.assign(1, "mlp");
  }
  b.hidden = k.Need("hidden_size");
  b.num_layers = static_cast<int64_t>(types.size());
  b.vocab = k.Need("vocab_size", kMaxVocab);
  b.shape.max_position = k.Get("max_position_embeddings", 0, kMaxPosition);
  b.attention = {k.Need("num_attention_heads", kMaxHeads), k.Need("num_key_value_heads", kMaxHeads),
                 k.NeedAny({"head_dim", "attention_head_dim"})};
  const int64_t head_dim = k.Need("mamba_head_dim");
  const Mamba2Sizes s{.inner = k.Need("mamba_num_heads", kMaxHeads) * head_dim,
                      .heads = k.Need("mamba_num_heads", kMaxHeads),
                      .state_size = k.Need("ssm_state_size"),
                      .groups = k.Get("n_groups", 8, kMaxHeads),
                      .kernel = k.Get("conv_kernel", 4, 1024),
                      .conv_bias = k.Flag("use_conv_bias", true),
                      .bias = k.Flag("use_bias", false)};
  const bool bias = k.Flag("attention_bias", false);
  const int64_t inner = k.Need("intermediate_size");
  ParameterCount mamba, attention, dense, experts;
  CountMamba2(mamba, b.hidden, s);
  CountAttention(attention, b.hidden, {.sizes = b.attention, .qkv_bias = bias, .o_bias = bias});
  CountMlp(dense, b.hidden, inner, false, k.Flag("mlp_bias", false));
  if (std::find(types.begin(), types.end(), "moe") != types.end()) {
    const int64_t num = k.Need("n_routed_experts", kMaxExperts);
    ParameterCount expert;
    CountMlp(expert, b.hidden, k.Need("moe_intermediate_size"), false);
    experts.Add(expert, num);
    experts.Linear(b.hidden, num);
    const int64_t shared = k.Get("moe_shared_expert_intermediate_size", 0);
    CountMlp(experts, b.hidden, shared * k.Get("n_shared_experts", 1, 1024), false);
  }
  for (std::string& type : types) {
    if (type == "mamba") type = kLinear;
    if (type == "attention") type = kFull;
    b.count.Norm(b.hidden);
    LayerShape layer;
    if (type == kLinear) {
      b.count.Add(mamba);
      layer.parts = {Mamba2Part(s)};
    } else if (type == kFull) {
      b.count.Add(attention);
      layer.parts = {FullPart(b.attention)};
    } else if (type == "moe") {
      b.count.Add(experts);
    } else if (type == "mlp") {
      b.count.Add(dense);
    } else {
      k.Refuse("layers_block_type", "knows linear_attention, full_attention, mlp and moe");
    }
    b.shape.layers.push_back(std::move(layer));
  }
  b.CountEmbedding(false);
  b.count.Norm(b.hidden);
  return b.Finish(std::max(inner, 2 * s.inner));
}

// State layers; some of them follow a transformer block whose weights they share, with adapters.
absl::StatusOr<ModelShape> Zamba2Shape(const JsonFields& fields) {
  ShapeBuilder b = StartShape(fields);
  ConfigKeys& k = b.keys;
  const std::vector<std::string> types = b.LayerTypes("layers_block_type", {}, {kLinear, "hybrid"});
  const Mamba2Sizes s{.inner = b.hidden * k.Get("mamba_expand", 2, 1024),
                      .heads = k.Need("n_mamba_heads", kMaxHeads),
                      .state_size = k.Need("mamba_d_state"),
                      .groups = k.Get("mamba_ngroups", 1, kMaxHeads),
                      .kernel = k.Get("mamba_d_conv", 4, 1024),
                      .conv_bias = k.Flag("use_conv_bias", true),
                      .bias = k.Flag("add_bias_linear", false)};
  // Attention sees the stream and the embedding side by side.
  const int64_t width = 2 * b.hidden;
  b.attention.head_dim = width / b.attention.num_heads;
  const int64_t inner = k.Get("intermediate_size", 4 * b.hidden);
  const int64_t rank = k.Get("adapter_rank", 128);
  const int64_t blocks = std::max<int64_t>(k.Get("num_mem_blocks", 1, kMaxLayers), 1);
  ParameterCount mamba, block, adapters;
  CountMamba2(mamba, b.hidden, s);
  mamba.Norm(b.hidden);
  const int64_t q_dim = b.attention.num_heads * b.attention.head_dim;
  const int64_t kv_dim = b.attention.num_kv_heads * b.attention.head_dim;
  block.Linear(width, q_dim + 2 * kv_dim);
  block.Linear(q_dim, b.hidden);
  block.Linear(b.hidden, 2 * inner);
  block.Linear(inner, b.hidden);
  block.Vector(width + b.hidden);
  if (k.Flag("use_shared_attention_adapter", false)) {
    adapters.Linear(width, 3 * rank);
    adapters.Linear(rank, q_dim + 2 * kv_dim);
  }
  adapters.Linear(b.hidden, rank);
  adapters.Linear(rank, 2 * inner);
  int64_t num_hybrid = 0;
  for (const std::string& type : types) {
    b.count.Add(mamba);
    LayerShape layer{.parts = {Mamba2Part(s)}};
    if (type == "hybrid") {
      ++num_hybrid;
      layer.parts.push_back(FullPart(b.attention));
      b.count.Linear(b.hidden, b.hidden);
    }
    b.shape.layers.push_back(std::move(layer));
  }
  b.count.Add(block, std::min(blocks, num_hybrid));
  b.count.Add(adapters, num_hybrid);
  b.CountEmbedding(true);
  b.count.Norm(b.hidden);
  return b.Finish(std::max(2 * inner, 2 * s.inner));
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
