// tokenizer/tokenizer.h -- text to token ids and back, for one model.
//
// Made from a Hugging Face directory (tokenizer.json) or from GGUF metadata; both give the same
// object. Ids are those of PyPI's `tokenizers` for the same file. What a file asks for and this
// code does not do is refused at load by name, never replaced by a default.
//
// Immutable after load: all const methods may be called from any thread at once.
//
// Rules worth knowing:
// - Text that is not well-formed UTF-8 is refused, with the offset of the first bad byte. NUL is an
//   ordinary character.
// - Added tokens are recognised wherever their text occurs, in user text too ("<|im_end|>" typed by
//   a user becomes the control token), as in the reference implementation.
// - add_special_tokens puts the model's own prefix and suffix (often BOS) around the text even if
//   the text already begins with it. Chat templates write BOS themselves: encode their output with
//   add_special_tokens = false.
// - Decode gives U+FFFD for bytes that are not UTF-8, see decoder.h.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/status.h"
#include "base/types.h"
#include "tokenizer/added_tokens.h"
#include "tokenizer/bpe.h"
#include "tokenizer/decoder.h"
#include "tokenizer/normalize.h"
#include "tokenizer/pretokenize.h"
#include "tokenizer/vocabulary.h"

namespace quire {

// The tokenizer.* metadata of a GGUF file, as the file's reader found it.
struct GgufVocabulary {
  std::string model;                 // tokenizer.ggml.model
  std::string pre;                   // tokenizer.ggml.pre
  std::vector<std::string> tokens;   // tokenizer.ggml.tokens
  std::vector<int32_t> token_types;  // tokenizer.ggml.token_type; empty: all normal
  std::vector<float> scores;         // tokenizer.ggml.scores; empty: none
  std::vector<std::string> merges;   // tokenizer.ggml.merges
  std::optional<int64_t> bos_token_id;
  std::optional<int64_t> eos_token_id;
  std::optional<int64_t> eot_token_id;
  std::optional<int64_t> unknown_token_id;
  std::optional<int64_t> padding_token_id;
  std::optional<bool> add_bos_token;
  std::optional<bool> add_eos_token;
  std::optional<bool> add_space_prefix;
  std::string chat_template;  // tokenizer.chat_template
};

// Work done by one Encode.
struct EncodeStats {
  int64_t num_pieces = 0;
  int64_t num_merge_candidates = 0;
};

class Tokenizer {
 public:
  // Reads tokenizer.json and, where they are present, tokenizer_config.json,
  // special_tokens_map.json and chat_template.jinja. ERRORS: those of FromJson with the file's
  // path; kNotFound.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> FromDirectory(const std::string& directory);

  // ERRORS: kInvalidArgument naming the field and what is wrong or not supported.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> FromJson(
      std::string_view tokenizer_json, std::string_view tokenizer_config_json = {});

  // ERRORS: kInvalidArgument naming the metadata key.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> FromGguf(const GgufVocabulary& gguf);

  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // ERRORS: kInvalidArgument (not UTF-8, too long), kResourceExhausted (a regular expression of the
  // model's files exceeds its limit on this text).
  absl::StatusOr<std::vector<TokenId>> Encode(std::string_view text, bool add_special_tokens,
                                              EncodeStats* stats = nullptr) const;

  // Ids that are not in the vocabulary add nothing.
  std::string Decode(std::span<const TokenId> ids, bool skip_special_tokens) const;

  // The largest id + 1; ids may have gaps. A model's embedding may have more rows.
  TokenId vocab_size() const { return vocabulary_.size(); }
  bool Contains(TokenId id) const { return vocabulary_.Contains(id); }
  std::optional<TokenId> Find(std::string_view text) const { return vocabulary_.Find(text); }

  // The text in the vocabulary ("\u0120the"); empty for an unknown id.
  std::string_view TokenText(TokenId id) const { return vocabulary_.Text(id); }
  // The bytes that the token adds to an answer (" the"); may be part of a character.
  std::string_view TokenBytes(TokenId id) const {
    return Contains(id) ? std::string_view(decoded_[id].bytes) : std::string_view();
  }
  // Control tokens: skipped by Decode(skip_special_tokens).
  bool IsSpecial(TokenId id) const { return Contains(id) && special_[id]; }

  std::optional<TokenId> bos_id() const { return bos_id_; }
  std::optional<TokenId> eos_id() const { return eos_id_; }
  // Ends a turn; equals eos_id in many models. GGUF files name it, others have it as eos.
  std::optional<TokenId> eot_id() const { return eot_id_; }
  std::string_view bos_text() const { return SpecialText("bos_token"); }
  std::string_view eos_text() const { return SpecialText("eos_token"); }

  // Named special tokens that a template may use ("bos_token" -> "<s>"), in file order of
  // kSpecialTokenNames.
  const std::vector<std::pair<std::string, std::string>>& special_tokens() const {
    return special_tokens_;
  }

  // The template for a chat, as transformers chooses it: "tool_use" where the request has tools and
  // the files name such a template, else the default one; empty: none.
  std::string_view ChatTemplateFor(bool has_tools) const;

  // The default chat template, or empty. Named ones ("tool_use", "rag") besides.
  const std::string& chat_template() const { return chat_template_; }
  const std::vector<std::pair<std::string, std::string>>& named_chat_templates() const {
    return named_chat_templates_;
  }

  // For Detokenizer.
  const DecoderSpec& decoder() const { return decoder_; }
  const DecodedToken* decoded_token(TokenId id) const {
    return Contains(id) ? &decoded_[id] : nullptr;
  }

 private:
  friend class TokenizerBuilder;
  Tokenizer() = default;

  std::string_view SpecialText(std::string_view name) const;
  absl::Status EncodeText(std::string_view text, bool at_text_start, BpeScratch& scratch,
                          EncodeStats& stats, std::vector<TokenId>& ids) const;

  Vocabulary vocabulary_;
  std::vector<DecodedToken> decoded_;
  std::vector<bool> special_;
  AddedTokenMatcher raw_added_;         // looked for in the text as it is
  AddedTokenMatcher normalized_added_;  // looked for in normalised text
  Normalizer normalizer_;
  PreTokenizer pre_tokenizer_;
  Bpe bpe_;
  DecoderSpec decoder_;
  std::vector<TokenId> prefix_ids_;  // what add_special_tokens puts around the text
  std::vector<TokenId> suffix_ids_;
  std::optional<TokenId> bos_id_;
  std::optional<TokenId> eos_id_;
  std::optional<TokenId> eot_id_;
  std::vector<std::pair<std::string, std::string>> special_tokens_;
  std::string chat_template_;
  std::vector<std::pair<std::string, std::string>> named_chat_templates_;
};

}  // namespace quire
