// server/openai/answer_writer.h -- an engine's events as the JSON that a client of OpenAI's API
// reads: a stream of server-sent events, or one body at the end.
//
// One for each HTTP request; `prompt` counts the prompts of a request that has several. Called on
// one thread at a time, in the order of StreamSink; no sockets, so that tests drive it directly.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "scheduler/request.h"
#include "server/edge/generation.h"
#include "server/served_model.h"

namespace quire {

// What all answers say of themselves.
struct AnswerInfo {
  std::string id;       // with its prefix, "chatcmpl-..."
  int64_t created = 0;  // seconds since 1970
  const ServedModel* model = nullptr;
};

// How an answer is told.
struct AnswerStyle {
  bool stream = false;
  bool include_usage = false;     // a last chunk with the usage
  bool continuous_usage = false;  // and the usage so far on each chunk
  bool tokens_as_ids = false;     // "token_id:17" instead of a token's text
  bool return_token_ids = false;
  bool prompt_logprobs = false;
  int32_t num_logprobs = -1;  // as in ResponseOptions
  int32_t num_prompts = 1;
  int32_t num_outputs = 1;  // of each prompt
};

class AnswerWriter {
 public:
  virtual ~AnswerWriter() = default;

  // The engine's request of a prompt, before its events.
  virtual void OnRequest(int32_t prompt, std::shared_ptr<const Request> request) = 0;
  // Each appends the events that a stream sends now; nothing without stream.
  virtual void OnAccepted(int32_t prompt, const RequestStats& stats, std::string& sse) = 0;
  virtual void OnPromptLogprobs(int32_t prompt, const std::vector<PromptLogprob>& logprobs) = 0;
  virtual void OnDelta(int32_t prompt, const Delta& delta, std::string& sse) = 0;
  virtual void OnBranchEnd(int32_t prompt, const BranchEnd& end, std::string& sse) = 0;
  virtual void OnDone(int32_t prompt, const RequestStats& stats) = 0;
  // All prompts are done: the last events, or the whole body.
  virtual std::string Finish() = 0;
  // The request failed after the stream was opened: the last events.
  virtual std::string Fail(const absl::Status& status) = 0;
};

// ---- for writers ----

// "data: <json>\n\n", after "event: <name>\n" if there is a name.
void AppendEvent(std::string_view json, std::string& sse, std::string_view name = {});
inline constexpr std::string_view kDoneEvent = "data: [DONE]\n\n";
// What a stream that failed ends with.
std::string FailedStream(const absl::Status& status);

// Sums over prompts.
class UsageSum {
 public:
  void OnAccepted(const RequestStats& stats) {
    prompt_tokens_ += stats.prompt_tokens;
    cached_tokens_ += stats.cached_tokens;
  }
  void OnTokens(int64_t count) { completion_tokens_ += count; }
  // The engine's own count is the right one: candidates that lost are in it as well.
  void OnDone(const RequestStats& stats) {
    done_tokens_ += stats.completion_tokens;
    all_done_ = true;
  }
  int64_t prompt_tokens() const { return prompt_tokens_; }
  int64_t cached_tokens() const { return cached_tokens_; }
  int64_t completion_tokens() const {
    return all_done_ ? std::max(done_tokens_, completion_tokens_) : completion_tokens_;
  }
  // {"prompt_tokens", "completion_tokens", "total_tokens", "prompt_tokens_details"}
  void Write(JsonWriter& w) const;

 private:
  int64_t prompt_tokens_ = 0, cached_tokens_ = 0, completion_tokens_ = 0, done_tokens_ = 0;
  bool all_done_ = false;
};

// "stop" or "length"; the reasons of failures never reach an answer.
std::string_view FinishReasonText(FinishReason reason);
// The stop string or token that ended an output, or null: tokens that the model itself ends by are
// no reason.
void WriteStopReason(const BranchEnd& end, const ServedModel& model, JsonWriter& w);

void WriteTokenIds(const std::vector<TokenId>& ids, JsonWriter& w);

}  // namespace quire
