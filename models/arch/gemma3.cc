// models/arch/gemma3.cc -- Gemma 3, text only: five sliding layers to one full one, each kind with
// a rope of its own; norms before and after both halves of a layer, and of q and k.
//
// Defaults are those of transformers' Gemma3TextConfig. Norms of the hub's checkpoints store
// weight - 1; GGUF stores the weight itself. The embedding is scaled by sqrt(hidden_size) rounded
// to float32. Keys of GGUF as llama.cpp's converter writes them.
#include <algorithm>
#include <cmath>

#include "models/arch/dimensions.h"
#include "models/registry.h"
#include "models/rope_reader.h"

namespace quire {

// Declared in registry.cc.
absl::StatusOr<ModelConfig> Gemma3FromJson(const JsonFields& json);
absl::StatusOr<ModelConfig> Gemma3FromGguf(const GgufFields& fields);
TensorNames Gemma3TensorNames(bool gguf);

namespace {

constexpr int32_t kFullRope = 0;
constexpr int32_t kSlidingRope = 1;
constexpr float kFullTheta = 1e6f;
constexpr float kSlidingTheta = 10000.0f;
constexpr int64_t kPattern = 6;  // every sixth layer is a full one

constexpr LayerTensorName kHubNames[] = {
    {TensorRole::kAttnNorm, "model.layers.{}.input_layernorm.weight"},
    {TensorRole::kAttnPostNorm, "model.layers.{}.post_attention_layernorm.weight"},
    {TensorRole::kMlpNorm, "model.layers.{}.pre_feedforward_layernorm.weight"},
    {TensorRole::kMlpPostNorm, "model.layers.{}.post_feedforward_layernorm.weight"},
    {TensorRole::kQNorm, "model.layers.{}.self_attn.q_norm.weight"},
    {TensorRole::kKNorm, "model.layers.{}.self_attn.k_norm.weight"},
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
};

constexpr LayerTensorName kGgufNames[] = {
    {TensorRole::kAttnNorm, "blk.{}.attn_norm.weight"},
    {TensorRole::kAttnPostNorm, "blk.{}.post_attention_norm.weight"},
    {TensorRole::kMlpNorm, "blk.{}.ffn_norm.weight"},
    {TensorRole::kMlpPostNorm, "blk.{}.post_ffw_norm.weight"},
    {TensorRole::kQNorm, "blk.{}.attn_q_norm.weight"},
    {TensorRole::kKNorm, "blk.{}.attn_k_norm.weight"},
    {TensorRole::kQ, "blk.{}.attn_q.weight"},
    {TensorRole::kK, "blk.{}.attn_k.weight"},
    {TensorRole::kV, "blk.{}.attn_v.weight"},
    {TensorRole::kO, "blk.{}.attn_output.weight"},
    {TensorRole::kGate, "blk.{}.ffn_gate.weight"},
    {TensorRole::kUp, "blk.{}.ffn_up.weight"},
    {TensorRole::kDown, "blk.{}.ffn_down.weight"},
};

float EmbeddingScale(const ModelConfig& config) {
  return static_cast<float>(std::sqrt(static_cast<double>(config.hidden_dim)));
}

void MakeSliding(int64_t window, LayerConfig& layer) {
  layer.attention = AttentionKind::kSliding;
  layer.window = static_cast<int32_t>(window);
  layer.rope = kSlidingRope;
}

// By name, or by the older number: every sliding_window_pattern-th layer is a full one.
absl::StatusOr<std::vector<bool>> SlidingLayers(const JsonFields& json, size_t num_layers) {
  std::vector<bool> sliding(num_layers);
  if (!json.Has("layer_types")) {
    ASSIGN_OR_RETURN(const int64_t pattern,
                     json.Int("sliding_window_pattern", kPattern, 1, kMaxLayers));
    for (size_t i = 0; i < num_layers; ++i) {
      sliding[i] = (static_cast<int64_t>(i) + 1) % pattern != 0;
    }
    return sliding;
  }
  ASSIGN_OR_RETURN(const std::vector<std::string> types,
                   json.StringList("layer_types", num_layers));
  for (size_t i = 0; i < num_layers; ++i) {
    sliding[i] = types[i] == "sliding_attention";
    if (!sliding[i] && types[i] != "full_attention") {
      return json.Refuse("layer_types",
                         fmt::format("(element {}) is not known; known: sliding_attention, "
                                     "full_attention",
                                     i),
                         absl::StatusCode::kUnimplemented);
    }
  }
  return sliding;
}

}  // namespace

absl::StatusOr<ModelConfig> Gemma3FromJson(const JsonFields& json) {
  ASSIGN_OR_RETURN(ModelConfig config,
                   DimensionsFromJson(json, {.hidden_dim = 2304,
                                             .vocab_size = 262208,
                                             .num_layers = 26,
                                             .num_heads = 8,
                                             .num_kv_heads = 4,
                                             .head_dim = 256,
                                             .mlp_dim = 9216,
                                             .max_position = 131072,
                                             .tie_embeddings = true,
                                             .activation_key = "hidden_activation",
                                             .activation = "gelu_pytorch_tanh"}));
  config.norm_offset = 1.0f;
  config.embedding_scale = EmbeddingScale(config);
  ASSIGN_OR_RETURN(config.logit_softcap, json.Positive("final_logit_softcapping", 0.0f));
  ASSIGN_OR_RETURN(const bool both_ways, json.Bool("use_bidirectional_attention", false));
  if (both_ways) {
    return json.Refuse("use_bidirectional_attention", "is an encoder, which is not supported",
                       absl::StatusCode::kUnimplemented);
  }
  ASSIGN_OR_RETURN(const bool attention_bias, json.Bool("attention_bias", false));
  ASSIGN_OR_RETURN(const float scalar, json.Positive("query_pre_attn_scalar", 256.0f));
  ASSIGN_OR_RETURN(const float softcap, json.Positive("attn_logit_softcapping", 0.0f));
  ASSIGN_OR_RETURN(const int64_t window, json.Int("sliding_window", 4096, 1, kMaxPosition));
  ASSIGN_OR_RETURN(const std::vector<bool> sliding, SlidingLayers(json, config.layers.size()));
  for (size_t i = 0; i < config.layers.size(); ++i) {
    LayerConfig& layer = config.layers[i];
    layer.attention_bias = attention_bias;
    layer.softmax_scale = static_cast<float>(1.0 / std::sqrt(double{scalar}));
    layer.score_softcap = softcap;
    layer.rope = kFullRope;
    if (!sliding[i]) continue;
    if (json.HasKey("sliding_window") && !json.Has("sliding_window")) {
      return json.Refuse("sliding_window", fmt::format("must be a number: layer {} is sliding", i));
    }
    MakeSliding(window, layer);
  }
  const int32_t head_dim = config.layers[0].head_dim;
  ASSIGN_OR_RETURN(RopeConfig full,
                   RopeOfLayerType(json, {"full_attention", "rope_theta", kFullTheta, true},
                                   head_dim, config.max_position));
  ASSIGN_OR_RETURN(
      RopeConfig local,
      RopeOfLayerType(json, {"sliding_attention", "rope_local_base_freq", kSlidingTheta, false},
                      head_dim, config.max_position));
  config.ropes = {std::move(full), std::move(local)};
  RETURN_IF_ERROR(CheckHubConfig(config, json));
  return config;
}

absl::StatusOr<ModelConfig> Gemma3FromGguf(const GgufFields& fields) {
  constexpr size_t kLayersOf27B = 62;
  ASSIGN_OR_RETURN(ModelConfig config, DimensionsFromGguf(fields));
  config.embedding_scale = EmbeddingScale(config);
  ASSIGN_OR_RETURN(config.logit_softcap, fields.Positive("final_logit_softcapping", 0.0f));
  ASSIGN_OR_RETURN(const int64_t window,
                   fields.Int("attention.sliding_window", 0, 0, kMaxPosition));
  ASSIGN_OR_RETURN(
      const std::vector<bool> full_layers,
      fields.Exceptions("attention.sliding_window_pattern", kPattern, config.layers.size()));
  for (size_t i = 0; i < config.layers.size(); ++i) {
    LayerConfig& layer = config.layers[i];
    layer.activation = kernels::Activation::kGeluTanh;
    // The largest model scales by another width than head_dim; the file does not say so.
    if (config.layers.size() == kLayersOf27B && !fields.Has("attention.scale")) {
      const int32_t width = std::max(1, config.hidden_dim / layer.num_heads);
      layer.softmax_scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(width)));
    }
    layer.rope = kFullRope;
    if (window > 0 && !full_layers[i]) MakeSliding(window, layer);
  }
  const int32_t head_dim = config.layers[0].head_dim;
  ASSIGN_OR_RETURN(RopeConfig full, RopeFromGguf(fields, head_dim, config.max_position));
  RopeConfig local{.rotary_dim = full.rotary_dim};
  ASSIGN_OR_RETURN(local.theta, fields.Positive("rope.freq_base_swa", kSlidingTheta));
  config.ropes = {std::move(full), std::move(local)};
  RETURN_IF_ERROR(CheckGgufConfig(config, fields));
  return config;
}

TensorNames Gemma3TensorNames(bool gguf) {
  if (gguf) return {kGgufEmbedding, kGgufFinalNorm, kGgufHead, kGgufNames};
  return {"model.embed_tokens.weight", "model.norm.weight", "lm_head.weight", kHubNames};
}

}  // namespace quire
