// server/openai/tool_calls.h -- calls of tools in what a model writes, as it is written.
//
//   kHermes   ... <tool_call>{"name": "f", "arguments": {...}}</tool_call> ...
//   kMistral  ... [TOOL_CALLS][{"name": "f", "arguments": {...}}, ...]   or f[ARGS]{...} behind it
//   kLlama3   {"name": "f", "parameters": {...}} as the whole answer, more behind ';'
//   kArray    [{"name": "f", "parameters": {...}}, ...]: what the grammar of tool_choice=required
//   says kNamed    {...}: the arguments of the one tool that tool_choice names
//
// Arguments are told as they were written, piece by piece. What begins like a call and is none
// becomes text again: nothing is lost. White space around calls is dropped. Pure; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "server/openai/call_scanner.h"

namespace quire {

enum class ToolFormat : uint8_t { kText, kHermes, kMistral, kLlama3, kArray, kNamed };

// How a model with this chat template writes calls; kHermes where the template says nothing.
ToolFormat ToolFormatOf(std::string_view chat_template);

// What a call begins with; empty: nothing of its own.
std::string_view MarkerOf(ToolFormat format);

// A piece of an answer. kText: text. kStart: call `index` of `name` begins. kArguments: the next
// part of its arguments.
struct ToolPiece {
  enum class Kind : uint8_t { kText, kStart, kArguments };
  Kind kind = Kind::kText;
  int32_t index = 0;
  std::string text;  // the name with kStart
};

class ToolParser {
 public:
  // named: the tool of kNamed. parallel: false drops all calls but the first.
  explicit ToolParser(ToolFormat format, std::string named = {}, bool parallel = true)
      : format_(format), named_(std::move(named)), parallel_(parallel) {}

  void Push(std::string_view text, std::vector<ToolPiece>& pieces);
  // No text follows.
  void Finish(std::vector<ToolPiece>& pieces);

  int32_t num_calls() const { return num_calls_; }

 private:
  enum class State : uint8_t { kBegin, kText, kMarker, kCall, kName, kBehind };

  void PushText(std::string_view text, std::vector<ToolPiece>& pieces);
  bool Step(char c, std::vector<ToolPiece>& pieces);
  void BeginCall(std::string name, bool told_by_arguments);
  bool ScanCall(char c, std::vector<ToolPiece>& pieces);
  void Told(const CallScanner::Told& told, std::vector<ToolPiece>& pieces);
  void TakeAgain(std::vector<ToolPiece>& pieces);
  void GiveUp(std::vector<ToolPiece>& pieces);
  bool FindMarker(char c, std::vector<ToolPiece>& pieces);
  std::string_view marker() const { return MarkerOf(format_); }

  const ToolFormat format_;
  const std::string named_;
  const bool parallel_;
  State state_ = State::kBegin;
  std::string held_;   // of text: may be the beginning of a marker; else: what is not told yet
  std::string space_;  // white space that calls may follow
  std::string name_;   // of [TOOL_CALLS]name[ARGS]
  CallScanner scanner_;
  bool started_ = false;  // the present call was told
  bool in_array_ = false;
  bool any_text_ = false;
  int32_t num_calls_ = 0;
};

}  // namespace quire
