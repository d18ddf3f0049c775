// models/registry.h -- which checkpoint is which architecture: the one place, with models/arch/,
// that knows architectures by name.
//
// A plain table, not registration by static initialisers: it reads from top to bottom, links from a
// static library and has no order of construction.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"
#include "models/config.h"
#include "models/config_reader.h"

namespace quire {

// What a tensor is to the decoder; each is a member of LayerWeights (models/model_weights.h).
enum class TensorRole : uint8_t {
  kAttnNorm,
  kAttnPostNorm,  // of what attention adds to the residual stream
  kMlpNorm,
  kMlpPostNorm,
  kQ,
  kK,
  kV,
  kO,
  kQBias,
  kKBias,
  kVBias,
  kOBias,
  kGate,
  kUp,
  kDown,
  kGateBias,
  kUpBias,
  kDownBias,
  kQNorm,
  kKNorm,
};

struct LayerTensorName {
  TensorRole role;
  std::string_view name;  // "{}" stands for the layer's index
};

// Tensors of a layer that are listed are needed, biases only if the layer has them; others of a
// layer's roles must not be in the file.
struct TensorNames {
  std::string_view embed;
  std::string_view final_norm;
  std::string_view lm_head;
  std::span<const LayerTensorName> layer;
};

// Both config functions fill all of ModelConfig but name, gguf_tensor_names, token ids and
// default_sampling_json. ERRORS: kInvalidArgument and kUnimplemented, naming file, key and value.
struct Architecture {
  std::string_view hf_name;    // "architectures"[0] of config.json
  std::string_view gguf_name;  // general.architecture; empty: safetensors only
  absl::StatusOr<ModelConfig> (*from_json)(const JsonFields& config);
  absl::StatusOr<ModelConfig> (*from_gguf)(const GgufFields& fields);  // null: safetensors only
  TensorNames (*tensor_names)(bool gguf);
};

std::span<const Architecture> Architectures();

// By either name. ERRORS: kUnimplemented, naming what was asked for and what there is.
absl::StatusOr<const Architecture*> FindArchitecture(std::string_view name);

}  // namespace quire
