// models/arch/dimensions.h -- what the files of nearly every decoder say in the same words: sizes,
// head counts, epsilon, activation. Each architecture adds its own to the result.
//
// Used by models/arch/*.cc at load time. Every number is in range afterwards; heads and rope are
// checked against each other by CheckConfig, once the architecture has filled its ropes.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "models/config.h"
#include "models/config_reader.h"

namespace quire {

// What an absent key of config.json means; the values of transformers' configuration class.
struct HubDefaults {
  int64_t hidden_dim = 0;
  int64_t vocab_size = 0;
  int64_t num_layers = 0;
  int64_t num_heads = 0;
  std::optional<int64_t> num_kv_heads;  // absent: as many as heads
  std::optional<int64_t> head_dim;      // absent: hidden_dim / num_heads
  int64_t mlp_dim = 0;
  int64_t max_position = 0;
  bool tie_embeddings = false;
  std::string_view activation_key = "hidden_act";
  std::string_view activation = "silu";
};

// Sizes of the whole model and `num_hidden_layers` equal layers of full attention, scaled by
// 1 / sqrt(head_dim). ERRORS: kInvalidArgument, kUnimplemented (activation), naming file and key.
absl::StatusOr<ModelConfig> DimensionsFromJson(const JsonFields& json, const HubDefaults& defaults);

// The same from GGUF metadata; vocab_size and tie_embeddings follow from the tensors there.
absl::StatusOr<ModelConfig> DimensionsFromGguf(const GgufFields& fields);

// CheckConfig with the keys of either format.
absl::Status CheckHubConfig(const ModelConfig& config, const JsonFields& json);
absl::Status CheckGgufConfig(const ModelConfig& config, const GgufFields& fields);

inline constexpr std::string_view kGgufEmbedding = "token_embd.weight";
inline constexpr std::string_view kGgufFinalNorm = "output_norm.weight";
inline constexpr std::string_view kGgufHead = "output.weight";

}  // namespace quire
