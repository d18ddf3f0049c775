// tokenizer/tokenizer_gguf.cc -- a Tokenizer from GGUF metadata (byte-level BPE, model "gpt2").
//
// Pre-tokenizers: gguf_pre.h. Not in a GGUF file, so lost: lstrip, rstrip and single_word of added
// tokens.
#include "tokenizer/gguf_pre.h"
#include "tokenizer/tokenizer_builder.h"
#include "tokenizer/unicode.h"

namespace quire {
namespace {

// Values of tokenizer.ggml.token_type.
constexpr int32_t kTypeUnknown = 2;
constexpr int32_t kTypeControl = 3;
constexpr int32_t kTypeUserDefined = 4;
constexpr int32_t kMaxType = 6;

absl::StatusOr<PreTokenizer> MakePreTokenizer(const GgufPre& pre) {
  std::vector<PreTokenizer::Step> steps;
  for (const std::string_view pattern : pre.patterns) {
    ASSIGN_OR_RETURN(SplitPattern compiled, SplitPattern::FromRegex(pattern));
    steps.emplace_back(SplitStep{std::move(compiled)});
  }
  steps.emplace_back(ByteLevelStep{.use_regex = false});
  return PreTokenizer(std::move(steps));
}

absl::Status LoadTokens(const GgufVocabulary& gguf, TokenizerBuilder& builder) {
  const size_t count = gguf.tokens.size();
  if (count == 0) return InvalidArgument("tokenizer.ggml.tokens is empty");
  if (!gguf.token_types.empty() && gguf.token_types.size() != count) {
    return InvalidArgument("tokenizer.ggml.token_type has {} entries, tokenizer.ggml.tokens has {}",
                           gguf.token_types.size(), count);
  }
  if (!gguf.scores.empty() && gguf.scores.size() != count) {
    return InvalidArgument("tokenizer.ggml.scores has {} entries, tokenizer.ggml.tokens has {}",
                           gguf.scores.size(), count);
  }
  for (size_t i = 0; i < count; ++i) {
    const std::string& text = gguf.tokens[i];
    if (const auto offset = FindInvalidUtf8(text)) {
      return InvalidArgument("tokenizer.ggml.tokens[{}] is not valid UTF-8 at byte {}", i, *offset);
    }
    const int32_t type = gguf.token_types.empty() ? 1 : gguf.token_types[i];
    if (type < 0 || type > kMaxType) {
      return InvalidArgument("tokenizer.ggml.token_type[{}]={} must be in [0, {}]", i, type,
                             kMaxType);
    }
    const absl::Status status = builder.vocabulary().Add(text, static_cast<int64_t>(i));
    if (!status.ok()) return Annotate(status, fmt::format("tokenizer.ggml.tokens[{}]", i));
    const bool special = type == kTypeControl || type == kTypeUnknown;
    if (text.empty() || !(special || type == kTypeUserDefined)) continue;
    RETURN_IF_ERROR(
        builder.AddToken({.id = static_cast<TokenId>(i), .content = text, .special = special}));
  }
  return absl::OkStatus();
}

absl::Status LoadMerges(const GgufVocabulary& gguf, bool ignore_merges, TokenizerBuilder& builder) {
  std::vector<std::pair<std::string_view, std::string_view>> merges;
  merges.reserve(gguf.merges.size());
  for (size_t i = 0; i < gguf.merges.size(); ++i) {
    const std::string_view line = gguf.merges[i];
    // The left part is never empty, so a space in first place belongs to it.
    const size_t space = line.find(' ', 1);
    if (space == std::string_view::npos) {
      return InvalidArgument("tokenizer.ggml.merges[{}]='{}' must be two parts with a space", i,
                             line);
    }
    merges.emplace_back(line.substr(0, space), line.substr(space + 1));
  }
  return Annotate(builder.SetMerges(merges, BpeOptions{.ignore_merges = ignore_merges}),
                  "tokenizer.ggml");
}

// The id under `key`, checked; nullopt if the file has none.
absl::StatusOr<std::optional<TokenId>> CheckedId(const GgufVocabulary& gguf, std::string_view key,
                                                 const std::optional<int64_t>& id) {
  if (!id) return std::optional<TokenId>();
  if (*id < 0 || static_cast<uint64_t>(*id) >= gguf.tokens.size()) {
    return InvalidArgument("tokenizer.ggml.{}={} must be in [0, {}], the ids of the vocabulary",
                           key, *id, gguf.tokens.size() - 1);
  }
  return std::optional<TokenId>(static_cast<TokenId>(*id));
}

absl::Status LoadSpecialIds(const GgufVocabulary& gguf, const GgufPre& pre,
                            TokenizerBuilder& builder) {
  ASSIGN_OR_RETURN(const auto bos, CheckedId(gguf, "bos_token_id", gguf.bos_token_id));
  ASSIGN_OR_RETURN(const auto eos, CheckedId(gguf, "eos_token_id", gguf.eos_token_id));
  ASSIGN_OR_RETURN(const auto unk, CheckedId(gguf, "unknown_token_id", gguf.unknown_token_id));
  ASSIGN_OR_RETURN(const auto pad, CheckedId(gguf, "padding_token_id", gguf.padding_token_id));
  ASSIGN_OR_RETURN(builder.eot_id(), CheckedId(gguf, "eot_token_id", gguf.eot_token_id));
  if (bos) builder.SetSpecialToken("bos_token", gguf.tokens[*bos]);
  if (eos) builder.SetSpecialToken("eos_token", gguf.tokens[*eos]);
  if (unk) builder.SetSpecialToken("unk_token", gguf.tokens[*unk]);
  if (pad) builder.SetSpecialToken("pad_token", gguf.tokens[*pad]);
  // A flag that asks for a token which the file does not name cannot be obeyed.
  if (gguf.add_bos_token.value_or(false) && !bos) {
    return InvalidArgument("tokenizer.ggml.add_bos_token=true needs tokenizer.ggml.bos_token_id");
  }
  if (gguf.add_eos_token.value_or(false) && !eos) {
    return InvalidArgument("tokenizer.ggml.add_eos_token=true needs tokenizer.ggml.eos_token_id");
  }
  if (bos && gguf.add_bos_token.value_or(pre.add_bos)) builder.prefix_ids().push_back(*bos);
  if (eos && gguf.add_eos_token.value_or(false)) builder.suffix_ids().push_back(*eos);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::FromGguf(const GgufVocabulary& gguf) {
  if (gguf.model != "gpt2") {
    return InvalidArgument("tokenizer.ggml.model='{}' is not supported; supported is gpt2",
                           gguf.model);
  }
  ASSIGN_OR_RETURN(const GgufPre* pre, FindGgufPre(gguf.pre));
  if (gguf.add_space_prefix.value_or(false)) {
    return InvalidArgument(
        "tokenizer.ggml.add_space_prefix=true is not supported for tokenizer.ggml.model=gpt2");
  }
  TokenizerBuilder builder;
  RETURN_IF_ERROR(LoadTokens(gguf, builder));
  RETURN_IF_ERROR(LoadMerges(gguf, pre->ignore_merges, builder));
  ASSIGN_OR_RETURN(builder.pre_tokenizer(), MakePreTokenizer(*pre));
  if (pre->nfc) builder.normalizer() = Normalizer({UnicodeForm::kNfc});
  RETURN_IF_ERROR(LoadSpecialIds(gguf, *pre, builder));
  builder.chat_template() = gguf.chat_template;
  return builder.Finish();
}

}  // namespace quire
