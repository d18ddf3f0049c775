// tokenizer/split_pattern.h -- what a pre-tokenizer looks for: one of the well-known patterns by a
// hand-written scanner, a literal, a character class, or any other regular expression.
//
// The scanners give exactly the matches of their patterns; each is linear in the text, whatever the
// text. Immutable, any thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "tokenizer/regex.h"

namespace quire {

enum class KnownPattern : uint8_t {
  kGpt2,           // ByteLevel's own: contractions, letters, numbers, the rest, white space
  kLlama3,         // numbers in threes, contractions in any case
  kQwen2,          // the same with single digits
  kO200k,          // words split where a capital follows a small letter
  kDeepseekCjk,    // a run of Chinese and Japanese characters
  kDeepseekWords,  // the third pattern of DeepSeek V3
  kNumbersOf3,     // \p{N}{1,3}
  kNumber,         // \p{N}
};

// The pattern's text, as tokenizer.json files have it.
std::string_view PatternText(KnownPattern pattern);

// End of the match that begins at `pos`, or nullopt. REQUIRES: pos < text.size(), at a character.
std::optional<size_t> MatchKnown(KnownPattern pattern, std::string_view text, size_t pos);

class SplitPattern {
 public:
  // A known pattern is recognised by its exact text. ERRORS: as Regex::Compile.
  static absl::StatusOr<SplitPattern> FromRegex(std::string_view pattern);
  static SplitPattern Known(KnownPattern pattern);
  static SplitPattern Literal(std::string text);
  // Each character with a class bit of `mask` is a match of its own (see CharClassBits).
  static SplitPattern AnyOf(uint16_t mask);
  // Punctuation as BERT and the Punctuation pre-tokenizer see it: \p{P} and ASCII's symbols.
  static SplitPattern BertPunctuation();

  // A scanner of our own, not a regular expression at run time.
  bool is_known() const { return kind_ == Kind::kKnown; }

  // Appends the matches, left to right, disjoint. ERRORS: as Regex::FindMatches.
  absl::Status FindMatches(std::string_view text, std::vector<Span>& out) const;

 private:
  enum class Kind : uint8_t { kKnown, kLiteral, kAnyOf, kBertPunctuation, kRegex };
  explicit SplitPattern(Kind kind) : kind_(kind) {}

  Kind kind_;
  KnownPattern known_ = KnownPattern::kGpt2;  // kKnown
  uint16_t mask_ = 0;                         // kAnyOf
  std::string literal_;                       // kLiteral
  Regex regex_;                               // kRegex
};

}  // namespace quire
