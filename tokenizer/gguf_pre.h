// tokenizer/gguf_pre.h -- what the names under tokenizer.ggml.pre stand for.
//
// GGUF names the pre-tokenizer instead of describing it; the names are llama.cpp's, and each stands
// for the pipeline of the Hugging Face files that it is written for. A name that is not in the
// table is refused: another pipeline would give other ids without a word. Pure; any thread.
#pragma once

#include <string_view>
#include <vector>

#include "base/status.h"

namespace quire {

struct GgufPre {
  std::string_view name;
  // Splits one after the other, each match isolated; then bytes become characters.
  std::vector<std::string_view> patterns;
  bool ignore_merges = false;
  bool add_bos = false;  // where tokenizer.ggml.add_bos_token is absent
  // The model's own files normalise to NFC; llama.cpp leaves that out, and ids differ for such
  // text.
  bool nfc = false;
};

// ERRORS: kInvalidArgument with the known names.
absl::StatusOr<const GgufPre*> FindGgufPre(std::string_view name);

}  // namespace quire
