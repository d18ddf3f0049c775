#include "server/openai/call_scanner.h"

#include <utility>

#include "base/json.h"

namespace quire {
namespace {

constexpr size_t kMaxNameBytes = 512;

bool IsSpace(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

}  // namespace

CallScanner CallScanner::ArgumentsOf(std::string name) {
  CallScanner scanner;
  scanner.name_ = std::move(name);
  scanner.has_name_ = true;
  scanner.arguments_only_ = true;
  scanner.key_ = "arguments";
  scanner.state_ = State::kValueStart;
  return scanner;
}

CallScanner::Result CallScanner::Feed(char c, Told& told) {
  switch (state_) {
    case State::kOpen:
      if (IsSpace(c)) return Result::kMore;
      if (c != '{') return Result::kBad;
      state_ = State::kKey;
      return Result::kMore;
    case State::kKey:
      if (IsSpace(c) || c == ',') return Result::kMore;
      if (c == '}') return Result::kDone;
      if (c != '"') return Result::kBad;
      key_.clear();
      state_ = State::kKeyText;
      return Result::kMore;
    case State::kKeyText:
      if (c == '"') {
        state_ = State::kColon;
      } else {
        key_ += c;
      }
      return key_.size() > kMaxNameBytes || c == '\\' ? Result::kBad : Result::kMore;
    case State::kColon:
      if (IsSpace(c)) return Result::kMore;
      if (c != ':') return Result::kBad;
      state_ = State::kValueStart;
      return Result::kMore;
    case State::kValueStart:
      if (IsSpace(c)) return Result::kMore;
      BeginValue();
      is_text_ = c == '"';
      return InValue(c, told);
    case State::kValue:
      return InValue(c, told);
  }
  return Result::kBad;
}

void CallScanner::BeginValue() {
  state_ = State::kValue;
  value_.clear();
  depth_ = 0;
  in_string_ = escaped_ = false;
  part_ = Part::kOther;
  if (key_ == "name" && !has_name_) part_ = Part::kName;
  if ((key_ == "arguments" || key_ == "parameters") && !has_arguments_) {
    part_ = Part::kArguments;
    has_arguments_ = true;
  }
}

CallScanner::Result CallScanner::InValue(char c, Told& told) {
  if (in_string_) {
    Append(c, told);
    if (escaped_) {
      escaped_ = false;
    } else if (c == '\\') {
      escaped_ = true;
    } else if (c == '"') {
      in_string_ = false;
      if (depth_ == 0) {
        if (!EndValue(told)) return Result::kBad;
        if (arguments_only_) return Result::kDone;
      }
    }
    return Result::kMore;
  }
  const bool is_scalar_end = depth_ == 0 && (c == ',' || c == '}' || c == ']' || IsSpace(c));
  if (is_scalar_end) {
    if (!EndValue(told)) return Result::kBad;
    return c == '}' || c == ']' || arguments_only_ ? Result::kDone : Result::kMore;
  }
  Append(c, told);
  if (c == '"') {
    in_string_ = true;
  } else if (c == '{' || c == '[') {
    ++depth_;
  } else if ((c == '}' || c == ']') && --depth_ == 0) {
    if (!EndValue(told)) return Result::kBad;
    if (arguments_only_) return Result::kDone;
  }
  return Result::kMore;
}

void CallScanner::Append(char c, Told& told) {
  if (part_ == Part::kArguments && !is_text_) {
    (has_name_ ? told.arguments : waiting_) += c;
  } else if (part_ != Part::kOther) {
    value_ += c;
  }
}

bool CallScanner::EndValue(Told& told) {
  state_ = State::kKey;
  if (part_ == Part::kOther || (part_ == Part::kArguments && !is_text_)) return true;
  const absl::StatusOr<Json> text = Json::Parse(value_);
  if (!text.ok() || !text->is_string()) return false;
  const std::string value(*text->as_string());
  if (part_ == Part::kArguments) {
    (has_name_ ? told.arguments : waiting_) += value;
    return true;
  }
  if (value.empty() || value.size() > kMaxNameBytes) return false;
  name_ = value;
  has_name_ = true;
  told.has_name = true;
  told.name = value;
  told.arguments += std::exchange(waiting_, {});
  return true;
}

}  // namespace quire
