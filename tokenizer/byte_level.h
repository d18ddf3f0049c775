// tokenizer/byte_level.h -- the GPT-2 alphabet: each byte has a printable character.
//
// Bytes '!'..'~', 0xA1..0xAC and 0xAE..0xFF stand for themselves (as U+0021 ... U+00FF); the other
// 68 bytes are U+0100, U+0101, ... in byte order. Source: bytes_to_unicode() of the GPT-2 encoder.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace quire {

char32_t ByteToChar(uint8_t byte);

// nullopt for a character outside the alphabet.
std::optional<uint8_t> CharToByte(char32_t c);

// Every byte of `bytes` as its character, in UTF-8.
std::string MapBytes(std::string_view bytes);

// The bytes that a token's text stands for; a text with any character outside the alphabet stands
// for its own UTF-8, as the ByteLevel decoder of `tokenizers` has it. REQUIRES: well-formed UTF-8.
std::string UnmapBytes(std::string_view text);

}  // namespace quire
