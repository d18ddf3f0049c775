// models/arch/llama.cc -- the Llama family: llama, SmolLM2 and others of that shape, and mistral,
// which adds a sliding window on every layer.
//
// Defaults are those of transformers' LlamaConfig and MistralConfig. In GGUF, rows of q and k are
// permuted so that a head's rotated pairs are neighbours: rope is interleaved there.
#include "models/arch/dimensions.h"
#include "models/registry.h"
#include "models/rope_reader.h"

namespace quire {

// Declared in registry.cc.
absl::StatusOr<ModelConfig> LlamaFromJson(const JsonFields& config);
absl::StatusOr<ModelConfig> LlamaFromGguf(const GgufFields& fields);
TensorNames LlamaTensorNames(bool gguf);
absl::StatusOr<ModelConfig> MistralFromJson(const JsonFields& config);

namespace {

constexpr LayerTensorName kHubNames[] = {
    {TensorRole::kAttnNorm, "model.layers.{}.input_layernorm.weight"},
    {TensorRole::kMlpNorm, "model.layers.{}.post_attention_layernorm.weight"},
    {TensorRole::kQ, "model.layers.{}.self_attn.q_proj.weight"},
    {TensorRole::kK, "model.layers.{}.self_attn.k_proj.weight"},
    {TensorRole::kV, "model.layers.{}.self_attn.v_proj.weight"},
    {TensorRole::kO, "model.layers.{}.self_attn.o_proj.weight"},
    {TensorRole::kQBias, "model.layers.{}.self_attn.q_proj.bias"},
    {TensorRole::kKBias, "model.layers.{}.self_attn.k_proj.bias"},
    {TensorRole::kVBias, "model.layers.{}.self_attn.v_proj.bias"},
    {TensorRole::kOBias, "model.layers.{}.self_attn.o_proj.bias"},
    {TensorRole::kGate, "model.layers.{}.mlp.gate_proj.weight"},
    {TensorRole::kUp, "model.layers.{}.mlp.up_proj.weight"},
    {TensorRole::kDown, "model.layers.{}.mlp.down_proj.weight"},
    {TensorRole::kGateBias, "model.layers.{}.mlp.gate_proj.bias"},
    {TensorRole::kUpBias, "model.layers.{}.mlp.up_proj.bias"},
    {TensorRole::kDownBias, "model.layers.{}.mlp.down_proj.bias"},
};

constexpr LayerTensorName kGgufNames[] = {
    {TensorRole::kAttnNorm, "blk.{}.attn_norm.weight"},
    {TensorRole::kMlpNorm, "blk.{}.ffn_norm.weight"},
    {TensorRole::kQ, "blk.{}.attn_q.weight"},
    {TensorRole::kK, "blk.{}.attn_k.weight"},
    {TensorRole::kV, "blk.{}.attn_v.weight"},
    {TensorRole::kO, "blk.{}.attn_output.weight"},
    {TensorRole::kQBias, "blk.{}.attn_q.bias"},
    {TensorRole::kKBias, "blk.{}.attn_k.bias"},
    {TensorRole::kVBias, "blk.{}.attn_v.bias"},
    {TensorRole::kOBias, "blk.{}.attn_output.bias"},
    {TensorRole::kGate, "blk.{}.ffn_gate.weight"},
    {TensorRole::kUp, "blk.{}.ffn_up.weight"},
    {TensorRole::kDown, "blk.{}.ffn_down.weight"},
    {TensorRole::kGateBias, "blk.{}.ffn_gate.bias"},
    {TensorRole::kUpBias, "blk.{}.ffn_up.bias"},
    {TensorRole::kDownBias, "blk.{}.ffn_down.bias"},
};

// What only some members of the family read from config.json.
struct Extras {
  bool has_biases;
  std::optional<int64_t> window;  // if the key is absent; null in the file means none
};

absl::StatusOr<ModelConfig> FromJson(const JsonFields& json, const HubDefaults& defaults,
                                     const Extras& extras) {
  ASSIGN_OR_RETURN(ModelConfig config, DimensionsFromJson(json, defaults));
  LayerConfig layer = config.layers[0];
  if (extras.has_biases) {
    ASSIGN_OR_RETURN(layer.attention_bias, json.Bool("attention_bias", false));
    ASSIGN_OR_RETURN(layer.mlp_bias, json.Bool("mlp_bias", false));
  }
  if (extras.window && (json.Has("sliding_window") || !json.HasKey("sliding_window"))) {
    ASSIGN_OR_RETURN(const int64_t window,
                     json.Int("sliding_window", *extras.window, 1, kMaxPosition));
    layer.attention = AttentionKind::kSliding;
    layer.window = static_cast<int32_t>(window);
  }
  config.layers.assign(config.layers.size(), layer);
  ASSIGN_OR_RETURN(RopeConfig rope, RopeFromJson(json, layer.head_dim, config.max_position));
  if (rope.rotary_dim != layer.head_dim) {
    return Error(absl::StatusCode::kUnimplemented,
                 "{}: partial_rotary_factor gives {} rotated dimensions of {}, but this "
                 "architecture rotates all",
                 json.file(), rope.rotary_dim, layer.head_dim);
  }
  config.ropes = {std::move(rope)};
  RETURN_IF_ERROR(CheckHubConfig(config, json));
  return config;
}

bool HasAny(const GgufFile& file, size_t layer, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (file.Find(fmt::format("blk.{}.{}", layer, name))) return true;
  }
  return false;
}

// Keys that change the forward pass of relatives that share this architecture's name in GGUF.
absl::Status RefuseRelatives(const GgufFields& fields) {
  ASSIGN_OR_RETURN(const int64_t experts, fields.Int("expert_count", 0, 0, INT32_MAX));
  if (experts > 0) {
    return fields.Refuse("expert_count", fmt::format("{}", experts),
                         "is a mixture of experts, which is not supported for this architecture",
                         absl::StatusCode::kUnimplemented);
  }
  for (const char* key : {"embedding_scale", "residual_scale", "logit_scale"}) {
    ASSIGN_OR_RETURN(const float scale, fields.Positive(key, 1.0f));
    if (scale != 1.0f) {
      return fields.Refuse(key, fmt::format("{}", scale), "is not supported; it must be 1",
                           absl::StatusCode::kUnimplemented);
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ModelConfig> LlamaFromJson(const JsonFields& config) {
  return FromJson(config,
                  {.hidden_dim = 4096,
                   .vocab_size = 32000,
                   .num_layers = 32,
                   .num_heads = 32,
                   .mlp_dim = 11008,
                   .max_position = 2048},
                  {.has_biases = true, .window = std::nullopt});
}

absl::StatusOr<ModelConfig> MistralFromJson(const JsonFields& config) {
  return FromJson(config,
                  {.hidden_dim = 4096,
                   .vocab_size = 32000,
                   .num_layers = 32,
                   .num_heads = 32,
                   .num_kv_heads = 8,
                   .mlp_dim = 14336,
                   .max_position = 4096 * 32},
                  {.has_biases = false, .window = 4096});
}

absl::StatusOr<ModelConfig> LlamaFromGguf(const GgufFields& fields) {
  RETURN_IF_ERROR(RefuseRelatives(fields));
  ASSIGN_OR_RETURN(ModelConfig config, DimensionsFromGguf(fields));
  ASSIGN_OR_RETURN(const int64_t window,
                   fields.Int("attention.sliding_window", 0, 0, kMaxPosition));
  const GgufFile& file = fields.file();
  for (size_t i = 0; i < config.layers.size(); ++i) {
    LayerConfig& layer = config.layers[i];
    layer.attention = window > 0 ? AttentionKind::kSliding : AttentionKind::kFull;
    layer.window = static_cast<int32_t>(window);
    layer.attention_bias =
        HasAny(file, i, {"attn_q.bias", "attn_k.bias", "attn_v.bias", "attn_output.bias"});
    layer.mlp_bias = HasAny(file, i, {"ffn_gate.bias", "ffn_up.bias", "ffn_down.bias"});
  }
  ASSIGN_OR_RETURN(RopeConfig rope,
                   RopeFromGguf(fields, config.layers[0].head_dim, config.max_position));
  rope.interleaved = true;
  config.ropes = {std::move(rope)};
  RETURN_IF_ERROR(CheckGgufConfig(config, fields));
  return config;
}

TensorNames LlamaTensorNames(bool gguf) {
  if (gguf) return {kGgufEmbedding, kGgufFinalNorm, kGgufHead, kGgufNames};
  return {"model.embed_tokens.weight", "model.norm.weight", "lm_head.weight", kHubNames};
}

}  // namespace quire
