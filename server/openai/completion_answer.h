// server/openai/completion_answer.h -- the answer to POST /v1/completions.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "server/openai/answer_writer.h"

namespace quire {

struct CompletionStyle {
  AnswerStyle answer;
  bool echo = false;                    // the prompt comes before the output
  std::vector<std::string> echo_texts;  // of prompts that came as text; "" = by their tokens
  bool prompt_only = false;             // and nothing else: max_tokens=0
};

std::unique_ptr<AnswerWriter> MakeCompletionWriter(AnswerInfo info, const CompletionStyle& style);

}  // namespace quire
