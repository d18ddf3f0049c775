// tokenizer/detokenizer.h -- text of a stream of tokens, as it comes.
//
// One for each stream, used by one thread at a time. Constant work for each token. What Push and
// Flush return, joined, is Tokenizer::Decode of all ids; each return value is well-formed UTF-8,
// and no character is ever cut. At most three bytes are held back, and only while they may still
// become a character: bytes that cannot are given out as U+FFFD at once.
#pragma once

#include <string>

#include "base/types.h"
#include "tokenizer/tokenizer.h"

namespace quire {

class Detokenizer {
 public:
  // `tokenizer` must outlive this. skip_special: special tokens add nothing.
  Detokenizer(const Tokenizer& tokenizer, bool skip_special)
      : tokenizer_(&tokenizer), skip_special_(skip_special), assembler_(&tokenizer.decoder()) {}

  // The text that became certain with this token; often empty within a character. An id that is not
  // in the vocabulary adds nothing.
  std::string Push(TokenId id) {
    std::string text;
    const DecodedToken* token = tokenizer_->decoded_token(id);
    if (token == nullptr || (skip_special_ && tokenizer_->IsSpecial(id))) return text;
    assembler_.Push(*token, text);
    return text;
  }

  // The rest, once no token follows: U+FFFD if the stream ended within a character, else empty.
  std::string Flush() {
    std::string text;
    assembler_.Flush(text);
    return text;
  }

 private:
  const Tokenizer* tokenizer_;
  bool skip_special_;
  TextAssembler assembler_;
};

}  // namespace quire
