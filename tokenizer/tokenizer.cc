#include "tokenizer/tokenizer.h"

#include "tokenizer/detokenizer.h"
#include "tokenizer/unicode.h"

namespace quire {
namespace {

// Symbols and matches are counted in 32 bits; a token has at least one byte, so ids fit as well.
constexpr size_t kMaxTextBytes = size_t{512} << 20;

}  // namespace

absl::StatusOr<std::vector<TokenId>> Tokenizer::Encode(std::string_view text,
                                                       bool add_special_tokens,
                                                       EncodeStats* stats) const {
  if (text.size() > kMaxTextBytes) {
    return InvalidArgument("text has {} bytes, limit is {}; shorten the text", text.size(),
                           kMaxTextBytes);
  }
  if (const auto offset = FindInvalidUtf8(text)) {
    return InvalidArgument("text has byte 0x{:02X} at offset {}, which is not valid UTF-8",
                           static_cast<uint8_t>(text[*offset]), *offset);
  }
  EncodeStats local;
  BpeScratch scratch;
  std::vector<TokenId> ids;
  if (add_special_tokens) ids = prefix_ids_;
  std::vector<Segment> segments;
  raw_added_.Split(text, segments);
  for (const Segment& segment : segments) {
    if (segment.id >= 0) {
      ids.push_back(segment.id);
      continue;
    }
    const std::string_view part =
        text.substr(segment.span.begin, segment.span.end - segment.span.begin);
    RETURN_IF_ERROR(EncodeText(part, segment.span.begin == 0, scratch, local, ids));
  }
  if (add_special_tokens) ids.insert(ids.end(), suffix_ids_.begin(), suffix_ids_.end());
  local.num_merge_candidates = scratch.num_candidates;
  if (stats != nullptr) *stats = local;
  return ids;
}

absl::Status Tokenizer::EncodeText(std::string_view text, bool at_text_start, BpeScratch& scratch,
                                   EncodeStats& stats, std::vector<TokenId>& ids) const {
  std::string normalized;
  if (!normalizer_.empty()) {
    ASSIGN_OR_RETURN(normalized, normalizer_.Run(text));
    text = normalized;
  }
  std::vector<Segment> segments;
  normalized_added_.Split(text, segments);
  PieceList list;
  for (const Segment& segment : segments) {
    if (segment.id >= 0) {
      ids.push_back(segment.id);
      continue;
    }
    list.text.assign(text, segment.span.begin, segment.span.end - segment.span.begin);
    list.at_text_start = at_text_start && segment.span.begin == 0;
    RETURN_IF_ERROR(pre_tokenizer_.Run(list));
    stats.num_pieces += static_cast<int64_t>(list.pieces.size());
    for (const Span& piece : list.pieces) {
      const std::string_view bytes =
          std::string_view(list.text).substr(piece.begin, piece.end - piece.begin);
      if (pre_tokenizer_.bytes_are_symbols()) {
        bpe_.EncodeBytes(bytes, scratch, ids);
      } else {
        bpe_.EncodeChars(bytes, scratch, ids);
      }
    }
  }
  return absl::OkStatus();
}

std::string Tokenizer::Decode(std::span<const TokenId> ids, bool skip_special_tokens) const {
  Detokenizer detokenizer(*this, skip_special_tokens);
  std::string text;
  for (const TokenId id : ids) text += detokenizer.Push(id);
  text += detokenizer.Flush();
  return text;
}

std::string_view Tokenizer::ChatTemplateFor(bool has_tools) const {
  for (const auto& [name, text] : named_chat_templates_) {
    if (has_tools && name == "tool_use") return text;
  }
  return chat_template_;
}

std::string_view Tokenizer::SpecialText(std::string_view name) const {
  for (const auto& [key, text] : special_tokens_) {
    if (key == name) return text;
  }
  return {};
}

}  // namespace quire
