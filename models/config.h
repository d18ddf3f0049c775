// models/config.h -- a decoder-only transformer as data: what the one forward function reads.
//
// Filled from config.json or from GGUF metadata by the architecture's function in models/arch/; the
// names here are ours, one per concept, whatever the file calls it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/types.h"
#include "kernels/ops.h"

namespace quire {

enum class RopeType : uint8_t { kNone, kDefault, kLinear, kDynamic, kYarn, kLongrope, kLlama3 };

struct RopeConfig {
  RopeType type = RopeType::kDefault;
  float theta = 10000.0f;
  int32_t rotary_dim = 0;    // leading dimensions of a head that are rotated
  bool interleaved = false;  // pairs (2i, 2i+1), as GGUF's llama stores them; else half-split
  float factor = 1.0f;
  int32_t original_max_position = 0;
  // yarn
  float beta_fast = 32.0f;
  float beta_slow = 1.0f;
  float attention_factor = 0.0f;  // 0 = the type's own rule
  float mscale = 0.0f;
  float mscale_all_dim = 0.0f;
  bool truncate = true;
  // llama3
  float low_freq_factor = 1.0f;
  float high_freq_factor = 4.0f;
  // longrope: [rotary_dim / 2]; GGUF's rope_freqs divides inv_freq and comes as freq_divisors
  std::vector<float> short_factor;
  std::vector<float> long_factor;
  std::vector<float> freq_divisors;
};

enum class AttentionKind : uint8_t { kFull, kSliding };

struct LayerConfig {
  AttentionKind attention = AttentionKind::kFull;
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  int32_t window = 0;       // kSliding: tokens seen, the query's own included
  int32_t rope = 0;         // index into ModelConfig::ropes
  float softmax_scale = 0;  // 1 / sqrt(head_dim) unless the model says otherwise
  float score_softcap = 0;  // scores become cap * tanh(score / cap); 0 = off
  int32_t mlp_dim = 0;
  kernels::Activation activation = kernels::Activation::kSilu;
  bool attention_bias = false;  // q, k, v and o add a bias (GGUF: at least one of them)
  bool mlp_bias = false;        // gate, up and down add a bias (GGUF: at least one of them)
};

struct ModelConfig {
  std::string architecture;        // row of models/registry.cc
  std::string name;                // for people: directory, file or general.name
  bool gguf_tensor_names = false;  // tensors are named as GGUF does, else as the hub does
  int32_t hidden_dim = 0;
  int32_t vocab_size = 0;
  int32_t max_position = 0;  // longest sequence the model was made for
  float norm_eps = 1e-6f;
  float norm_offset = 0.0f;      // norms multiply by offset + weight
  float embedding_scale = 1.0f;  // rows of the embedding are multiplied by it
  float logit_softcap = 0.0f;    // logits become cap * tanh(logit / cap); 0 = off
  bool tie_embeddings = false;
  std::vector<LayerConfig> layers;
  std::vector<RopeConfig> ropes;
  std::vector<TokenId> eos_token_ids;  // config.json, generation_config.json; GGUF eos and eot
  TokenId bos_token_id = -1;
  TokenId pad_token_id = -1;
  // From generation_config.json, as JSON text; empty if there is none.
  std::string default_sampling_json;
};

}  // namespace quire
