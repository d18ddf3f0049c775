#include "tokenizer/tokenizer_builder.h"

namespace quire {

absl::Status TokenizerBuilder::AddToken(const AddedToken& token) {
  RETURN_IF_ERROR(vocabulary().Add(token.content, token.id));
  added_.push_back(token);
  return absl::OkStatus();
}

absl::Status TokenizerBuilder::SetMerges(
    const std::vector<std::pair<std::string_view, std::string_view>>& merges,
    const BpeOptions& options) {
  ASSIGN_OR_RETURN(tokenizer_->bpe_, Bpe::Create(&tokenizer_->vocabulary_, merges, options));
  return absl::OkStatus();
}

void TokenizerBuilder::SetSpecialToken(std::string_view name, std::string_view text) {
  auto& list = tokenizer_->special_tokens_;
  for (auto& [key, value] : list) {
    if (key != name) continue;
    value = std::string(text);
    return;
  }
  list.emplace_back(std::string(name), std::string(text));
}

absl::StatusOr<std::unique_ptr<Tokenizer>> TokenizerBuilder::Finish() {
  Tokenizer& t = *tokenizer_;
  t.special_.assign(static_cast<size_t>(t.vocab_size()), false);
  for (const AddedToken& token : added_) {
    if (token.special) t.special_[token.id] = true;
    if (token.normalized) {
      ASSIGN_OR_RETURN(const std::string content, t.normalizer_.Run(token.content));
      t.normalized_added_.Add(token, content);
    } else {
      t.raw_added_.Add(token, token.content);
    }
  }
  t.decoded_.resize(static_cast<size_t>(t.vocab_size()));
  for (TokenId id = 0; id < t.vocab_size(); ++id) {
    if (t.Contains(id)) t.decoded_[id] = DecodeTokenText(t.decoder_, t.TokenText(id));
  }
  const auto id_of = [&](std::string_view name) -> std::optional<TokenId> {
    const std::string_view text = t.SpecialText(name);
    return text.empty() ? std::nullopt : t.Find(text);
  };
  t.bos_id_ = id_of("bos_token");
  t.eos_id_ = id_of("eos_token");
  return std::move(tokenizer_);
}

}  // namespace quire
