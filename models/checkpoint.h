// models/checkpoint.h -- opens a checkpoint: a .gguf file, or a directory with config.json and
// safetensors.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "models/config.h"
#include "models/weights/gguf.h"
#include "models/weights/weight_source.h"

namespace quire {

struct LoadedCheckpoint {
  ModelConfig config;
  std::unique_ptr<WeightSource> weights;
  // `weights` itself if the checkpoint is a GGUF file, for the tokenizer's metadata; else null.
  const GgufFile* gguf = nullptr;
  // Worth a line in the start-up log: weight files that were ignored.
  std::vector<std::string> notes;
};

// ERRORS: kNotFound, kInvalidArgument (file, field, value, limit), kUnimplemented (architecture,
// activation, rope type or tensor type that we do not have, with what is known).
absl::StatusOr<LoadedCheckpoint> OpenCheckpoint(const std::string& path);

}  // namespace quire
