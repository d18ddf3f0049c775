// server/load_model.h -- from options to a model that can be served: weights, tokenizer, template.
// Main thread, before any other thread exists.
#pragma once

#include <memory>

#include "base/status.h"
#include "models/runtime.h"
#include "server/options.h"
#include "server/served_model.h"

namespace quire {

struct LoadedModel {
  std::unique_ptr<ModelRuntime> runtime;
  ServedModel served;
};

RuntimeOptions ToRuntimeOptions(const ServerOptions& options);

// ERRORS: those of ModelRuntime::Load and Tokenizer; kInvalidArgument if tokenizer and weights
// don't belong together. A chat template that can't be used is no error: `served.no_chat` tells.
absl::StatusOr<LoadedModel> LoadModel(const ServerOptions& options);

}  // namespace quire
