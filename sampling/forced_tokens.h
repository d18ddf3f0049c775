// sampling/forced_tokens.h -- what a grammar forces, as tokens: guesses for the draft window.
//
// The forced bytes are certain, their tokens are not: a text has many tokenisations, and the model
// was trained on one of them. So the last tokens are encoded again together with the forced text,
// and what stands behind the border between them is the guess:
//
//   output  ... `{"`          forced  `name": `
//   encoded ... `{"` `name` `":` ` `       -> guess `name` `":` ` `
//   encoded ... `{"name` `":` ` `          -> no token border where the forced text begins: it is
//                                             encoded alone
//
// The guesses are verified like all drafts, with the mask and the sampler, so a wrong one costs a
// row and changes no output. The last one is the least certain: the model may want a token that
// reaches beyond the forced text.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/types.h"

namespace quire {

// What is needed of a tokenizer; both must be callable on the caller's thread.
struct TokenText {
  // Text to ids, without special tokens; empty on any error.
  std::function<std::vector<TokenId>(std::string_view text)> encode;
  // The bytes that a token adds to an answer; empty for control tokens.
  std::function<std::string_view(TokenId token)> bytes;
};

// At most `max_tokens` ids whose bytes, joined, are a beginning of `forced`. Empty if there is no
// good guess. `output`: the tokens so far, of which the last few are looked at.
std::vector<TokenId> ForcedTokens(std::string_view forced, std::span<const TokenId> output,
                                  int32_t max_tokens, const TokenText& tokens);

}  // namespace quire
