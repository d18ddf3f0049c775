#include "tokenizer/added_tokens.h"

#include <algorithm>

#include "tokenizer/unicode.h"

namespace quire {
namespace {

bool EndsWithWord(std::string_view text) {
  return !text.empty() && (CharClass(DecodeCharBefore(text, text.size()).value) & kWord) != 0;
}

bool StartsWithWord(std::string_view text) {
  return !text.empty() && (CharClass(DecodeChar(text, 0).value) & kWord) != 0;
}

size_t SpaceBefore(std::string_view text, size_t pos) {
  while (pos > 0) {
    const DecodedChar c = DecodeCharBefore(text, pos);
    if (!(CharClass(c.value) & kSpace)) break;
    pos -= c.length;
  }
  return pos;
}

size_t SpaceBehind(std::string_view text, size_t pos) {
  while (pos < text.size()) {
    const DecodedChar c = DecodeChar(text, pos);
    if (!(CharClass(c.value) & kSpace)) break;
    pos += c.length;
  }
  return pos;
}

}  // namespace

void AddedTokenMatcher::Add(const AddedToken& token, std::string_view content) {
  if (content.empty()) return;
  int32_t node = 0;
  for (const char c : content) {
    const uint64_t key = static_cast<uint64_t>(node) * 256 + static_cast<uint8_t>(c);
    const auto [it, added] = children_.try_emplace(key, static_cast<int32_t>(nodes_.size()));
    node = it->second;
    if (added) nodes_.push_back(Node{});
  }
  if (nodes_[node].token >= 0) return;  // the first of two equal ones stays
  nodes_[node].token = static_cast<int32_t>(tokens_.size());
  tokens_.push_back(token);
  first_byte_[static_cast<uint8_t>(content[0])] = true;
}

int32_t AddedTokenMatcher::LongestAt(std::string_view text, size_t pos, size_t& end) const {
  int32_t found = -1;
  int32_t node = 0;
  for (size_t i = pos; i < text.size(); ++i) {
    const auto it =
        children_.find(static_cast<uint64_t>(node) * 256 + static_cast<uint8_t>(text[i]));
    if (it == children_.end()) break;
    node = it->second;
    if (nodes_[node].token >= 0) {
      found = nodes_[node].token;
      end = i + 1;
    }
  }
  return found;
}

void AddedTokenMatcher::Split(std::string_view text, std::vector<Segment>& out) const {
  size_t covered = 0;  // segments reach up to here
  size_t pos = 0;
  while (pos < text.size()) {
    size_t match_end = 0;
    const int32_t index =
        first_byte_[static_cast<uint8_t>(text[pos])] ? LongestAt(text, pos, match_end) : -1;
    if (index < 0) {
      ++pos;
      continue;
    }
    const AddedToken& token = tokens_[index];
    size_t begin = pos;
    size_t end = match_end;
    pos = match_end;
    if (token.single_word &&
        (EndsWithWord(text.substr(0, begin)) || StartsWithWord(text.substr(end)))) {
      continue;
    }
    if (token.lstrip) begin = std::max(SpaceBefore(text, begin), covered);
    if (token.rstrip) end = SpaceBehind(text, end);
    if (covered < begin) out.push_back({{covered, begin}, -1});
    out.push_back({{begin, end}, token.id});
    covered = end;
  }
  if (covered < text.size()) out.push_back({{covered, text.size()}, -1});
}

}  // namespace quire
