// server/tokenizer_files.h -- the files that a client needs to tokenize as this server does: those
// beside the model, or for a GGUF file what they would be. Reads files; any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "models/config.h"
#include "server/served_model.h"
#include "tokenizer/gguf_export.h"

namespace quire {

// ERRORS: kNotFound if the folder has none, kInvalidArgument for one that is too large.
absl::StatusOr<std::vector<TextFile>> ReadTokenizerFiles(const std::string& directory);

// tokenizer.json and its like, config.json and generation_config.json.
absl::StatusOr<std::vector<TextFile>> MakeTokenizerFiles(const GgufVocabulary& gguf,
                                                         std::string_view chat_template,
                                                         const ModelConfig& config,
                                                         const std::vector<TokenId>& eos_token_ids,
                                                         int32_t max_model_len);

}  // namespace quire
