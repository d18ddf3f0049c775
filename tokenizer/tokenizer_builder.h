// tokenizer/tokenizer_builder.h -- assembles a Tokenizer; for the two loaders only.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace quire {

// Names of special tokens that chat templates may use, in the order in which they are listed.
inline constexpr std::string_view kSpecialTokenNames[] = {
    "bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"};

class TokenizerBuilder {
 public:
  TokenizerBuilder() : tokenizer_(new Tokenizer()) {}

  Vocabulary& vocabulary() { return tokenizer_->vocabulary_; }
  PreTokenizer& pre_tokenizer() { return tokenizer_->pre_tokenizer_; }
  Normalizer& normalizer() { return tokenizer_->normalizer_; }
  DecoderSpec& decoder() { return tokenizer_->decoder_; }
  std::vector<TokenId>& prefix_ids() { return tokenizer_->prefix_ids_; }
  std::vector<TokenId>& suffix_ids() { return tokenizer_->suffix_ids_; }
  std::optional<TokenId>& eot_id() { return tokenizer_->eot_id_; }
  std::string& chat_template() { return tokenizer_->chat_template_; }
  auto& named_chat_templates() { return tokenizer_->named_chat_templates_; }

  // The token's text must be in the vocabulary under its id, or be new with a free id.
  // ERRORS: as Vocabulary::Add.
  absl::Status AddToken(const AddedToken& token);

  absl::Status SetMerges(const std::vector<std::pair<std::string_view, std::string_view>>& merges,
                         const BpeOptions& options);

  // E.g. "bos_token", "<s>". Ids follow where the vocabulary has the text.
  void SetSpecialToken(std::string_view name, std::string_view text);

  // Ends the building. Call once, last.
  absl::StatusOr<std::unique_ptr<Tokenizer>> Finish();

 private:
  std::unique_ptr<Tokenizer> tokenizer_;
  std::vector<AddedToken> added_;
};

}  // namespace quire
