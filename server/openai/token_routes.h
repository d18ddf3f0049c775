// server/openai/token_routes.h -- bodies of the routes that generate nothing. Pure; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"
#include "server/served_model.h"

namespace quire {

// GET /v1/models and /v1/models/{id}. created: seconds since 1970.
std::string ModelList(const ServedModel& model, int64_t created);
std::string ModelCard(const ServedModel& model, int64_t created);

// POST /tokenize: {"prompt"} or {"messages", "tools" ...} to {"count", "max_model_len", "tokens",
// "token_strs"}.
absl::StatusOr<std::string> TokenizeBody(std::string_view body, const ServedModel& model);
// POST /detokenize: {"tokens"} to {"prompt"}.
absl::StatusOr<std::string> DetokenizeBody(std::string_view body, const ServedModel& model);

// %xx as bytes; what is none stays.
std::string PercentDecoded(std::string_view text);

}  // namespace quire
