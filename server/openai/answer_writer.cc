#include "server/openai/answer_writer.h"

#include <algorithm>

#include "server/openai/errors.h"

namespace quire {

void AppendEvent(std::string_view json, std::string& sse, std::string_view name) {
  if (!name.empty()) {
    sse += "event: ";
    sse += name;
    sse += '\n';
  }
  sse += "data: ";
  sse += json;
  sse += "\n\n";
}

std::string FailedStream(const absl::Status& status) {
  std::string sse;
  AppendEvent(ErrorBody(status), sse);
  sse += kDoneEvent;
  return sse;
}

void UsageSum::Write(JsonWriter& w) const {
  w.BeginObject();
  w.Key("prompt_tokens");
  w.Int(prompt_tokens_);
  w.Key("completion_tokens");
  w.Int(completion_tokens());
  w.Key("total_tokens");
  w.Int(prompt_tokens_ + completion_tokens());
  w.Key("prompt_tokens_details");
  w.BeginObject();
  w.Key("cached_tokens");
  w.Int(cached_tokens_);
  w.EndObject();
  w.EndObject();
}

std::string_view FinishReasonText(FinishReason reason) {
  switch (reason) {
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
    case FinishReason::kDeadline:
      return "abort";
    case FinishReason::kNone:
    case FinishReason::kStop:
    case FinishReason::kError:
      break;
  }
  return "stop";
}

void WriteStopReason(const BranchEnd& end, const ServedModel& model, JsonWriter& w) {
  if (!end.stop_string.empty()) return w.String(end.stop_string);
  const bool is_models_own = std::find(model.eos_token_ids.begin(), model.eos_token_ids.end(),
                                       end.stop_token) != model.eos_token_ids.end();
  if (end.stop_token < 0 || is_models_own) return w.Null();
  w.Int(end.stop_token);
}

void WriteTokenIds(const std::vector<TokenId>& ids, JsonWriter& w) {
  w.BeginArray();
  for (const TokenId id : ids) w.Int(id);
  w.EndArray();
}

}  // namespace quire
