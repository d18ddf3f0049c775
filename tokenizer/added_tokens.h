// tokenizer/added_tokens.h -- finds added tokens ("<|im_end|>") in text before anything splits it.
//
// At each place the longest token wins, and matches do not overlap: the rules of PyPI's
// `tokenizers`, with its lstrip, rstrip and single_word. Immutable after load.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "base/types.h"
#include "tokenizer/regex.h"

namespace quire {

struct AddedToken {
  TokenId id = 0;
  std::string content;
  bool special = false;      // left out by Decode(skip_special_tokens)
  bool single_word = false;  // only where no word character touches it
  bool lstrip = false;       // swallows white space before it
  bool rstrip = false;       // swallows white space behind it
  bool normalized = false;   // is looked for in the normalised text
};

// A stretch of text: an added token, or (id < 0) text between them.
struct Segment {
  Span span;
  TokenId id = -1;
};

class AddedTokenMatcher {
 public:
  // `content` as it is to be found (normalised, for tokens that are). Empty ones are left out.
  void Add(const AddedToken& token, std::string_view content);
  bool empty() const { return tokens_.empty(); }

  // Appends segments that cover `text`; text between tokens is never empty.
  void Split(std::string_view text, std::vector<Segment>& out) const;

 private:
  struct Node {
    int32_t token = -1;  // index into tokens_
  };
  // Longest token that begins at `pos`: index into tokens_ or -1, and where it ends.
  int32_t LongestAt(std::string_view text, size_t pos, size_t& end) const;

  std::vector<AddedToken> tokens_;
  std::vector<Node> nodes_ = {Node{}};
  absl::flat_hash_map<uint64_t, int32_t> children_;  // node * 256 + byte
  bool first_byte_[256] = {};
};

}  // namespace quire
