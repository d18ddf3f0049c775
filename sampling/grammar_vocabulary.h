// sampling/grammar_vocabulary.h -- a tokenizer as grammars see it. A template, because sampling/
// knows no tokenizer.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "sampling/grammar.h"

namespace quire {

// `Tokenizer` as in tokenizer/tokenizer.h. vocab_size: rows of the model's logits; ids that the
// logits lack are left out.
template <typename Tokenizer>
GrammarVocabulary MakeGrammarVocabulary(const Tokenizer& tokenizer, int32_t vocab_size,
                                        std::vector<TokenId> stop_ids) {
  GrammarVocabulary vocabulary;
  vocabulary.vocab_size = vocab_size;
  vocabulary.stop_ids = std::move(stop_ids);
  const int32_t num_tokens =
      tokenizer.vocab_size() < vocab_size ? tokenizer.vocab_size() : vocab_size;
  vocabulary.token_bytes.resize(static_cast<size_t>(num_tokens));
  for (TokenId id = 0; id < num_tokens; ++id) {
    if (!tokenizer.IsSpecial(id))
      vocabulary.token_bytes[id] = std::string(tokenizer.TokenBytes(id));
  }
  const auto& decoder = tokenizer.decoder();
  vocabulary.drops_first_space =
      decoder.metaspace_drops_first || (decoder.strip_left > 0 && decoder.strip_content == " ");
  return vocabulary;
}

}  // namespace quire
