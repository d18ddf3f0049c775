#include "tokenizer/split_pattern.h"

#include <array>

#include "tokenizer/unicode.h"

namespace quire {
namespace {

constexpr uint16_t kWordOrSpace = kLetter | kNumber | kSpace;

uint16_t ClassAt(std::string_view text, size_t pos) {
  return pos < text.size() ? CharClass(DecodeChar(text, pos).value) : 0;
}

size_t After(std::string_view text, size_t pos) { return pos + DecodeChar(text, pos).length; }

bool Has(std::string_view text, size_t pos, uint16_t mask) {
  return pos < text.size() && (ClassAt(text, pos) & mask) != 0;
}

bool HasNone(std::string_view text, size_t pos, uint16_t mask) {
  return pos < text.size() && (ClassAt(text, pos) & mask) == 0;
}

size_t SkipWhile(std::string_view text, size_t pos, uint16_t mask) {
  while (Has(text, pos, mask)) pos = After(text, pos);
  return pos;
}

size_t SkipWhileNone(std::string_view text, size_t pos, uint16_t mask) {
  while (HasNone(text, pos, mask)) pos = After(text, pos);
  return pos;
}

// 's 't 're 've 'm 'll 'd. In any case, U+017F (long s) counts as an s: that is its simple case
// folding, and no other character folds to one of these letters.
std::optional<size_t> MatchContraction(std::string_view text, size_t pos, bool any_case) {
  if (pos >= text.size() || text[pos] != '\'') return std::nullopt;
  const auto letter = [&](size_t i) -> char {
    if (pos + i >= text.size()) return '\0';
    const char c = text[pos + i];
    return any_case && c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  };
  const char first = letter(1);
  if (first == 's' || first == 't' || first == 'm' || first == 'd') return pos + 2;
  if (any_case && text.substr(pos + 1, 2) == "\xC5\xBF") return pos + 3;
  const char second = letter(2);
  if ((first == 'r' && second == 'e') || (first == 'v' && second == 'e') ||
      (first == 'l' && second == 'l')) {
    return pos + 3;
  }
  return std::nullopt;
}

// \s*[\r\n]+ (if `newlines`), then \s+(?!\S), then \s+.
std::optional<size_t> MatchSpace(std::string_view text, size_t pos, bool newlines) {
  size_t end = pos;
  size_t last_begin = pos;   // of the last white space character of the run
  size_t newline_end = pos;  // behind the last newline of the run
  for (uint16_t bits; end < text.size() && ((bits = ClassAt(text, end)) & kSpace);) {
    last_begin = end;
    end = After(text, end);
    if (bits & kNewline) newline_end = end;
  }
  if (end == pos) return std::nullopt;
  if (newlines && newline_end > pos) return newline_end;
  // In front of something else, the last white space is left for it, unless it is all there is.
  return end == text.size() || last_begin == pos ? end : last_begin;
}

// ` ?[^\s\p{L}\p{N}]+` or, by other masks, what is like it. Returns the end of the run.
std::optional<size_t> MatchOther(std::string_view text, size_t pos) {
  const size_t begin = pos + (text[pos] == ' ' ? 1 : 0);
  if (!HasNone(text, begin, kWordOrSpace)) return std::nullopt;
  return SkipWhileNone(text, begin, kWordOrSpace);
}

size_t SkipNewlines(std::string_view text, size_t pos, bool slashes) {
  while (pos < text.size() &&
         (text[pos] == '\r' || text[pos] == '\n' || (slashes && text[pos] == '/'))) {
    ++pos;
  }
  return pos;
}

std::optional<size_t> MatchNumbers(std::string_view text, size_t pos, int max_digits) {
  size_t end = pos;
  for (int i = 0; i < max_digits && Has(text, end, kNumber); ++i) end = After(text, end);
  if (end == pos) return std::nullopt;
  return end;
}

std::optional<size_t> MatchGpt2(std::string_view text, size_t pos) {
  if (const auto end = MatchContraction(text, pos, /*any_case=*/false)) return end;
  const size_t begin = pos + (text[pos] == ' ' ? 1 : 0);
  if (Has(text, begin, kLetter)) return SkipWhile(text, begin, kLetter);
  if (Has(text, begin, kNumber)) return SkipWhile(text, begin, kNumber);
  if (const auto end = MatchOther(text, pos)) return end;
  return MatchSpace(text, pos, /*newlines=*/false);
}

std::optional<size_t> MatchLlama3(std::string_view text, size_t pos, int max_digits) {
  if (const auto end = MatchContraction(text, pos, /*any_case=*/true)) return end;
  const uint16_t first = ClassAt(text, pos);
  if (first & kLetter) return SkipWhile(text, pos, kLetter);
  if (!(first & (kNewline | kNumber))) {
    const size_t begin = After(text, pos);
    if (Has(text, begin, kLetter)) return SkipWhile(text, begin, kLetter);
  }
  if (const auto end = MatchNumbers(text, pos, max_digits)) return end;
  if (const auto end = MatchOther(text, pos)) return SkipNewlines(text, *end, false);
  return MatchSpace(text, pos, /*newlines=*/true);
}

// Upper*Lower+ from `begin`, with the backtracking that the overlap of the two classes needs.
std::optional<size_t> MatchUpperThenLower(std::string_view text, size_t begin) {
  const size_t upper_end = SkipWhile(text, begin, kUpperLike);
  if (Has(text, upper_end, kLowerLike)) return SkipWhile(text, upper_end, kLowerLike);
  for (size_t pos = upper_end; pos > begin;) {
    const DecodedChar c = DecodeCharBefore(text, pos);
    if (CharClass(c.value) & kLowerLike) return pos;
    pos -= c.length;
  }
  return std::nullopt;
}

std::optional<size_t> MatchUppers(std::string_view text, size_t begin) {
  if (!Has(text, begin, kUpperLike)) return std::nullopt;
  return SkipWhile(text, SkipWhile(text, begin, kUpperLike), kLowerLike);
}

std::optional<size_t> MatchO200k(std::string_view text, size_t pos) {
  const bool prefix = !(ClassAt(text, pos) & (kNewline | kLetter | kNumber));
  std::optional<size_t> end;
  for (const auto match : {MatchUpperThenLower, MatchUppers}) {
    if (prefix) end = match(text, After(text, pos));
    if (!end) end = match(text, pos);
    if (end) return MatchContraction(text, *end, /*any_case=*/true).value_or(*end);
  }
  if ((end = MatchNumbers(text, pos, 3))) return end;
  if ((end = MatchOther(text, pos))) return SkipNewlines(text, *end, /*slashes=*/true);
  return MatchSpace(text, pos, /*newlines=*/true);
}

bool IsAsciiLetter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

bool IsAsciiPunctuation(char32_t c) {
  return (c >= 0x21 && c <= 0x2F) || (c >= 0x3A && c <= 0x40) || (c >= 0x5B && c <= 0x60) ||
         (c >= 0x7B && c <= 0x7E);
}

std::optional<size_t> MatchDeepseekWords(std::string_view text, size_t pos) {
  const char c = text[pos];
  if (IsAsciiPunctuation(static_cast<uint8_t>(c)) && pos + 1 < text.size() &&
      IsAsciiLetter(text[pos + 1])) {
    size_t end = pos + 1;
    while (end < text.size() && IsAsciiLetter(text[end])) ++end;
    return end;
  }
  constexpr uint16_t kInWord = kLetter | kMark;
  const uint16_t first = ClassAt(text, pos);
  if (!(first & (kNewline | kLetter | kPunctuation | kSymbol))) {
    const size_t begin = After(text, pos);
    if (Has(text, begin, kInWord)) return SkipWhile(text, begin, kInWord);
  }
  if (first & kInWord) return SkipWhile(text, pos, kInWord);
  const size_t begin = pos + (c == ' ' ? 1 : 0);
  if (Has(text, begin, kPunctuation | kSymbol)) {
    return SkipNewlines(text, SkipWhile(text, begin, kPunctuation | kSymbol), false);
  }
  return MatchSpace(text, pos, /*newlines=*/true);
}

std::optional<size_t> MatchDeepseekCjk(std::string_view text, size_t pos) {
  size_t end = pos;
  while (end < text.size()) {
    const DecodedChar c = DecodeChar(text, end);
    if (!((c.value >= 0x4E00 && c.value <= 0x9FA5) || (c.value >= 0x3040 && c.value <= 0x30FF))) {
      break;
    }
    end += c.length;
  }
  if (end == pos) return std::nullopt;
  return end;
}

constexpr std::array<KnownPattern, 8> kKnownPatterns = {
    KnownPattern::kGpt2,       KnownPattern::kLlama3,      KnownPattern::kQwen2,
    KnownPattern::kO200k,      KnownPattern::kDeepseekCjk, KnownPattern::kDeepseekWords,
    KnownPattern::kNumbersOf3, KnownPattern::kNumber};

}  // namespace

std::string_view PatternText(KnownPattern pattern) {
  switch (pattern) {
    case KnownPattern::kGpt2:
      return R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
    case KnownPattern::kLlama3:
      return R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|)"
             R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
    case KnownPattern::kQwen2:
      return R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|)"
             R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
    case KnownPattern::kO200k:
      return R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
             R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+)"
             R"([\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}|)"
             R"( ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
    case KnownPattern::kDeepseekCjk:
      return "[\xE4\xB8\x80-\xE9\xBE\xA5\xE3\x81\x80-\xE3\x82\x9F\xE3\x82\xA0-\xE3\x83\xBF]+";
    case KnownPattern::kDeepseekWords:
      return R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?)"
             R"([\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
    case KnownPattern::kNumbersOf3:
      return R"(\p{N}{1,3})";
    case KnownPattern::kNumber:
      return R"(\p{N})";
  }
  return "";
}

std::optional<size_t> MatchKnown(KnownPattern pattern, std::string_view text, size_t pos) {
  switch (pattern) {
    case KnownPattern::kGpt2:
      return MatchGpt2(text, pos);
    case KnownPattern::kLlama3:
      return MatchLlama3(text, pos, 3);
    case KnownPattern::kQwen2:
      return MatchLlama3(text, pos, 1);
    case KnownPattern::kO200k:
      return MatchO200k(text, pos);
    case KnownPattern::kDeepseekCjk:
      return MatchDeepseekCjk(text, pos);
    case KnownPattern::kDeepseekWords:
      return MatchDeepseekWords(text, pos);
    case KnownPattern::kNumbersOf3:
      return MatchNumbers(text, pos, 3);
    case KnownPattern::kNumber:
      return MatchNumbers(text, pos, 1);
  }
  return std::nullopt;
}

absl::StatusOr<SplitPattern> SplitPattern::FromRegex(std::string_view pattern) {
  for (const KnownPattern known : kKnownPatterns) {
    if (pattern == PatternText(known)) return Known(known);
  }
  // Some files escape the quotation mark, which changes nothing.
  std::string plain;
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] == '\\' && i + 1 < pattern.size() && pattern[i + 1] == '"') continue;
    plain += pattern[i];
    if (pattern[i] == '\\' && i + 1 < pattern.size()) plain += pattern[++i];
  }
  if (plain == PatternText(KnownPattern::kDeepseekWords)) {
    return Known(KnownPattern::kDeepseekWords);
  }
  SplitPattern out(Kind::kRegex);
  ASSIGN_OR_RETURN(out.regex_, Regex::Compile(pattern));
  return out;
}

SplitPattern SplitPattern::Known(KnownPattern pattern) {
  SplitPattern out(Kind::kKnown);
  out.known_ = pattern;
  return out;
}

SplitPattern SplitPattern::Literal(std::string text) {
  SplitPattern out(Kind::kLiteral);
  out.literal_ = std::move(text);
  return out;
}

SplitPattern SplitPattern::AnyOf(uint16_t mask) {
  SplitPattern out(Kind::kAnyOf);
  out.mask_ = mask;
  return out;
}

SplitPattern SplitPattern::BertPunctuation() { return SplitPattern(Kind::kBertPunctuation); }

absl::Status SplitPattern::FindMatches(std::string_view text, std::vector<Span>& out) const {
  if (kind_ == Kind::kRegex) return regex_.FindMatches(text, out);
  if (kind_ == Kind::kLiteral) {
    if (literal_.empty()) return absl::OkStatus();
    for (size_t pos = 0; (pos = text.find(literal_, pos)) != std::string_view::npos;
         pos += literal_.size()) {
      out.push_back({pos, pos + literal_.size()});
    }
    return absl::OkStatus();
  }
  for (size_t pos = 0; pos < text.size();) {
    const DecodedChar c = DecodeChar(text, pos);
    size_t end = pos + c.length;
    bool match = false;
    if (kind_ == Kind::kKnown) {
      const std::optional<size_t> match_end = MatchKnown(known_, text, pos);
      match = match_end.has_value();
      end = match_end.value_or(end);
    } else if (kind_ == Kind::kAnyOf) {
      match = (CharClass(c.value) & mask_) != 0;
    } else {
      match = (CharClass(c.value) & kPunctuation) || IsAsciiPunctuation(c.value);
    }
    if (match) out.push_back({pos, end});
    pos = end;
  }
  return absl::OkStatus();
}

}  // namespace quire
