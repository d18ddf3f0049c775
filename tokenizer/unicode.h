// tokenizer/unicode.h -- UTF-8 and character classes for the tokenizer.
//
// Classes follow the Unicode version of the ICU that is linked (UnicodeVersion() names it; Debian
// 12 ships ICU 72, Unicode 15.0). White space is the property White_Space, as in the regular
// expressions of tokenizer.json files. Pure functions, any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace quire {

// Bits of CharClass().
enum CharClassBits : uint16_t {
  kLetter = 1 << 0,       // \p{L}
  kNumber = 1 << 1,       // \p{N}
  kSpace = 1 << 2,        // White_Space
  kNewline = 1 << 3,      // '\r' and '\n'
  kMark = 1 << 4,         // \p{M}
  kPunctuation = 1 << 5,  // \p{P}
  kSymbol = 1 << 6,       // \p{S}
  kUpperLike = 1 << 7,    // \p{Lu} \p{Lt} \p{Lm} \p{Lo} \p{M}
  kLowerLike = 1 << 8,    // \p{Ll} \p{Lm} \p{Lo} \p{M}
  kWord = 1 << 9,         // \w: Alphabetic, \p{M}, \p{Nd}, \p{Pc}, Join_Control
};

uint16_t CharClass(char32_t c);

// "15.0" for ICU 72.
std::string UnicodeVersion();

// Byte offset of the first byte that is not part of well-formed UTF-8 (no surrogates, no overlong
// forms, at most U+10FFFF), or nullopt if all of it is well-formed.
std::optional<size_t> FindInvalidUtf8(std::string_view text);

struct DecodedChar {
  char32_t value;
  uint32_t length;  // bytes
};

// The character at `pos`. REQUIRES: pos < text.size(), well-formed UTF-8, pos at a character.
inline DecodedChar DecodeChar(std::string_view text, size_t pos) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[pos + i]); };
  const char32_t b0 = byte(0);
  if (b0 < 0x80) return {b0, 1};
  if (b0 < 0xE0) return {(b0 & 0x1F) << 6 | (byte(1) & 0x3Fu), 2};
  if (b0 < 0xF0) return {(b0 & 0x0F) << 12 | (byte(1) & 0x3Fu) << 6 | (byte(2) & 0x3Fu), 3};
  return {(b0 & 0x07) << 18 | (byte(1) & 0x3Fu) << 12 | (byte(2) & 0x3Fu) << 6 | (byte(3) & 0x3Fu),
          4};
}

// The character that ends just before `pos`. REQUIRES: 0 < pos, well-formed UTF-8.
inline DecodedChar DecodeCharBefore(std::string_view text, size_t pos) {
  size_t begin = pos - 1;
  while (begin > 0 && (static_cast<uint8_t>(text[begin]) & 0xC0) == 0x80) --begin;
  return DecodeChar(text, begin);
}

void AppendUtf8(char32_t c, std::string& out);

// How a byte sequence starts, for lossy decoding as the Unicode standard recommends (and Rust,
// Python and the WHATWG do): one U+FFFD per maximal ill-formed part.
struct Utf8Prefix {
  enum class Kind { kValid, kInvalid, kIncomplete };
  Kind kind;
  uint32_t length;  // kValid: the character's bytes; else bytes of the ill-formed part
};

// REQUIRES: pos < bytes.size(). kIncomplete: the bytes end inside what may still become a
// character.
Utf8Prefix ScanUtf8(std::string_view bytes, size_t pos);

// Appends `bytes` with ill-formed parts replaced. If `keep_incomplete`, an unfinished character at
// the end is left alone; returns how many bytes were consumed.
size_t AppendLossyUtf8(std::string_view bytes, bool keep_incomplete, std::string& out);

inline constexpr std::string_view kReplacementChar = "\xEF\xBF\xBD";  // U+FFFD

}  // namespace quire
