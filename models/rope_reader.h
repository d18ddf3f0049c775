// models/rope_reader.h -- rope parameters out of config.json (old and new style) and GGUF metadata.
//
// config.json, new style: rope_parameters {rope_type, rope_theta, ...}; old style: rope_theta
// beside rope_scaling {type or rope_type, factor, ...}. If both are given, rope_scaling replaces
// rope_parameters wholly, as in transformers. A type that we do not know is refused, never ignored.
// GGUF: rope.freq_base (10000 if absent), rope.dimension_count (head_dim if absent),
// rope.scaling.*, and the tensors rope_freqs.weight (divides the frequencies; llama3 scaling
// arrives so), rope_factors_short.weight and rope_factors_long.weight (longrope).
#pragma once

#include "base/status.h"
#include "models/config.h"
#include "models/config_reader.h"

namespace quire {

// Models whose rope differs by layer type. New style: rope_parameters {layer_type: {rope_type,
// rope_theta, ...}, ...}; old style: `theta_key` of the file and, for the type that
// `takes_scaling`, rope_scaling. Both styles at once are refused.
struct LayerTypeRope {
  std::string_view layer_type;
  std::string_view theta_key;
  float default_theta = 0;
  bool takes_scaling = false;
};

// ERRORS: kInvalidArgument naming the key; kUnimplemented for an unknown type, listing the known.
absl::StatusOr<RopeConfig> RopeOfLayerType(const JsonFields& config, const LayerTypeRope& type,
                                           int32_t head_dim, int32_t max_position);
absl::StatusOr<RopeConfig> RopeFromJson(const JsonFields& config, int32_t head_dim,
                                        int32_t max_position);
absl::StatusOr<RopeConfig> RopeFromGguf(const GgufFields& fields, int32_t head_dim,
                                        int32_t max_position);

}  // namespace quire
