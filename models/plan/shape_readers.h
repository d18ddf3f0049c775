// models/plan/shape_readers.h -- which architecture's config is read by which function. Beside
// models/registry.cc (what can be served) this is the only place that names architectures: a plan
// needs a config, not a forward pass.
//
// A reader fills all of ModelShape but name and architecture. Absent keys get the defaults of
// transformers' config classes where these are plain; sizes without which nothing can be said are
// needed. ERRORS: kInvalidArgument naming file, key, value and limit.
#pragma once

#include <span>
#include <string_view>

#include "models/plan/cache_shape.h"
#include "models/plan/config_keys.h"

namespace quire {

struct ShapeReader {
  std::string_view hf_name;     // "architectures"[0] of config.json
  std::string_view model_type;  // where a config names no architecture
  absl::StatusOr<ModelShape> (*read)(const JsonFields& config);
};

std::span<const ShapeReader> ShapeReaders();

// From a config.json's object. A multimodal config's text_config is read, and a note says so.
// ERRORS: kUnimplemented listing what is known; the reader's.
absl::StatusOr<ModelShape> ReadShape(const JsonFields& config);

// shapes_standard.cc
absl::StatusOr<ModelShape> LlamaShape(const JsonFields& config);
absl::StatusOr<ModelShape> MistralShape(const JsonFields& config);
absl::StatusOr<ModelShape> MixtralShape(const JsonFields& config);
absl::StatusOr<ModelShape> Qwen2Shape(const JsonFields& config);
absl::StatusOr<ModelShape> Qwen2MoeShape(const JsonFields& config);
absl::StatusOr<ModelShape> Qwen3Shape(const JsonFields& config);
absl::StatusOr<ModelShape> Qwen3MoeShape(const JsonFields& config);
absl::StatusOr<ModelShape> GemmaShape(const JsonFields& config);
absl::StatusOr<ModelShape> Gemma2Shape(const JsonFields& config);
absl::StatusOr<ModelShape> Gemma3Shape(const JsonFields& config);
absl::StatusOr<ModelShape> Phi3Shape(const JsonFields& config);
absl::StatusOr<ModelShape> SmolLm3Shape(const JsonFields& config);
absl::StatusOr<ModelShape> Starcoder2Shape(const JsonFields& config);
absl::StatusOr<ModelShape> Olmo2Shape(const JsonFields& config);
absl::StatusOr<ModelShape> Olmo3Shape(const JsonFields& config);
absl::StatusOr<ModelShape> Cohere2Shape(const JsonFields& config);
absl::StatusOr<ModelShape> Exaone4Shape(const JsonFields& config);
absl::StatusOr<ModelShape> Glm4MoeShape(const JsonFields& config);
absl::StatusOr<ModelShape> MiniMaxM2Shape(const JsonFields& config);
absl::StatusOr<ModelShape> GptOssShape(const JsonFields& config);
absl::StatusOr<ModelShape> Llama4Shape(const JsonFields& config);
// shapes_classic.cc
absl::StatusOr<ModelShape> Gpt2Shape(const JsonFields& config);
absl::StatusOr<ModelShape> GptBigCodeShape(const JsonFields& config);
absl::StatusOr<ModelShape> GptNeoxShape(const JsonFields& config);
absl::StatusOr<ModelShape> FalconShape(const JsonFields& config);
// shapes_latent.cc
absl::StatusOr<ModelShape> DeepseekShape(const JsonFields& config);
absl::StatusOr<ModelShape> DeepseekIndexedShape(const JsonFields& config);
absl::StatusOr<ModelShape> LongcatFlashShape(const JsonFields& config);
absl::StatusOr<ModelShape> DeepseekV4Shape(const JsonFields& config);
absl::StatusOr<ModelShape> Glm5NextShape(const JsonFields& config);
// shapes_state.cc
absl::StatusOr<ModelShape> QwenHybridShape(const JsonFields& config);
absl::StatusOr<ModelShape> QwenHybridMoeShape(const JsonFields& config);
absl::StatusOr<ModelShape> OlmoHybridShape(const JsonFields& config);
absl::StatusOr<ModelShape> MambaShape(const JsonFields& config);
absl::StatusOr<ModelShape> Mamba2Shape(const JsonFields& config);
absl::StatusOr<ModelShape> JambaShape(const JsonFields& config);
absl::StatusOr<ModelShape> BambaShape(const JsonFields& config);
absl::StatusOr<ModelShape> GraniteHybridShape(const JsonFields& config);
absl::StatusOr<ModelShape> FalconH1Shape(const JsonFields& config);
absl::StatusOr<ModelShape> NemotronHShape(const JsonFields& config);
absl::StatusOr<ModelShape> Zamba2Shape(const JsonFields& config);
absl::StatusOr<ModelShape> Lfm2Shape(const JsonFields& config);
absl::StatusOr<ModelShape> MiniMaxShape(const JsonFields& config);
// shapes_gemma.cc
absl::StatusOr<ModelShape> Gemma3nShape(const JsonFields& config);
absl::StatusOr<ModelShape> Gemma4Shape(const JsonFields& config);
// shapes_encoder.cc
absl::StatusOr<ModelShape> T5Shape(const JsonFields& config);
absl::StatusOr<ModelShape> BartShape(const JsonFields& config);

}  // namespace quire
