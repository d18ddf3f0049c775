// server/openai/response_answer.h -- the answer to POST /v1/responses.
#pragma once

#include <memory>
#include <string>

#include "server/openai/answer_writer.h"
#include "server/openai/tool_calls.h"

namespace quire {

struct ResponseStyle {
  bool stream = false;
  ToolFormat tools = ToolFormat::kText;
  std::string named_tool;
  bool parallel_tools = true;
  // Members of the response that tell the request back, as JSON without braces:
  // "instructions":null,"temperature":1,...
  std::string echoed;
};

std::unique_ptr<AnswerWriter> MakeResponseWriter(AnswerInfo info, ResponseStyle style);

}  // namespace quire
