// server/openai/chat_answer.h -- the answer to POST /v1/chat/completions.
#pragma once

#include <memory>
#include <string>

#include "server/openai/answer_writer.h"
#include "server/openai/tool_calls.h"

namespace quire {

struct ChatStyle {
  AnswerStyle answer;
  ToolFormat tools = ToolFormat::kText;
  std::string named_tool;
  bool parallel_tools = true;
};

std::unique_ptr<AnswerWriter> MakeChatWriter(AnswerInfo info, const ChatStyle& style);

// The id of an output's n-th call of a tool: the same in a stream and in one piece.
std::string ToolCallId(const AnswerInfo& info, int32_t output, int32_t call);

}  // namespace quire
