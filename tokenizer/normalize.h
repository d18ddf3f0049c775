// tokenizer/normalize.h -- the `normalizer` of tokenizer.json: text to text. Immutable after load.
#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/json.h"
#include "base/status.h"
#include "tokenizer/split_pattern.h"

namespace quire {

enum class UnicodeForm : uint8_t { kNfc, kNfd, kNfkc, kNfkd };

struct ReplaceStep {
  SplitPattern pattern;
  std::string content;
};
struct PrependStep {
  std::string content;  // not put before empty text
};
struct StripStep {
  bool left = true;
  bool right = true;
};

class Normalizer {
 public:
  using Step = std::variant<UnicodeForm, ReplaceStep, PrependStep, StripStep>;

  Normalizer() = default;
  explicit Normalizer(std::vector<Step> steps) : steps_(std::move(steps)) {}

  // ERRORS: kInvalidArgument "unsupported normalizer <type>", or a bad field or pattern.
  static absl::StatusOr<Normalizer> FromJson(const Json& spec);

  bool empty() const { return steps_.empty(); }

  // REQUIRES: well-formed UTF-8. ERRORS: kResourceExhausted from a foreign pattern.
  absl::StatusOr<std::string> Run(std::string_view text) const;

 private:
  std::vector<Step> steps_;
};

}  // namespace quire
