// server/served_model.h -- what a front end must know of the model to check and tokenize a request.
// Built at start, read-only afterwards; any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "base/types.h"
#include "tokenizer/tokenizer.h"

namespace quire {

// A conversation for the chat template, as checked JSON; empty = not given.
struct ChatPrompt {
  std::string messages_json;   // array of {"role", "content", ...}
  std::string tools_json;      // array
  std::string documents_json;  // array
  std::string kwargs_json;     // object: further variables of the template
  bool add_generation_prompt = true;
  bool continue_final_message = false;
};

struct ServedModel {
  std::string name;
  std::shared_ptr<const Tokenizer> tokenizer;
  // Thread-safe. Null if there is no chat template or nothing to run it: `no_chat` tells why.
  std::function<absl::StatusOr<std::string>(const ChatPrompt&)> render_chat;
  absl::Status no_chat;
  // The template itself: how the model writes calls of tools is told by it. Empty: none.
  std::string chat_template;
  // Names and contents of tokenizer.json, tokenizer_config.json and their like; of a model without
  // them, as they would be. Thread-safe, reads files, takes a moment. Null if there are none.
  std::function<absl::StatusOr<std::vector<std::pair<std::string, std::string>>>()> tokenizer_files;
  int32_t vocab_size = 0;
  int32_t max_model_len = 0;
  int32_t default_max_tokens = 0;  // 0 = what is left of max_model_len
  size_t max_message_bytes = 0;
  std::vector<TokenId> eos_token_ids;
  // Whether a request may ask for guesses by `draft`; ngram and suffix are always there.
  bool has_draft_model = false;
  bool salt_by_tenant = false;  // tenants share no prefixes
};

}  // namespace quire
