#include "models/arch/dimensions.h"

#include <cmath>

namespace quire {
namespace {

float ScaleOf(int64_t head_dim) {
  return static_cast<float>(1.0 / std::sqrt(static_cast<double>(head_dim)));
}

// Rows of the embedding. They are what counts; the key, where there is one, may not contradict it.
absl::StatusOr<int64_t> VocabOfEmbedding(const GgufFields& fields) {
  const GgufFile& file = fields.file();
  const std::string name(kGgufEmbedding);
  const std::optional<TensorView> embedding = file.Find(name);
  if (!embedding || embedding->rank != 2) {
    return Error(absl::StatusCode::kNotFound, "{}: tensor {} {}", file.file_name(), name,
                 embedding ? "must have 2 dimensions" : "is missing");
  }
  const int64_t vocab = embedding->shape[0];
  if (vocab > kMaxVocab) {
    return InvalidArgument("{}: tensor {} {} has more than {} rows", file.file_name(), name,
                           embedding->ToString(), kMaxVocab);
  }
  ASSIGN_OR_RETURN(const int64_t key, fields.Int("vocab_size", vocab, 1, kMaxVocab));
  if (key != vocab) {
    return fields.Refuse("vocab_size", fmt::format("{}", key),
                         fmt::format("must be {}, the rows of tensor {}", vocab, name));
  }
  return vocab;
}

}  // namespace

absl::StatusOr<ModelConfig> DimensionsFromJson(const JsonFields& json,
                                               const HubDefaults& defaults) {
  ModelConfig config;
  LayerConfig layer;
  ASSIGN_OR_RETURN(const int64_t hidden,
                   json.Int("hidden_size", defaults.hidden_dim, 1, kMaxWidth));
  ASSIGN_OR_RETURN(const int64_t vocab, json.Int("vocab_size", defaults.vocab_size, 1, kMaxVocab));
  ASSIGN_OR_RETURN(const int64_t num_layers,
                   json.Int("num_hidden_layers", defaults.num_layers, 1, kMaxLayers));
  ASSIGN_OR_RETURN(const int64_t heads,
                   json.Int("num_attention_heads", defaults.num_heads, 1, kMaxHeads));
  const bool kv_null = json.HasKey("num_key_value_heads");
  ASSIGN_OR_RETURN(const int64_t kv_heads,
                   json.Int("num_key_value_heads",
                            kv_null ? heads : defaults.num_kv_heads.value_or(heads), 1, kMaxHeads));
  if (!json.Has("head_dim") && !defaults.head_dim && hidden % heads != 0) {
    return json.Refuse(
        "hidden_size",
        fmt::format("must be a multiple of num_attention_heads={}, or head_dim given", heads));
  }
  ASSIGN_OR_RETURN(const int64_t head_dim,
                   json.Int("head_dim", defaults.head_dim.value_or(hidden / heads), 1, kMaxWidth));
  ASSIGN_OR_RETURN(const int64_t mlp_dim,
                   json.Int("intermediate_size", defaults.mlp_dim, 1, kMaxWidth));
  ASSIGN_OR_RETURN(const int64_t max_position,
                   json.Int("max_position_embeddings", defaults.max_position, 1, kMaxPosition));
  ASSIGN_OR_RETURN(config.norm_eps, json.Positive("rms_norm_eps", 1e-6f));
  ASSIGN_OR_RETURN(config.tie_embeddings,
                   json.Bool("tie_word_embeddings", defaults.tie_embeddings));
  ASSIGN_OR_RETURN(layer.activation,
                   ActivationFromName(json, defaults.activation_key, defaults.activation));
  layer.num_heads = static_cast<int32_t>(heads);
  layer.num_kv_heads = static_cast<int32_t>(kv_heads);
  layer.head_dim = static_cast<int32_t>(head_dim);
  layer.mlp_dim = static_cast<int32_t>(mlp_dim);
  layer.softmax_scale = ScaleOf(head_dim);
  config.hidden_dim = static_cast<int32_t>(hidden);
  config.vocab_size = static_cast<int32_t>(vocab);
  config.max_position = static_cast<int32_t>(max_position);
  config.layers.assign(static_cast<size_t>(num_layers), layer);
  return config;
}

absl::StatusOr<ModelConfig> DimensionsFromGguf(const GgufFields& fields) {
  ModelConfig config;
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
  ASSIGN_OR_RETURN(const float scale, fields.Positive("attention.scale", ScaleOf(head_dim)));
  ASSIGN_OR_RETURN(const int64_t vocab, VocabOfEmbedding(fields));
  config.hidden_dim = static_cast<int32_t>(hidden);
  config.vocab_size = static_cast<int32_t>(vocab);
  config.max_position = static_cast<int32_t>(max_position);
  config.tie_embeddings = !fields.file().Find(std::string(kGgufHead)).has_value();
  for (size_t i = 0; i < n; ++i) {
    config.layers.push_back({.num_heads = static_cast<int32_t>(heads[i]),
                             .num_kv_heads = static_cast<int32_t>(kv_heads[i]),
                             .head_dim = static_cast<int32_t>(head_dim),
                             .softmax_scale = scale,
                             .mlp_dim = static_cast<int32_t>(mlp_dims[i])});
  }
  return config;
}

absl::Status CheckHubConfig(const ModelConfig& config, const JsonFields& json) {
  return CheckConfig(config,
                     {json.file(), "num_attention_heads", "num_key_value_heads", "head_dim"});
}

absl::Status CheckGgufConfig(const ModelConfig& config, const GgufFields& fields) {
  return CheckConfig(config,
                     {fields.file().file_name(), fields.Key("attention.head_count"),
                      fields.Key("attention.head_count_kv"), fields.Key("attention.key_length")});
}

}  // namespace quire
