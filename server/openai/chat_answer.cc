#include "server/openai/chat_answer.h"

#include <utility>

#include "server/openai/logprob_text.h"

namespace quire {
namespace {

// One output so far; in a stream, what is to be told with the next chunk.
struct Output {
  explicit Output(const ChatStyle& style)
      : parser(style.tools, style.named_tool, style.parallel_tools) {}

  struct Call {
    int32_t index = 0;
    bool starts = false;
    std::string name;
    std::string arguments;
  };

  ToolParser parser;
  std::string text;
  std::vector<Call> calls;
  std::string logprobs;  // elements of "content", joined
  std::vector<TokenId> token_ids;
  std::string finish_reason;  // empty: not ended
  std::string stop_reason;

  void Take(std::vector<ToolPiece> pieces) {
    for (ToolPiece& piece : pieces) {
      if (piece.kind == ToolPiece::Kind::kText) {
        text += piece.text;
        continue;
      }
      if (calls.empty() || calls.back().index != piece.index) {
        calls.push_back({.index = piece.index});
      }
      if (piece.kind == ToolPiece::Kind::kStart) {
        calls.back().starts = true;
        calls.back().name = std::move(piece.text);
      } else {
        calls.back().arguments += piece.text;
      }
    }
  }
  bool has_news() const { return !text.empty() || !calls.empty() || !logprobs.empty(); }
  void Told() {
    text.clear();
    calls.clear();
    logprobs.clear();
    token_ids.clear();
  }
};

class ChatWriter final : public AnswerWriter {
 public:
  ChatWriter(AnswerInfo info, const ChatStyle& style)
      : info_(std::move(info)),
        style_(style),
        names_(*info_.model->tokenizer, style.answer.tokens_as_ids),
        outputs_(static_cast<size_t>(style.answer.num_outputs), Output(style)) {}

  void OnRequest(int32_t, std::shared_ptr<const Request> request) override {
    request_ = std::move(request);
  }

  void OnAccepted(int32_t, const RequestStats& stats, std::string& sse) override {
    usage_.OnAccepted(stats);
    if (!style_.answer.stream) return;
    for (int32_t i = 0; i < style_.answer.num_outputs; ++i) {
      Chunk(i, sse, [&](JsonWriter& w) {
        w.Key("role");
        w.String("assistant");
        w.Key("content");
        w.String("");
      });
    }
  }

  void OnPromptLogprobs(int32_t, const std::vector<PromptLogprob>& logprobs) override {
    prompt_logprobs_.insert(prompt_logprobs_.end(), logprobs.begin(), logprobs.end());
  }

  void OnDelta(int32_t, const Delta& delta, std::string& sse) override {
    Output& output = outputs_[static_cast<size_t>(delta.branch)];
    usage_.OnTokens(static_cast<int64_t>(delta.token_ids.size()));
    std::vector<ToolPiece> pieces;
    output.parser.Push(delta.text, pieces);
    output.Take(std::move(pieces));
    for (const Sampled& sampled : delta.logprobs) {
      JsonWriter w;
      WriteChatLogprob(names_, sampled, style_.answer.num_logprobs, w);
      if (!output.logprobs.empty()) output.logprobs += ',';
      output.logprobs += w.text();
    }
    output.token_ids.insert(output.token_ids.end(), delta.token_ids.begin(), delta.token_ids.end());
    if (style_.answer.stream && (output.has_news() || style_.answer.return_token_ids)) {
      TellNews(delta.branch, output, sse);
    }
  }

  void OnBranchEnd(int32_t, const BranchEnd& end, std::string& sse) override {
    Output& output = outputs_[static_cast<size_t>(end.branch)];
    std::vector<ToolPiece> pieces;
    output.parser.Finish(pieces);
    output.Take(std::move(pieces));
    if (style_.answer.stream && output.has_news()) TellNews(end.branch, output, sse);
    // As OpenAI has it: a tool that was named was no choice of the model's.
    const bool called = output.parser.num_calls() > 0 && style_.tools != ToolFormat::kNamed;
    output.finish_reason =
        called && end.reason == FinishReason::kStop ? "tool_calls" : FinishReasonText(end.reason);
    JsonWriter w;
    WriteStopReason(end, *info_.model, w);
    output.stop_reason = w.text();
    if (style_.answer.stream) Chunk(end.branch, sse, [](JsonWriter&) {});
  }

  void OnDone(int32_t, const RequestStats& stats) override { usage_.OnDone(stats); }

  std::string Finish() override {
    JsonWriter w;
    if (style_.answer.stream) {
      std::string sse;
      if (style_.answer.include_usage) {
        Head(w);
        w.BeginArray();
        w.EndArray();
        Usage(w);
        w.EndObject();
        AppendEvent(w.text(), sse);
      }
      return sse += kDoneEvent;
    }
    Head(w);
    w.BeginArray();
    for (int32_t i = 0; i < style_.answer.num_outputs; ++i) WriteChoice(i, w);
    w.EndArray();
    Usage(w);
    if (style_.answer.prompt_logprobs) {
      w.Key("prompt_logprobs");
      WritePromptLogprobs(names_, prompt_logprobs_, w);
    }
    if (style_.answer.return_token_ids) WritePromptIds(w);
    w.EndObject();
    return w.text();
  }

  std::string Fail(const absl::Status& status) override { return FailedStream(status); }

 private:
  void Head(JsonWriter& w) const {
    w.BeginObject();
    w.Key("id");
    w.String(info_.id);
    w.Key("object");
    w.String(style_.answer.stream ? "chat.completion.chunk" : "chat.completion");
    w.Key("created");
    w.Int(info_.created);
    w.Key("model");
    w.String(info_.model->name);
    w.Key("choices");
  }
  void Usage(JsonWriter& w) const {
    w.Key("usage");
    usage_.Write(w);
  }
  void WritePromptIds(JsonWriter& w) const {
    w.Key("prompt_token_ids");
    WriteTokenIds(request_->prompt, w);
  }

  void WriteCalls(int32_t index, const Output& output, JsonWriter& w) const {
    w.Key("tool_calls");
    w.BeginArray();
    for (const Output::Call& call : output.calls) {
      w.BeginObject();
      if (style_.answer.stream) {
        w.Key("index");
        w.Int(call.index);
      }
      if (call.starts) {
        w.Key("id");
        w.String(ToolCallId(info_, index, call.index));
        w.Key("type");
        w.String("function");
      }
      w.Key("function");
      w.BeginObject();
      if (call.starts) {
        w.Key("name");
        w.String(call.name);
      }
      w.Key("arguments");
      w.String(call.arguments);
      w.EndObject();
      w.EndObject();
    }
    w.EndArray();
  }

  void WriteLogprobs(const Output& output, JsonWriter& w) const {
    w.Key("logprobs");
    if (style_.answer.num_logprobs < 0 || (style_.answer.stream && output.logprobs.empty())) {
      return w.Null();
    }
    w.BeginObject();
    w.Key("content");
    w.Raw("[" + output.logprobs + "]");
    w.EndObject();
  }

  void WriteEnd(const Output& output, JsonWriter& w) const {
    w.Key("finish_reason");
    if (output.finish_reason.empty()) {
      w.Null();
    } else {
      w.String(output.finish_reason);
    }
    if (output.finish_reason.empty()) return;
    w.Key("stop_reason");
    w.Raw(output.stop_reason);
  }

  void WriteChoice(int32_t index, JsonWriter& w) const {
    const Output& output = outputs_[static_cast<size_t>(index)];
    w.BeginObject();
    w.Key("index");
    w.Int(index);
    w.Key("message");
    w.BeginObject();
    w.Key("role");
    w.String("assistant");
    w.Key("content");
    if (output.text.empty() && !output.calls.empty()) {
      w.Null();
    } else {
      w.String(output.text);
    }
    w.Key("refusal");
    w.Null();
    if (!output.calls.empty()) WriteCalls(index, output, w);
    w.EndObject();
    WriteLogprobs(output, w);
    WriteEnd(output, w);
    if (style_.answer.return_token_ids) {
      w.Key("token_ids");
      WriteTokenIds(output.token_ids, w);
    }
    w.EndObject();
  }

  void TellNews(int32_t index, Output& output, std::string& sse) {
    Chunk(index, sse, [&](JsonWriter& w) {
      if (!output.text.empty() || output.calls.empty()) {
        w.Key("content");
        w.String(output.text);
      }
      if (!output.calls.empty()) WriteCalls(index, output, w);
    });
    output.Told();
  }

  // write: the members of "delta".
  template <typename Fn>
  void Chunk(int32_t index, std::string& sse, Fn write) {
    const Output& output = outputs_[static_cast<size_t>(index)];
    JsonWriter w;
    Head(w);
    w.BeginArray();
    w.BeginObject();
    w.Key("index");
    w.Int(index);
    w.Key("delta");
    w.BeginObject();
    write(w);
    w.EndObject();
    WriteLogprobs(output, w);
    WriteEnd(output, w);
    if (style_.answer.return_token_ids) {
      w.Key("token_ids");
      WriteTokenIds(output.token_ids, w);
    }
    w.EndObject();
    w.EndArray();
    if (style_.answer.return_token_ids && !std::exchange(told_prompt_ids_, true)) {
      WritePromptIds(w);
    }
    if (style_.answer.continuous_usage) Usage(w);
    w.EndObject();
    AppendEvent(w.text(), sse);
  }

  const AnswerInfo info_;
  const ChatStyle style_;
  const TokenNames names_;
  std::shared_ptr<const Request> request_;
  std::vector<PromptLogprob> prompt_logprobs_;
  std::vector<Output> outputs_;
  UsageSum usage_;
  bool told_prompt_ids_ = false;
};

}  // namespace

// Nine letters and digits, as the strictest of templates (Mistral's) wants them.
std::string ToolCallId(const AnswerInfo& info, int32_t output, int32_t call) {
  constexpr std::string_view kDigits =
      "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
  uint64_t hash = 14695981039346656037ull;  // FNV-1a
  for (const char c : fmt::format("{} {} {}", info.id, output, call)) {
    hash = (hash ^ static_cast<uint8_t>(c)) * 1099511628211ull;
  }
  std::string id;
  for (int i = 0; i < 9; ++i) {
    id += kDigits[hash % kDigits.size()];
    hash /= kDigits.size();
  }
  return id;
}

std::unique_ptr<AnswerWriter> MakeChatWriter(AnswerInfo info, const ChatStyle& style) {
  return std::make_unique<ChatWriter>(std::move(info), style);
}

}  // namespace quire
