// tokenizer/decoder.h -- how tokens become text again: the `decoder` of tokenizer.json as data.
// The work is done by TextAssembler, the same for whole answers and for streams.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/status.h"

namespace quire {

struct DecoderSpec {
  enum class Kind : uint8_t {
    kByteLevel,  // token texts are bytes in the GPT-2 alphabet
    kText,       // token texts are text, after replacements; may have <0xXX> byte tokens
  };
  struct Replacement {
    std::string from;
    std::string to;
  };

  // ERRORS: kInvalidArgument "unsupported decoder <type>" or a bad field.
  static absl::StatusOr<DecoderSpec> FromJson(const Json& spec);

  Kind kind = Kind::kByteLevel;
  std::vector<Replacement> replacements;
  bool byte_fallback = false;
  // Strip behind Fuse: up to `strip_left` times `strip_content` at the very beginning.
  std::string strip_content;
  int64_t strip_left = 0;
  // Metaspace: this character is a space, except in the first token, where it is dropped.
  std::string metaspace;
  bool metaspace_drops_first = false;
};

// What one token adds, made once at load.
struct DecodedToken {
  std::string bytes;
  bool is_byte = false;  // a <0xXX> token: `bytes` is one byte of a character
};

// REQUIRES: `text` is well-formed UTF-8.
DecodedToken DecodeTokenText(const DecoderSpec& spec, std::string_view text);

// Turns the bytes of a sequence of tokens into well-formed UTF-8, as soon as each character is
// certain. Ill-formed bytes become U+FFFD: one for each maximal ill-formed part (byte level), or
// one for each byte from the first bad one to the end of its run of <0xXX> tokens (byte fallback).
class TextAssembler {
 public:
  explicit TextAssembler(const DecoderSpec* spec) : spec_(spec), strip_left_(spec->strip_left) {}

  void Push(const DecodedToken& token, std::string& out);
  // What is unfinished at the end becomes U+FFFD.
  void Flush(std::string& out);

 private:
  void PushByte(char byte, std::string& out);
  void EndByteRun(std::string& out);
  void Emit(std::string_view text, std::string& out);

  const DecoderSpec* spec_;
  std::string pending_;  // at most 3 bytes: an unfinished character
  bool bad_run_ = false;
  bool first_ = true;
  int64_t strip_left_;
};

}  // namespace quire
