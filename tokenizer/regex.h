// tokenizer/regex.h -- a regular expression from a tokenizer file, run by PCRE2.
//
// tokenizer.json patterns are written for Oniguruma's Ruby syntax. Those constructs that mean the
// same in PCRE2 are passed on or rewritten (\s is White_Space, \w the Unicode word class, scripts
// by the Script property, ^ and $ at every line); all others are refused at load, never guessed.
//
// The pattern is outside input: matching is bounded by PCRE2's match limit for each start, and by
// thread CPU time over a whole text. Immutable after Compile; FindMatches may run in any thread
// (JIT stack and match data are per thread).
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace quire {

// Bytes [begin, end) of a text.
struct Span {
  size_t begin = 0;
  size_t end = 0;
};

class Regex {
 public:
  // ERRORS: kInvalidArgument with the pattern, and what is wrong with it and where.
  static absl::StatusOr<Regex> Compile(std::string_view pattern);

  // Appends the non-overlapping matches from left to right. An empty match right after the last
  // one is skipped, as Oniguruma's iterator does. REQUIRES: well-formed UTF-8.
  // ERRORS: kResourceExhausted naming the pattern and the byte where the limit was met.
  absl::Status FindMatches(std::string_view text, std::vector<Span>& out) const;

  const std::string& pattern() const { return pattern_; }

 private:
  std::string pattern_;
  std::shared_ptr<const void> code_;  // pcre2_code
};

// The PCRE2 form of an Oniguruma pattern; for tests.
absl::StatusOr<std::string> TranslatePattern(std::string_view pattern);

}  // namespace quire
