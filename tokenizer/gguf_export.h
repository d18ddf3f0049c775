// tokenizer/gguf_export.h -- the tokenizer files that a Hugging Face directory would have, for a
// model that came as GGUF: gateways and clients tokenize with them by themselves.
//
// What PyPI's `tokenizers` makes of them gives the ids of Tokenizer::FromGguf. Pure; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "tokenizer/tokenizer.h"

namespace quire {

// Name and content.
using TextFile = std::pair<std::string, std::string>;

// tokenizer.json, tokenizer_config.json and special_tokens_map.json. chat_template: of the config;
// empty: none. ERRORS: those of Tokenizer::FromGguf that concern the pre-tokenizer and special ids.
absl::StatusOr<std::vector<TextFile>> ExportGguf(const GgufVocabulary& gguf,
                                                 std::string_view chat_template,
                                                 int32_t max_model_len);

}  // namespace quire
