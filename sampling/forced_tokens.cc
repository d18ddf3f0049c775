#include "sampling/forced_tokens.h"

#include <algorithm>

namespace quire {
namespace {

// How much of the output is encoded again: pre-tokenizers look back no further than a word.
constexpr size_t kContextBytes = 32;
// Never encoded at once: what is beyond comes with the next steps.
constexpr size_t kForcedBytes = 1024;

// `text` without bytes of a character that is not whole, at either end.
std::string_view WholeCharacters(std::string_view text) {
  const auto continues = [](char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; };
  size_t begin = 0;
  while (begin < text.size() && begin < 3 && continues(text[begin])) ++begin;
  text.remove_prefix(begin);
  size_t back = 0;
  while (back < text.size() && back < 3 && continues(text[text.size() - 1 - back])) ++back;
  if (back < text.size()) {
    const auto lead = static_cast<unsigned char>(text[text.size() - 1 - back]);
    const size_t length = lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    if (length > back + 1) text.remove_suffix(back + 1);
  }
  return text;
}

// The ids of `context + forced` behind the border between the two; empty if no id begins there.
std::vector<TokenId> EncodeBehind(std::string_view context, std::string_view forced,
                                  const TokenText& tokens) {
  std::vector<TokenId> ids = tokens.encode(std::string(context) + std::string(forced));
  // From the end, as encoders may put a space in front.
  size_t bytes = 0;
  size_t first = ids.size();
  while (first > 0 && bytes < forced.size()) bytes += tokens.bytes(ids[--first]).size();
  if (bytes != forced.size()) return {};
  ids.erase(ids.begin(), ids.begin() + static_cast<int64_t>(first));
  return ids;
}

}  // namespace

std::vector<TokenId> ForcedTokens(std::string_view forced, std::span<const TokenId> output,
                                  int32_t max_tokens, const TokenText& tokens) {
  if (forced.size() > kForcedBytes) forced = forced.substr(0, kForcedBytes);
  // Bytes at the front that end a character which the output began cannot be encoded by themselves.
  const std::string_view whole = WholeCharacters(forced);
  if (whole.empty() || whole.data() != forced.data() || max_tokens <= 0) return {};
  std::string context;
  for (size_t i = output.size(); i > 0 && context.size() < kContextBytes; --i) {
    context.insert(0, tokens.bytes(output[i - 1]));
  }
  std::vector<TokenId> ids = EncodeBehind(WholeCharacters(context), whole, tokens);
  // A line break never joins what follows it, in the tokenizers that we know.
  if (ids.empty()) ids = EncodeBehind("\n", whole, tokens);
  if (ids.empty()) ids = EncodeBehind("", whole, tokens);
  if (ids.size() > static_cast<size_t>(max_tokens)) ids.resize(static_cast<size_t>(max_tokens));
  return ids;
}

}  // namespace quire
