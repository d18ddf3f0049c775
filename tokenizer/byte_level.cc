#include "tokenizer/byte_level.h"

#include <array>

#include "tokenizer/unicode.h"

namespace quire {
namespace {

constexpr size_t kAlphabetEnd = 0x144;  // 256 + 68 remapped bytes

struct Alphabet {
  std::array<char32_t, 256> chars{};
  std::array<int16_t, kAlphabetEnd> bytes{};
};

constexpr bool StandsForItself(uint32_t byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) ||
         (byte >= 0xAE && byte <= 0xFF);
}

constexpr Alphabet MakeAlphabet() {
  Alphabet a;
  for (int16_t& b : a.bytes) b = -1;
  char32_t next = 0x100;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const char32_t c = StandsForItself(byte) ? static_cast<char32_t>(byte) : next++;
    a.chars[byte] = c;
    a.bytes[c] = static_cast<int16_t>(byte);
  }
  return a;
}

constexpr Alphabet kAlphabet = MakeAlphabet();

}  // namespace

char32_t ByteToChar(uint8_t byte) { return kAlphabet.chars[byte]; }

std::optional<uint8_t> CharToByte(char32_t c) {
  if (c >= kAlphabetEnd || kAlphabet.bytes[c] < 0) return std::nullopt;
  return static_cast<uint8_t>(kAlphabet.bytes[c]);
}

std::string MapBytes(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size() + bytes.size() / 4);
  for (const char b : bytes) AppendUtf8(ByteToChar(static_cast<uint8_t>(b)), out);
  return out;
}

std::string UnmapBytes(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t pos = 0; pos < text.size();) {
    const DecodedChar c = DecodeChar(text, pos);
    const std::optional<uint8_t> byte = CharToByte(c.value);
    if (!byte) return std::string(text);
    out += static_cast<char>(*byte);
    pos += c.length;
  }
  return out;
}

}  // namespace quire
