// tokenizer/pretokenize.h -- cuts normalised text into the pieces that BPE sees.
//
// A pipeline of steps as in the `pre_tokenizer` of tokenizer.json. Immutable after load.
#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/json.h"
#include "base/status.h"
#include "tokenizer/split_pattern.h"

namespace quire {

// A stretch of text between added tokens, and its pieces: non-empty, disjoint, in order.
struct PieceList {
  std::string text;
  std::vector<Span> pieces;
  bool at_text_start = false;  // `text` begins where the user's text begins
};

enum class SplitBehavior : uint8_t {
  kRemoved,             // matches are dropped
  kIsolated,            // each match is a piece
  kMergedWithPrevious,  // a match ends the piece before it
  kMergedWithNext,      // a match begins the piece after it
  kContiguous,          // neighbouring matches are one piece
};

struct SplitStep {
  SplitPattern pattern;
  SplitBehavior behavior = SplitBehavior::kIsolated;
  bool invert = false;  // what lies between the matches is the match
};

struct ByteLevelStep {
  bool add_prefix_space = false;
  bool use_regex = true;
  bool map_bytes = true;  // off where it is the last step: BPE then takes the bytes themselves
};

struct MetaspaceStep {
  enum class Prepend : uint8_t { kAlways, kFirst, kNever };
  std::string replacement;  // one character
  Prepend prepend = Prepend::kAlways;
  bool split = true;
};

class PreTokenizer {
 public:
  using Step = std::variant<SplitStep, ByteLevelStep, MetaspaceStep>;

  PreTokenizer() = default;
  explicit PreTokenizer(std::vector<Step> steps);

  // `spec`: the JSON value of `pre_tokenizer`; null is no step at all.
  // ERRORS: kInvalidArgument "unsupported pre-tokenizer <type>", or a bad field or pattern.
  static absl::StatusOr<PreTokenizer> FromJson(const Json& spec);

  // Whether pieces are to be taken as bytes of the GPT-2 alphabet (the last step is ByteLevel).
  bool bytes_are_symbols() const { return bytes_are_symbols_; }

  // Splits list.text. ERRORS: kResourceExhausted from a foreign pattern.
  absl::Status Run(PieceList& list) const;

 private:
  std::vector<Step> steps_;
  bool bytes_are_symbols_ = false;
};

// A pattern of tokenizer.json: {"String": text} or {"Regex": pattern}.
absl::StatusOr<SplitPattern> ParseSplitPattern(const Json& spec);

}  // namespace quire
