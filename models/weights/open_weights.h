// models/weights/open_weights.h -- the tensors of a checkpoint, whatever its format.
#pragma once

#include <memory>
#include <string>

#include "base/status.h"
#include "models/weights/weight_source.h"

namespace quire {

// A .gguf file, a .safetensors file, or a directory with safetensors.
// ERRORS: those of GgufFile and SafetensorsSource; kNotFound if there is nothing at `path`;
// kInvalidArgument if it is neither, naming what a directory holds instead.
absl::StatusOr<std::unique_ptr<WeightSource>> OpenWeights(const std::string& path);

}  // namespace quire
