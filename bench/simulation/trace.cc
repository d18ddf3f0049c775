#include "bench/simulation/trace.h"

namespace quire {

int32_t NumPromptTokens(const TraceRequest& request) {
  if (!request.token_ids.empty()) return static_cast<int32_t>(request.token_ids.size());
  int32_t num_tokens = 0;
  for (const PromptSegment& segment : request.prompt) num_tokens += segment.num_tokens;
  return num_tokens;
}

std::vector<TokenId> PromptTokens(const TraceRequest& request, const TokenRange& range) {
  if (!request.token_ids.empty()) return request.token_ids;
  std::vector<TokenId> tokens;
  tokens.reserve(static_cast<size_t>(NumPromptTokens(request)));
  for (const PromptSegment& segment : request.prompt) {
    for (int32_t i = 0; i < segment.num_tokens; ++i) {
      tokens.push_back(TokenOf(segment.text, i, range));
    }
  }
  return tokens;
}

}  // namespace quire
