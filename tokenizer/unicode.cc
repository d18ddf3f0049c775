#include "tokenizer/unicode.h"

#include <unicode/uchar.h>

#include <array>
#include <memory>

namespace quire {
namespace {

uint16_t ComputeClass(char32_t c) {
  const auto u = static_cast<UChar32>(c);
  const uint32_t mask = U_GET_GC_MASK(u);
  uint16_t bits = 0;
  if (mask & U_GC_L_MASK) bits |= kLetter;
  if (mask & U_GC_N_MASK) bits |= kNumber;
  if (mask & U_GC_M_MASK) bits |= kMark;
  if (mask & U_GC_P_MASK) bits |= kPunctuation;
  if (mask & U_GC_S_MASK) bits |= kSymbol;
  if (mask & (U_GC_LU_MASK | U_GC_LT_MASK | U_GC_LM_MASK | U_GC_LO_MASK | U_GC_M_MASK)) {
    bits |= kUpperLike;
  }
  if (mask & (U_GC_LL_MASK | U_GC_LM_MASK | U_GC_LO_MASK | U_GC_M_MASK)) bits |= kLowerLike;
  if (u_isUWhiteSpace(u)) bits |= kSpace;
  if (c == '\r' || c == '\n') bits |= kNewline;
  if ((mask & (U_GC_M_MASK | U_GC_ND_MASK | U_GC_PC_MASK)) || u_isUAlphabetic(u) ||
      u_hasBinaryProperty(u, UCHAR_JOIN_CONTROL)) {
    bits |= kWord;
  }
  return bits;
}

constexpr size_t kTableSize = 0x10000;  // the Basic Multilingual Plane

const uint16_t* ClassTable() {
  static const std::unique_ptr<uint16_t[]> table = [] {
    auto t = std::make_unique<uint16_t[]>(kTableSize);
    for (size_t c = 0; c < kTableSize; ++c) t[c] = ComputeClass(static_cast<char32_t>(c));
    return t;
  }();
  return table.get();
}

bool IsContinuation(uint8_t b) { return (b & 0xC0) == 0x80; }

}  // namespace

uint16_t CharClass(char32_t c) {
  static const uint16_t* const table = ClassTable();
  return c < kTableSize ? table[c] : ComputeClass(c);
}

std::string UnicodeVersion() {
  UVersionInfo version;
  u_getUnicodeVersion(version);
  return std::to_string(version[0]) + "." + std::to_string(version[1]);
}

Utf8Prefix ScanUtf8(std::string_view bytes, size_t pos) {
  using Kind = Utf8Prefix::Kind;
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(bytes[pos + i]); };
  const size_t left = bytes.size() - pos;
  const uint8_t b0 = byte(0);
  if (b0 < 0x80) return {Kind::kValid, 1};
  uint32_t length = 0;
  // Bounds of the second byte: they exclude overlong forms, surrogates and what lies past U+10FFFF.
  uint8_t low = 0x80;
  uint8_t high = 0xBF;
  if (b0 >= 0xC2 && b0 <= 0xDF) {
    length = 2;
  } else if (b0 >= 0xE0 && b0 <= 0xEF) {
    length = 3;
    if (b0 == 0xE0) low = 0xA0;
    if (b0 == 0xED) high = 0x9F;
  } else if (b0 >= 0xF0 && b0 <= 0xF4) {
    length = 4;
    if (b0 == 0xF0) low = 0x90;
    if (b0 == 0xF4) high = 0x8F;
  } else {
    return {Kind::kInvalid, 1};
  }
  if (left < 2) return {Kind::kIncomplete, 1};
  if (byte(1) < low || byte(1) > high) return {Kind::kInvalid, 1};
  for (uint32_t i = 2; i < length; ++i) {
    if (i >= left) return {Kind::kIncomplete, i};
    if (!IsContinuation(byte(i))) return {Kind::kInvalid, i};
  }
  return {Kind::kValid, length};
}

std::optional<size_t> FindInvalidUtf8(std::string_view text) {
  size_t pos = 0;
  while (pos < text.size()) {
    if (static_cast<uint8_t>(text[pos]) < 0x80) {
      ++pos;
      continue;
    }
    const Utf8Prefix prefix = ScanUtf8(text, pos);
    if (prefix.kind != Utf8Prefix::Kind::kValid) return pos;
    pos += prefix.length;
  }
  return std::nullopt;
}

size_t AppendLossyUtf8(std::string_view bytes, bool keep_incomplete, std::string& out) {
  size_t pos = 0;
  while (pos < bytes.size()) {
    const Utf8Prefix prefix = ScanUtf8(bytes, pos);
    if (prefix.kind == Utf8Prefix::Kind::kIncomplete && keep_incomplete) return pos;
    if (prefix.kind == Utf8Prefix::Kind::kValid) {
      out.append(bytes, pos, prefix.length);
    } else {
      out += kReplacementChar;
    }
    pos += prefix.length;
  }
  return pos;
}

void AppendUtf8(char32_t c, std::string& out) {
  if (c < 0x80) {
    out += static_cast<char>(c);
  } else if (c < 0x800) {
    out += static_cast<char>(0xC0 | (c >> 6));
    out += static_cast<char>(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    out += static_cast<char>(0xE0 | (c >> 12));
    out += static_cast<char>(0x80 | ((c >> 6) & 0x3F));
    out += static_cast<char>(0x80 | (c & 0x3F));
  } else {
    out += static_cast<char>(0xF0 | (c >> 18));
    out += static_cast<char>(0x80 | ((c >> 12) & 0x3F));
    out += static_cast<char>(0x80 | ((c >> 6) & 0x3F));
    out += static_cast<char>(0x80 | (c & 0x3F));
  }
}

}  // namespace quire
