// What the tests of structured output share: vocabularies, masks, random walks.
#pragma once

#include <fstream>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "sampling/grammar.h"
#include "sampling/grammar_vocabulary.h"

namespace quire {

// Every byte, then some longer tokens; the last id is the end.
struct ToyVocabulary {
  explicit ToyVocabulary(std::vector<std::string> longer = {}) {
    for (int byte = 0; byte < 256; ++byte) bytes.push_back(std::string(1, static_cast<char>(byte)));
    for (std::string& token : longer) bytes.push_back(std::move(token));
    end = static_cast<TokenId>(bytes.size());
    bytes.emplace_back();
  }
  GrammarVocabulary Vocabulary(int32_t padding = 0) const {
    return {.token_bytes = bytes,
            .vocab_size = static_cast<int32_t>(bytes.size()) + padding,
            .stop_ids = {end}};
  }
  std::vector<std::string> bytes;
  TokenId end = 0;
};

inline std::string ReadText(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

inline bool Allows(std::span<const int32_t> mask, TokenId id) {
  return (static_cast<uint32_t>(mask[id / 32]) >> (id % 32) & 1) != 0;
}

inline std::vector<int32_t> MaskOf(GrammarMatcher& matcher) {
  std::vector<int32_t> mask(MaskWords(matcher.vocab_size()), -1);
  matcher.FillMask(mask);
  return mask;
}

inline std::vector<TokenId> AllowedIds(std::span<const int32_t> mask) {
  std::vector<TokenId> ids;
  for (TokenId id = 0; id < static_cast<TokenId>(mask.size()) * 32; ++id) {
    if (Allows(mask, id)) ids.push_back(id);
  }
  return ids;
}

// One of the allowed tokens, short ones more often than not, so that words come to an end.
inline TokenId PickToken(const std::vector<TokenId>& allowed, const std::vector<std::string>& bytes,
                         std::mt19937& random) {
  TokenId best = allowed[random() % allowed.size()];
  if (random() % 4 != 0) {
    for (int i = 0; i < 4; ++i) {
      const TokenId other = allowed[random() % allowed.size()];
      if (bytes[other].size() < bytes[best].size()) best = other;
    }
  }
  return best;
}

}  // namespace quire
