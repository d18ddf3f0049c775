// models/plan/shape_source.h -- where a plan's model comes from: a config.json, a checkpoint's
// directory, a GGUF file, or one of the configs that are built in.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "base/status.h"
#include "models/plan/cache_shape.h"

namespace quire {

// deploy/plan-configs/<name>.json, as built in.
struct BuiltInConfig {
  std::string_view name;
  std::string_view json;
};
std::span<const BuiltInConfig> BuiltInConfigs();

// `model`: a path, or a built-in name. A path that exists goes before a name.
// ERRORS: kNotFound listing the built-in names; the readers'.
absl::StatusOr<ModelShape> LoadShape(const std::string& model);

}  // namespace quire
