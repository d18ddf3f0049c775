// models/plan/shapes_gguf.h -- cache shapes out of GGUF metadata: one reader for all architectures,
// since GGUF names sizes alike. Tensor descriptions give parameters and bytes exactly; no tensor is
// read.
#pragma once

#include "models/plan/cache_shape.h"
#include "models/weights/gguf.h"

namespace quire {

// ERRORS: kUnimplemented listing the known architectures; kInvalidArgument naming file, key, value.
absl::StatusOr<ModelShape> ReadGgufShape(const GgufFile& file);

}  // namespace quire
