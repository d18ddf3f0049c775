// server/openai/logprob_text.h -- logprobs in the two forms that OpenAI's API has. Pure; any
// thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"
#include "sampling/sampler.h"
#include "scheduler/request.h"
#include "tokenizer/tokenizer.h"

namespace quire {

class TokenNames {
 public:
  TokenNames(const Tokenizer& tokenizer, bool as_ids) : tokenizer_(tokenizer), as_ids_(as_ids) {}
  // A token's own text, U+FFFD for parts of characters; or "token_id:17".
  std::string Text(TokenId id) const;
  std::string_view Bytes(TokenId id) const { return tokenizer_.TokenBytes(id); }

 private:
  const Tokenizer& tokenizer_;
  const bool as_ids_;
};

// {"text_offset", "token_logprobs", "tokens", "top_logprobs"} of completions: collected, then
// written.
class CompletionLogprobs {
 public:
  // offset: characters of the text before these tokens.
  explicit CompletionLogprobs(int64_t offset = 0) : offset_(offset) {}
  // The first token of a prompt: nothing is known of it.
  void AddUnknown(const TokenNames& names, TokenId id);
  // top: how many of the best to show besides the token's own.
  void Add(const TokenNames& names, const Sampled& sampled, int32_t top);
  bool empty() const { return count_ == 0; }
  void Write(JsonWriter& w) const;
  // Forgets the tokens, goes on behind them.
  void Clear();

 private:
  void AddToken(const std::string& text);
  int64_t offset_;
  int64_t count_ = 0;
  std::string offsets_, tokens_, logprobs_, tops_;
};

// An element of {"content": [...]} of chats.
void WriteChatLogprob(const TokenNames& names, const Sampled& sampled, int32_t top, JsonWriter& w);

// [null, {"<id>": {"logprob", "rank", "decoded_token"}, ...}, ...]: vLLM's form.
void WritePromptLogprobs(const TokenNames& names, const std::vector<PromptLogprob>& logprobs,
                         JsonWriter& w);

// Characters of well-formed UTF-8.
int64_t NumChars(std::string_view text);

}  // namespace quire
