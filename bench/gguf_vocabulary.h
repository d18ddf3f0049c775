// bench/gguf_vocabulary.h -- a tokenizer's metadata in a GGUF file, for benchmark programs.
//
// A template, so that only the programs that link a tokenizer depend on it. What is missing is left
// out: the tokenizer says what it can't do without.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/weights/gguf.h"

namespace quire {

// Vocabulary: GgufVocabulary (tokenizer/tokenizer.h).
template <typename Vocabulary>
Vocabulary VocabularyOf(const GgufFile& file) {
  Vocabulary v;
  const std::string prefix = "tokenizer.ggml.";
  v.model = file.GetString(prefix + "model").value_or("");
  v.pre = file.GetString(prefix + "pre").value_or("");
  v.tokens = file.GetStringArray(prefix + "tokens").value_or(std::vector<std::string>());
  v.merges = file.GetStringArray(prefix + "merges").value_or(std::vector<std::string>());
  for (const int64_t type :
       file.GetIntArray(prefix + "token_type").value_or(std::vector<int64_t>())) {
    v.token_types.push_back(static_cast<int32_t>(type));
  }
  if (const auto id = file.GetInt(prefix + "bos_token_id"); id.ok()) v.bos_token_id = *id;
  if (const auto id = file.GetInt(prefix + "eos_token_id"); id.ok()) v.eos_token_id = *id;
  return v;
}

}  // namespace quire
