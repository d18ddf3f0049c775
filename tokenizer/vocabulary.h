// tokenizer/vocabulary.h -- token texts and ids, both ways. Filled at load, then immutable.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "base/status.h"
#include "base/types.h"

namespace quire {

class Vocabulary {
 public:
  // Ids may have gaps; the bound keeps a hostile id from asking for gigabytes.
  static constexpr TokenId kMaxTokenId = (1 << 24) - 1;

  // ERRORS: kInvalidArgument if the id is out of range, or text or id is taken by another token.
  absl::Status Add(std::string_view text, int64_t id) {
    if (id < 0 || id > kMaxTokenId) {
      return InvalidArgument("id={} of token '{}' must be in [0, {}]", id, text, kMaxTokenId);
    }
    const auto token = static_cast<TokenId>(id);
    if (Contains(token)) {
      if (tokens_[id].text == text) return absl::OkStatus();
      return InvalidArgument("id={} belongs to two tokens, '{}' and '{}'", id, tokens_[id].text,
                             text);
    }
    if (const auto other = Find(text)) {
      return InvalidArgument("token '{}' has two ids, {} and {}", text, *other, id);
    }
    if (token >= size()) tokens_.resize(static_cast<size_t>(id) + 1);
    tokens_[id].text = std::string(text);
    tokens_[id].present = true;
    ids_.emplace(std::string(text), token);
    return absl::OkStatus();
  }

  // The largest id + 1.
  TokenId size() const { return static_cast<TokenId>(tokens_.size()); }
  bool Contains(TokenId id) const { return id >= 0 && id < size() && tokens_[id].present; }

  std::optional<TokenId> Find(std::string_view text) const {
    const auto it = ids_.find(std::string(text));
    if (it == ids_.end()) return std::nullopt;
    return it->second;
  }

  // Empty for an id that is not in the vocabulary.
  std::string_view Text(TokenId id) const {
    return Contains(id) ? std::string_view(tokens_[id].text) : std::string_view();
  }

 private:
  struct Token {
    std::string text;
    bool present = false;
  };
  std::vector<Token> tokens_;
  absl::flat_hash_map<std::string, TokenId> ids_;
};

}  // namespace quire
