// models/model_weights.h -- a checkpoint's tensors by role, as the decoder wants them.
//
// Built once at load by BindWeights; views point into the WeightSource, which must outlive them (or
// its pages must have been packed). Every shape agrees with the ModelConfig:
//   embed, lm_head    [vocab_size, hidden_dim]
//   norms             [hidden_dim];  q_norm, k_norm [head_dim]
//   q                 [num_heads * head_dim, hidden_dim];  k, v [num_kv_heads * head_dim,
//   hidden_dim] o                 [hidden_dim, num_heads * head_dim] gate, up          [mlp_dim,
//   hidden_dim];  down [hidden_dim, mlp_dim] biases            [output rows of their matrix]
// Rows of q and k are in the order that LayerConfig's rope expects (RopeConfig::interleaved).
#pragma once

#include <optional>
#include <vector>

#include "base/status.h"
#include "base/tensor_view.h"
#include "models/config.h"
#include "models/weights/weight_source.h"

namespace quire {

struct LayerWeights {
  std::optional<TensorView> attn_norm, mlp_norm;
  std::optional<TensorView> attn_post_norm, mlp_post_norm;  // of what each half adds
  std::optional<TensorView> q, k, v, o;
  std::optional<TensorView> q_bias, k_bias, v_bias, o_bias;
  std::optional<TensorView> gate, up, down;
  std::optional<TensorView> gate_bias, up_bias, down_bias;
  std::optional<TensorView> q_norm, k_norm;
};

struct ModelWeights {
  TensorView embed;
  TensorView final_norm;
  std::optional<TensorView> lm_head;  // absent: embed serves as both
  std::vector<LayerWeights> layers;
};

// Resolves names by the architecture's map and checks every shape, both ways.
// ERRORS: kInvalidArgument with file, tensor, the shape found and the shape that the config asks
// for; kNotFound listing all needed tensors that are missing (not only the first).
absl::StatusOr<ModelWeights> BindWeights(const ModelConfig& config, const WeightSource& weights);

}  // namespace quire
