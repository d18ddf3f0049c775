// models/rope_config.h -- inverse frequencies of every rope variant.
//
// Source: transformers' rope utilities and the papers YaRN (arXiv:2309.00071), LongRoPE
// (arXiv:2402.13753); goldens in tests/reference/rope.
#pragma once

#include <vector>

#include "models/config.h"

namespace quire {

struct RopeFrequencies {
  std::vector<float> inv_freq;     // [rotary_dim / 2]
  float attention_scaling = 1.0f;  // cos and sin are multiplied by it
};

// `length` decides for dynamic and longrope, and only there: max(prompt length, position + 1),
// fixed per position when the request arrives (contract C1).
RopeFrequencies ComputeRope(const RopeConfig& rope, int32_t max_position, int32_t length);

// True if the frequencies depend on `length`.
bool IsLengthDependent(const RopeConfig& rope);

// The longest sequence worth serving: max_position, which dynamic rope stretches by its factor
// (its max_position is the length up to which nothing is scaled).
int32_t LongestSequence(const ModelConfig& config);

// What of `prompt_tokens` decides the pages' content, for the prefix root: "" unless the model is
// length dependent. Two prompts with equal regimes may share pages.
std::string RopeRegime(const ModelConfig& config, int32_t prompt_tokens);

}  // namespace quire
