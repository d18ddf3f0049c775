#include "tokenizer/normalize.h"

#include <unicode/bytestream.h>
#include <unicode/normalizer2.h>

#include "tokenizer/pretokenize.h"
#include "tokenizer/unicode.h"

namespace quire {
namespace {

absl::StatusOr<std::string> RunStep(const UnicodeForm& form, std::string text) {
  // ICU counts in int32; the edge's limit on prompts is far below.
  if (text.size() > static_cast<size_t>(INT32_MAX) / 4) {
    return InvalidArgument("text has {} bytes, limit of the Unicode normalizer is {}", text.size(),
                           INT32_MAX / 4);
  }
  UErrorCode error = U_ZERO_ERROR;
  const icu::Normalizer2* normalizer = nullptr;
  switch (form) {
    case UnicodeForm::kNfc:
      normalizer = icu::Normalizer2::getNFCInstance(error);
      break;
    case UnicodeForm::kNfd:
      normalizer = icu::Normalizer2::getNFDInstance(error);
      break;
    case UnicodeForm::kNfkc:
      normalizer = icu::Normalizer2::getNFKCInstance(error);
      break;
    case UnicodeForm::kNfkd:
      normalizer = icu::Normalizer2::getNFKDInstance(error);
      break;
  }
  std::string out;
  if (U_SUCCESS(error)) {
    icu::StringByteSink<std::string> sink(&out, static_cast<int32_t>(text.size()));
    normalizer->normalizeUTF8(0, icu::StringPiece(text.data(), static_cast<int32_t>(text.size())),
                              sink, nullptr, error);
  }
  if (U_FAILURE(error)) {
    return Error(absl::StatusCode::kInternal, "ICU normalizer failed: {}", u_errorName(error));
  }
  return out;
}

absl::StatusOr<std::string> RunStep(const ReplaceStep& step, std::string text) {
  std::vector<Span> matches;
  RETURN_IF_ERROR(step.pattern.FindMatches(text, matches));
  if (matches.empty()) return text;
  std::string out;
  size_t end = 0;
  for (const Span& m : matches) {
    out.append(text, end, m.begin - end);
    out += step.content;
    end = m.end;
  }
  out.append(text, end);
  return out;
}

absl::StatusOr<std::string> RunStep(const PrependStep& step, std::string text) {
  if (text.empty()) return text;
  return step.content + text;
}

absl::StatusOr<std::string> RunStep(const StripStep& step, std::string text) {
  size_t begin = 0;
  size_t end = text.size();
  while (step.left && begin < end) {
    const DecodedChar c = DecodeChar(text, begin);
    if (!(CharClass(c.value) & kSpace)) break;
    begin += c.length;
  }
  while (step.right && end > begin) {
    const DecodedChar c = DecodeCharBefore(text, end);
    if (!(CharClass(c.value) & kSpace)) break;
    end -= c.length;
  }
  return text.substr(begin, end - begin);
}

absl::Status Parse(const Json& spec, std::vector<Normalizer::Step>& steps) {
  if (!spec.is_object()) {
    return InvalidArgument("normalizer={} must be an object or null", spec.Dump());
  }
  const std::string_view type = spec["type"].as_string().value_or("");
  if (type == "Sequence") {
    const Json parts = spec["normalizers"];
    if (!parts.is_array()) return InvalidArgument("normalizer.normalizers must be an array");
    for (size_t i = 0; i < parts.size(); ++i) RETURN_IF_ERROR(Parse(parts.at(i), steps));
  } else if (type == "NFC") {
    steps.emplace_back(UnicodeForm::kNfc);
  } else if (type == "NFD") {
    steps.emplace_back(UnicodeForm::kNfd);
  } else if (type == "NFKC") {
    steps.emplace_back(UnicodeForm::kNfkc);
  } else if (type == "NFKD") {
    steps.emplace_back(UnicodeForm::kNfkd);
  } else if (type == "Replace") {
    ASSIGN_OR_RETURN(SplitPattern pattern, ParseSplitPattern(spec["pattern"]));
    const auto content = spec["content"].as_string();
    if (!content) return InvalidArgument("normalizer.content must be a string");
    steps.emplace_back(ReplaceStep{std::move(pattern), std::string(*content)});
  } else if (type == "Prepend") {
    const auto content = spec["prepend"].as_string();
    if (!content) return InvalidArgument("normalizer.prepend must be a string");
    steps.emplace_back(PrependStep{std::string(*content)});
  } else if (type == "Strip") {
    steps.emplace_back(StripStep{spec["strip_left"].as_bool().value_or(true),
                                 spec["strip_right"].as_bool().value_or(true)});
  } else {
    return InvalidArgument(
        "unsupported normalizer {}; supported are Sequence, NFC, NFD, NFKC, NFKD, Replace, "
        "Prepend and Strip",
        type.empty() ? spec.Dump() : std::string(type));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Normalizer> Normalizer::FromJson(const Json& spec) {
  std::vector<Step> steps;
  if (!spec.is_null()) RETURN_IF_ERROR(Parse(spec, steps));
  return Normalizer(std::move(steps));
}

absl::StatusOr<std::string> Normalizer::Run(std::string_view text) const {
  std::string out(text);
  for (const Step& step : steps_) {
    ASSIGN_OR_RETURN(out,
                     std::visit([&](const auto& s) { return RunStep(s, std::move(out)); }, step));
  }
  return out;
}

}  // namespace quire
