// tokenizer/pretokenize_json.cc -- the `pre_tokenizer` of tokenizer.json to steps. What is not
// listed here is refused by name: a silent default would give other ids.
#include "tokenizer/pretokenize.h"
#include "tokenizer/unicode.h"

namespace quire {
namespace {

using Steps = std::vector<PreTokenizer::Step>;

absl::StatusOr<bool> BoolField(const Json& spec, std::string_view name, bool fallback) {
  const Json value = spec[name];
  if (value.is_null()) return fallback;
  if (const auto b = value.as_bool()) return *b;
  return InvalidArgument("pre_tokenizer.{}={} must be true or false", name, value.Dump());
}

absl::StatusOr<SplitBehavior> ParseBehavior(const Json& spec) {
  const std::string_view name = spec.as_string().value_or("");
  if (name == "Removed") return SplitBehavior::kRemoved;
  if (name == "Isolated") return SplitBehavior::kIsolated;
  if (name == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  if (name == "Contiguous") return SplitBehavior::kContiguous;
  return InvalidArgument(
      "pre_tokenizer.behavior={} must be Removed, Isolated, MergedWithPrevious, MergedWithNext or "
      "Contiguous",
      spec.Dump());
}

absl::Status ParseSplit(const Json& spec, Steps& steps) {
  ASSIGN_OR_RETURN(SplitPattern pattern, ParseSplitPattern(spec["pattern"]));
  ASSIGN_OR_RETURN(const SplitBehavior behavior, ParseBehavior(spec["behavior"]));
  ASSIGN_OR_RETURN(const bool invert, BoolField(spec, "invert", false));
  steps.emplace_back(SplitStep{std::move(pattern), behavior, invert});
  return absl::OkStatus();
}

absl::Status ParseByteLevel(const Json& spec, Steps& steps) {
  ByteLevelStep step;
  ASSIGN_OR_RETURN(step.add_prefix_space, BoolField(spec, "add_prefix_space", true));
  ASSIGN_OR_RETURN(step.use_regex, BoolField(spec, "use_regex", true));
  steps.emplace_back(step);
  return absl::OkStatus();
}

absl::Status ParseDigits(const Json& spec, Steps& steps) {
  ASSIGN_OR_RETURN(const bool individual, BoolField(spec, "individual_digits", false));
  steps.emplace_back(SplitStep{SplitPattern::AnyOf(kNumber),
                               individual ? SplitBehavior::kIsolated : SplitBehavior::kContiguous});
  return absl::OkStatus();
}

absl::Status ParsePunctuation(const Json& spec, Steps& steps) {
  SplitBehavior behavior = SplitBehavior::kIsolated;
  if (spec.Has("behavior")) {
    ASSIGN_OR_RETURN(behavior, ParseBehavior(spec["behavior"]));
  }
  steps.emplace_back(SplitStep{SplitPattern::BertPunctuation(), behavior});
  return absl::OkStatus();
}

absl::Status ParseMetaspace(const Json& spec, Steps& steps) {
  MetaspaceStep step;
  step.replacement = std::string(spec["replacement"].as_string().value_or("\xE2\x96\x81"));
  if (step.replacement.empty() ||
      DecodeChar(step.replacement, 0).length != step.replacement.size()) {
    return InvalidArgument("pre_tokenizer.replacement={} must be one character",
                           spec["replacement"].Dump());
  }
  // Old files have add_prefix_space instead of prepend_scheme.
  ASSIGN_OR_RETURN(const bool prefix, BoolField(spec, "add_prefix_space", true));
  const std::string_view scheme =
      spec["prepend_scheme"].as_string().value_or(prefix ? "always" : "never");
  using Prepend = MetaspaceStep::Prepend;
  if (scheme == "always") {
    step.prepend = Prepend::kAlways;
  } else if (scheme == "first") {
    step.prepend = Prepend::kFirst;
  } else if (scheme == "never") {
    step.prepend = Prepend::kNever;
  } else {
    return InvalidArgument("pre_tokenizer.prepend_scheme={} must be always, first or never",
                           scheme);
  }
  ASSIGN_OR_RETURN(step.split, BoolField(spec, "split", true));
  steps.emplace_back(std::move(step));
  return absl::OkStatus();
}

absl::Status Parse(const Json& spec, Steps& steps) {
  if (!spec.is_object()) {
    return InvalidArgument("pre_tokenizer={} must be an object or null", spec.Dump());
  }
  const std::string_view type = spec["type"].as_string().value_or("");
  if (type == "Sequence") {
    const Json parts = spec["pretokenizers"];
    if (!parts.is_array()) return InvalidArgument("pre_tokenizer.pretokenizers must be an array");
    for (size_t i = 0; i < parts.size(); ++i) RETURN_IF_ERROR(Parse(parts.at(i), steps));
    return absl::OkStatus();
  }
  if (type == "Split") return ParseSplit(spec, steps);
  if (type == "ByteLevel") return ParseByteLevel(spec, steps);
  if (type == "Digits") return ParseDigits(spec, steps);
  if (type == "Punctuation") return ParsePunctuation(spec, steps);
  if (type == "Metaspace") return ParseMetaspace(spec, steps);
  if (type == "WhitespaceSplit" || type == "BertPreTokenizer") {
    steps.emplace_back(SplitStep{SplitPattern::AnyOf(kSpace), SplitBehavior::kRemoved});
    if (type == "BertPreTokenizer") steps.emplace_back(SplitStep{SplitPattern::BertPunctuation()});
    return absl::OkStatus();
  }
  return InvalidArgument(
      "unsupported pre-tokenizer {}; supported are Sequence, Split, ByteLevel, Digits, "
      "Punctuation, Metaspace, WhitespaceSplit and BertPreTokenizer",
      type.empty() ? spec.Dump() : std::string(type));
}

}  // namespace

absl::StatusOr<SplitPattern> ParseSplitPattern(const Json& spec) {
  if (const auto text = spec["String"].as_string())
    return SplitPattern::Literal(std::string(*text));
  if (const auto regex = spec["Regex"].as_string()) return SplitPattern::FromRegex(*regex);
  return InvalidArgument("pattern={} must be {{\"String\": ...}} or {{\"Regex\": ...}}",
                         spec.Dump());
}

absl::StatusOr<PreTokenizer> PreTokenizer::FromJson(const Json& spec) {
  Steps steps;
  if (!spec.is_null()) RETURN_IF_ERROR(Parse(spec, steps));
  return PreTokenizer(std::move(steps));
}

}  // namespace quire
