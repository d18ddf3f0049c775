// models/weights/weight_path.h -- which file a name from an untrusted index may mean.
#pragma once

#include <string>

#include "base/status.h"

namespace quire {

// The real path of `name` in `dir`, for opening. The name must be a plain file name; the real path
// must be a regular file in `dir`, or in <repo>/blobs if `dir` is <repo>/snapshots/<revision> of a
// hub cache. Nothing is opened.
// ERRORS: kInvalidArgument (name or link refused, not a regular file), kNotFound.
absl::StatusOr<std::string> ResolveWeightFile(const std::string& dir, const std::string& name);

}  // namespace quire
