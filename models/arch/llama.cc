// models/arch/llama.cc -- the Llama family: llama, SmolLM2 and others of that shape, and mistral,
// which adds a sliding window on every layer.
//
// Defaults are those of transformers' LlamaConfig and MistralConfig. In GGUF, rows of q and k are
// permuted so that a head's rotated pairs are neighbours: rope is interleaved there.
#include <cmath>

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

// What differs between the members of the family in config.json.
struct Defaults {
  int64_t mlp_dim;
  std::optional<int64_t> num_kv_heads;  // absent: as many as heads
  int64_t max_position;
  bool has_biases;
  std::optional<int64_t> window;  // if the key is absent; null in the file means none
};

absl::StatusOr<ModelConfig> FromJson(const JsonFields& json, const Defaults& defaults) {
  ModelConfig config;
  LayerConfig layer;
  ASSIGN_OR_RETURN(const int64_t hidden, json.Int("hidden_size", 4096, 1, kMaxWidth));
  ASSIGN_OR_RETURN(const int64_t vocab, json.Int("vocab_size", 32000, 1, kMaxVocab));
  ASSIGN_OR_RETURN(const int64_t num_layers, json.Int("num_hidden_layers", 32, 1, kMaxLayers));
  ASSIGN_OR_RETURN(const int64_t heads, json.Int("num_attention_heads", 32, 1, kMaxHeads));
  const bool kv_null = json.HasKey("num_key_value_heads");
  ASSIGN_OR_RETURN(const int64_t kv_heads,
                   json.Int("num_key_value_heads",
                            kv_null ? heads : defaults.num_kv_heads.value_or(heads), 1, kMaxHeads));
  if (!json.Has("head_dim") && hidden % heads != 0) {
    return json.Refuse(
        "hidden_size",
        fmt::format("must be a multiple of num_attention_heads={}, or head_dim given", heads));
  }
  ASSIGN_OR_RETURN(const int64_t head_dim, json.Int("head_dim", hidden / heads, 1, kMaxWidth));
  ASSIGN_OR_RETURN(const int64_t mlp_dim,
                   json.Int("intermediate_size", defaults.mlp_dim, 1, kMaxWidth));
  ASSIGN_OR_RETURN(const int64_t max_position,
                   json.Int("max_position_embeddings", defaults.max_position, 1, kMaxPosition));
  ASSIGN_OR_RETURN(config.norm_eps, json.Positive("rms_norm_eps", 1e-6f));
  ASSIGN_OR_RETURN(config.tie_embeddings, json.Bool("tie_word_embeddings", false));
  ASSIGN_OR_RETURN(layer.activation, ActivationFromName(json, "hidden_act", "silu"));
  if (defaults.has_biases) {
    ASSIGN_OR_RETURN(layer.attention_bias, json.Bool("attention_bias", false));
    ASSIGN_OR_RETURN(layer.mlp_bias, json.Bool("mlp_bias", false));
  }
  if (defaults.window && (json.Has("sliding_window") || !json.HasKey("sliding_window"))) {
    ASSIGN_OR_RETURN(const int64_t window,
                     json.Int("sliding_window", *defaults.window, 1, kMaxPosition));
    layer.attention = AttentionKind::kSliding;
    layer.window = static_cast<int32_t>(window);
  }
  ASSIGN_OR_RETURN(RopeConfig rope, RopeFromJson(json, static_cast<int32_t>(head_dim),
                                                 static_cast<int32_t>(max_position)));
  if (rope.rotary_dim != head_dim) {
    return Error(absl::StatusCode::kUnimplemented,
                 "{}: partial_rotary_factor gives {} rotated dimensions of {}, but this "
                 "architecture rotates all",
                 json.file(), rope.rotary_dim, head_dim);
  }
  layer.num_heads = static_cast<int32_t>(heads);
  layer.num_kv_heads = static_cast<int32_t>(kv_heads);
  layer.head_dim = static_cast<int32_t>(head_dim);
  layer.mlp_dim = static_cast<int32_t>(mlp_dim);
  layer.softmax_scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(head_dim)));
  config.hidden_dim = static_cast<int32_t>(hidden);
  config.vocab_size = static_cast<int32_t>(vocab);
  config.max_position = static_cast<int32_t>(max_position);
  config.ropes = {std::move(rope)};
  config.layers.assign(static_cast<size_t>(num_layers), layer);
  RETURN_IF_ERROR(
      CheckConfig(config, {json.file(), "num_attention_heads", "num_key_value_heads", "head_dim"}));
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
  return FromJson(config, {.mlp_dim = 11008,
                           .num_kv_heads = std::nullopt,
                           .max_position = 2048,
                           .has_biases = true,
                           .window = std::nullopt});
}

absl::StatusOr<ModelConfig> MistralFromJson(const JsonFields& config) {
  return FromJson(config, {.mlp_dim = 14336,
                           .num_kv_heads = 8,
                           .max_position = 4096 * 32,
                           .has_biases = false,
                           .window = 4096});
}

absl::StatusOr<ModelConfig> LlamaFromGguf(const GgufFields& fields) {
  const GgufFile& file = fields.file();
  ModelConfig config;
  RETURN_IF_ERROR(RefuseRelatives(fields));
  ASSIGN_OR_RETURN(const int64_t hidden,
                   fields.Int("embedding_length", std::nullopt, 1, kMaxWidth));
  ASSIGN_OR_RETURN(const int64_t num_layers,
                   fields.Int("block_count", std::nullopt, 1, kMaxLayers));
  const auto n = static_cast<size_t>(num_layers);
  ASSIGN_OR_RETURN(const std::vector<int64_t> heads,
                   fields.PerLayer("attention.head_count", {}, n, 1, kMaxHeads));
  ASSIGN_OR_RETURN(const std::vector<int64_t> kv_heads,
                   fields.PerLayer("attention.head_count_kv", heads, n, 1, kMaxHeads));
  ASSIGN_OR_RETURN(const std::vector<int64_t> mlp_dims,
                   fields.PerLayer("feed_forward_length", {}, n, 1, kMaxWidth));
  if (!fields.Has("attention.key_length") && hidden % heads[0] != 0) {
    return fields.Refuse(
        "embedding_length", fmt::format("{}", hidden),
        fmt::format("must be a multiple of {}={}, or {} given", fields.Key("attention.head_count"),
                    heads[0], fields.Key("attention.key_length")));
  }
  ASSIGN_OR_RETURN(const int64_t head_dim,
                   fields.Int("attention.key_length", hidden / heads[0], 1, kMaxWidth));
  ASSIGN_OR_RETURN(const int64_t value_dim,
                   fields.Int("attention.value_length", head_dim, 1, kMaxWidth));
  if (value_dim != head_dim) {
    return fields.Refuse(
        "attention.value_length", fmt::format("{}", value_dim),
        fmt::format("must be {}={}", fields.Key("attention.key_length"), head_dim));
  }
  ASSIGN_OR_RETURN(const int64_t max_position,
                   fields.Int("context_length", std::nullopt, 1, kMaxPosition));
  ASSIGN_OR_RETURN(config.norm_eps,
                   fields.Positive("attention.layer_norm_rms_epsilon", std::nullopt));
  ASSIGN_OR_RETURN(const int64_t window,
                   fields.Int("attention.sliding_window", 0, 0, kMaxPosition));
  ASSIGN_OR_RETURN(
      const float scale,
      fields.Positive("attention.scale",
                      static_cast<float>(1.0 / std::sqrt(static_cast<double>(head_dim)))));

  // The embedding is what counts; the key, where there is one, may not contradict it.
  const std::string embed(LlamaTensorNames(true).embed);
  const std::optional<TensorView> embedding = file.Find(embed);
  if (!embedding || embedding->rank != 2) {
    return Error(absl::StatusCode::kNotFound, "{}: tensor {} {}", file.file_name(), embed,
                 embedding ? "must have 2 dimensions" : "is missing");
  }
  const int64_t vocab = embedding->shape[0];
  if (vocab > kMaxVocab) {
    return InvalidArgument("{}: tensor {} {} has more than {} rows", file.file_name(), embed,
                           embedding->ToString(), kMaxVocab);
  }
  ASSIGN_OR_RETURN(const int64_t vocab_key, fields.Int("vocab_size", vocab, 1, kMaxVocab));
  if (vocab_key != vocab) {
    return fields.Refuse("vocab_size", fmt::format("{}", vocab_key),
                         fmt::format("must be {}, the rows of tensor {}", vocab, embed));
  }

  ASSIGN_OR_RETURN(RopeConfig rope, RopeFromGguf(fields, static_cast<int32_t>(head_dim),
                                                 static_cast<int32_t>(max_position)));
  rope.interleaved = true;
  config.hidden_dim = static_cast<int32_t>(hidden);
  config.vocab_size = static_cast<int32_t>(vocab);
  config.max_position = static_cast<int32_t>(max_position);
  config.tie_embeddings = !file.Find(std::string(LlamaTensorNames(true).lm_head)).has_value();
  config.ropes = {std::move(rope)};
  for (size_t i = 0; i < n; ++i) {
    config.layers.push_back(
        {.attention = window > 0 ? AttentionKind::kSliding : AttentionKind::kFull,
         .num_heads = static_cast<int32_t>(heads[i]),
         .num_kv_heads = static_cast<int32_t>(kv_heads[i]),
         .head_dim = static_cast<int32_t>(head_dim),
         .window = static_cast<int32_t>(window),
         .softmax_scale = scale,
         .mlp_dim = static_cast<int32_t>(mlp_dims[i]),
         .attention_bias =
             HasAny(file, i, {"attn_q.bias", "attn_k.bias", "attn_v.bias", "attn_output.bias"}),
         .mlp_bias = HasAny(file, i, {"ffn_gate.bias", "ffn_up.bias", "ffn_down.bias"})});
  }
  RETURN_IF_ERROR(CheckConfig(
      config, {file.file_name(), fields.Key("attention.head_count"),
               fields.Key("attention.head_count_kv"), fields.Key("attention.key_length")}));
  return config;
}

TensorNames LlamaTensorNames(bool gguf) {
  if (gguf) return {"token_embd.weight", "output_norm.weight", "output.weight", kGgufNames};
  return {"model.embed_tokens.weight", "model.norm.weight", "lm_head.weight", kHubNames};
}

}  // namespace quire
