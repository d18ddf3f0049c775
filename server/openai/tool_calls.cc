#include "server/openai/tool_calls.h"

#include <utility>

namespace quire {
namespace {

constexpr std::string_view kHermesOpen = "<tool_call>";
constexpr std::string_view kHermesClose = "</tool_call>";
constexpr std::string_view kMistralOpen = "[TOOL_CALLS]";
constexpr std::string_view kPythonTag = "<|python_tag|>";

bool IsSpace(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

bool Contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

bool StartsWith(std::string_view text, std::string_view start) {
  return text.substr(0, start.size()) == start;
}

}  // namespace

ToolFormat ToolFormatOf(std::string_view chat_template) {
  if (Contains(chat_template, kHermesOpen)) return ToolFormat::kHermes;
  if (Contains(chat_template, kMistralOpen)) return ToolFormat::kMistral;
  if (Contains(chat_template, kPythonTag) || Contains(chat_template, "\"parameters\": ")) {
    return ToolFormat::kLlama3;
  }
  return ToolFormat::kHermes;
}

std::string_view MarkerOf(ToolFormat format) {
  switch (format) {
    case ToolFormat::kHermes:
      return kHermesOpen;
    case ToolFormat::kMistral:
      return kMistralOpen;
    case ToolFormat::kLlama3:
      return kPythonTag;
    case ToolFormat::kText:
    case ToolFormat::kArray:
    case ToolFormat::kNamed:
      break;
  }
  return {};
}

// White space is held until text follows it: around calls it means nothing.
void ToolParser::PushText(std::string_view text, std::vector<ToolPiece>& pieces) {
  if (text.empty()) return;
  size_t end = text.size();
  while (end > 0 && IsSpace(text[end - 1])) --end;
  if (end > 0) {
    std::string told = std::exchange(space_, {});
    told.append(text.substr(0, end));
    any_text_ = true;
    if (!pieces.empty() && pieces.back().kind == ToolPiece::Kind::kText) {
      pieces.back().text += told;
    } else {
      pieces.push_back({ToolPiece::Kind::kText, 0, std::move(told)});
    }
  }
  space_.append(text.substr(end));
}

void ToolParser::Push(std::string_view text, std::vector<ToolPiece>& pieces) {
  if (format_ == ToolFormat::kText) {
    if (!text.empty()) pieces.push_back({ToolPiece::Kind::kText, 0, std::string(text)});
    return;
  }
  if (format_ == ToolFormat::kNamed) {
    if (text.empty()) return;
    if (num_calls_ == 0) {
      pieces.push_back({ToolPiece::Kind::kStart, 0, named_});
      num_calls_ = 1;
    }
    pieces.push_back({ToolPiece::Kind::kArguments, 0, std::string(text)});
    return;
  }
  for (const char c : text) {
    while (!Step(c, pieces)) {
    }
  }
  // Plain text leaves with the text that it came with.
  if (state_ == State::kText && !held_.empty() && format_ != ToolFormat::kLlama3) {
    if (!StartsWith(marker(), held_)) PushText(std::exchange(held_, {}), pieces);
  } else if (state_ == State::kText && !held_.empty()) {
    PushText(std::exchange(held_, {}), pieces);
  }
}

// Takes a character; false: the state has changed, and the character is still to be taken.
bool ToolParser::Step(char c, std::vector<ToolPiece>& pieces) {
  switch (state_) {
    case State::kBegin:
      if (format_ == ToolFormat::kHermes || format_ == ToolFormat::kMistral) {
        state_ = State::kText;
        return false;
      }
      held_ += c;
      if (IsSpace(c) && held_.find_first_not_of(" \n\t\r") == std::string::npos) return true;
      if (format_ == ToolFormat::kArray) {
        in_array_ = c == '[';
        state_ = in_array_ ? State::kMarker : State::kText;
        if (!in_array_) held_.pop_back();
        return in_array_;
      }
      if (c == '{') {
        held_.pop_back();
        BeginCall({}, false);
        return false;
      }
      if (StartsWith(kPythonTag, held_)) {
        if (held_.size() == kPythonTag.size()) state_ = State::kMarker;
        return true;
      }
      held_.pop_back();
      state_ = State::kText;
      return false;
    case State::kText:
      if (format_ == ToolFormat::kLlama3 || format_ == ToolFormat::kArray) {
        held_ += c;
        return true;
      }
      return FindMarker(c, pieces);
    case State::kMarker:  // a call begins, if anything does
      if (IsSpace(c) || (in_array_ && c == ',')) {
        held_ += c;
        return true;
      }
      if (c == '{') {
        BeginCall({}, false);
        return false;
      }
      if (format_ == ToolFormat::kMistral && c == '[' && !in_array_) {
        in_array_ = true;
        held_ += c;
        return true;
      }
      if (in_array_ && c == ']') {
        if (held_.find('[') != std::string::npos) {  // no call was in it
          held_ += c;
          GiveUp(pieces);
          return true;
        }
        held_.clear();
        in_array_ = false;
        state_ = State::kBehind;
        return true;
      }
      if (format_ == ToolFormat::kMistral && !in_array_) {
        state_ = State::kName;
        name_.clear();
        return false;
      }
      GiveUp(pieces);
      return false;
    case State::kName:
      if (c == '{') {
        BeginCall(name_.substr(0, name_.find('[')), true);
        return false;
      }
      name_ += c;
      held_ += c;
      if (name_.size() > 512 || c == '\n') GiveUp(pieces);
      return true;
    case State::kCall:
      return ScanCall(c, pieces);
    case State::kBehind:
      held_ += c;
      if (format_ == ToolFormat::kHermes) {
        const size_t begin = held_.find_first_not_of(" \n\t\r");
        if (begin == std::string::npos) return true;
        const std::string rest = held_.substr(begin);
        if (rest == kHermesClose) {
          held_.clear();
          state_ = State::kText;
          return true;
        }
        if (StartsWith(kHermesClose, rest)) return true;
      } else if (IsSpace(c) || c == ';' || (format_ == ToolFormat::kLlama3 && c == ',')) {
        held_.pop_back();
        return true;
      } else if (format_ == ToolFormat::kLlama3 && c == '{') {
        held_.clear();
        BeginCall({}, false);
        return false;
      }
      TakeAgain(pieces);
      return false;
  }
  return true;
}

// No end of a call as expected: what was held, but for its last character, is looked at anew.
void ToolParser::TakeAgain(std::vector<ToolPiece>& pieces) {
  std::string again = std::exchange(held_, {});
  again.pop_back();
  state_ = State::kText;
  for (const char c : again) {
    while (!Step(c, pieces)) {
    }
  }
}

bool ToolParser::FindMarker(char c, std::vector<ToolPiece>& pieces) {
  held_ += c;
  if (StartsWith(marker(), held_)) {
    if (held_.size() == marker().size()) state_ = State::kMarker;
    return true;
  }
  // The longest end of it that may still become a marker stays.
  size_t keep = held_.size() - 1;
  while (keep > 0 && !StartsWith(marker(), std::string_view(held_).substr(held_.size() - keep))) {
    --keep;
  }
  PushText(held_.substr(0, held_.size() - keep), pieces);
  held_.erase(0, held_.size() - keep);
  return true;
}

void ToolParser::BeginCall(std::string name, bool told_by_arguments) {
  scanner_ = told_by_arguments ? CallScanner::ArgumentsOf(std::move(name)) : CallScanner();
  started_ = false;
  state_ = State::kCall;
}

bool ToolParser::ScanCall(char c, std::vector<ToolPiece>& pieces) {
  if (!started_) held_ += c;
  CallScanner::Told told;
  const CallScanner::Result result = scanner_.Feed(c, told);
  Told(told, pieces);
  if (result == CallScanner::Result::kMore) return true;
  const bool is_whole = result == CallScanner::Result::kDone && scanner_.has_name();
  if (is_whole && !started_ && format_ != ToolFormat::kLlama3) {  // a call without arguments
    started_ = true;
    space_.clear();
    if (parallel_ || num_calls_ == 0) {
      pieces.push_back({ToolPiece::Kind::kStart, num_calls_, scanner_.name()});
      pieces.push_back({ToolPiece::Kind::kArguments, num_calls_, "{}"});
    }
  }
  if (!started_) {
    GiveUp(pieces);
    return true;
  }
  ++num_calls_;
  started_ = false;
  held_.clear();
  state_ = in_array_ ? State::kMarker : State::kBehind;
  return true;
}

void ToolParser::Told(const CallScanner::Told& told, std::vector<ToolPiece>& pieces) {
  const bool wanted = parallel_ || num_calls_ == 0;
  if (!started_ && scanner_.has_name() && scanner_.has_arguments() && !told.arguments.empty()) {
    started_ = true;
    held_.clear();
    space_.clear();
    if (wanted) pieces.push_back({ToolPiece::Kind::kStart, num_calls_, scanner_.name()});
  }
  if (!started_ || told.arguments.empty() || !wanted) return;
  if (!pieces.empty() && pieces.back().kind == ToolPiece::Kind::kArguments &&
      pieces.back().index == num_calls_) {
    pieces.back().text += told.arguments;
  } else {
    pieces.push_back({ToolPiece::Kind::kArguments, num_calls_, told.arguments});
  }
}

void ToolParser::GiveUp(std::vector<ToolPiece>& pieces) {
  PushText(std::exchange(held_, {}), pieces);
  in_array_ = false;
  state_ = State::kText;
}

void ToolParser::Finish(std::vector<ToolPiece>& pieces) {
  const bool in_told_call = state_ == State::kCall && started_;
  if (in_told_call) {
    ++num_calls_;
  } else if (!held_.empty() && format_ != ToolFormat::kNamed) {
    const bool is_space = held_.find_first_not_of(" \n\t\r") == std::string::npos;
    if (!is_space || num_calls_ == 0) PushText(std::exchange(held_, {}), pieces);
  }
  if (num_calls_ == 0 && !space_.empty()) {
    pieces.push_back({ToolPiece::Kind::kText, 0, std::exchange(space_, {})});
  }
}

}  // namespace quire
