#include "server/openai/completion_answer.h"

#include <utility>

#include "server/openai/logprob_text.h"

namespace quire {
namespace {

// A choice of the answer: one output of one prompt.
struct Choice {
  std::string text;
  CompletionLogprobs logprobs;
  std::vector<TokenId> token_ids;
  bool begun = false;         // the prompt was echoed, and its ids were told
  std::string finish_reason;  // empty: not ended
  std::string stop_reason;    // as JSON
};

class CompletionWriter final : public AnswerWriter {
 public:
  CompletionWriter(AnswerInfo info, const CompletionStyle& style)
      : info_(std::move(info)),
        style_(style),
        names_(*info_.model->tokenizer, style.answer.tokens_as_ids),
        prompts_(static_cast<size_t>(style.answer.num_prompts)),
        choices_(static_cast<size_t>(style.answer.num_prompts) *
                 static_cast<size_t>(style.answer.num_outputs)) {}

  void OnRequest(int32_t prompt, std::shared_ptr<const Request> request) override {
    prompts_[static_cast<size_t>(prompt)].request = std::move(request);
  }
  void OnAccepted(int32_t, const RequestStats& stats, std::string&) override {
    usage_.OnAccepted(stats);
  }
  void OnPromptLogprobs(int32_t prompt, const std::vector<PromptLogprob>& logprobs) override {
    auto& all = prompts_[static_cast<size_t>(prompt)].logprobs;
    all.insert(all.end(), logprobs.begin(), logprobs.end());
  }

  void OnDelta(int32_t prompt, const Delta& delta, std::string& sse) override {
    Choice& choice = At(prompt, delta.branch);
    Begin(prompt, choice);
    if (!style_.prompt_only) {
      usage_.OnTokens(static_cast<int64_t>(delta.token_ids.size()));
      choice.text += delta.text;
      for (const Sampled& sampled : delta.logprobs) {
        choice.logprobs.Add(names_, sampled, style_.answer.num_logprobs);
      }
      choice.token_ids.insert(choice.token_ids.end(), delta.token_ids.begin(),
                              delta.token_ids.end());
    }
    // Text that is held back for a stop string or a character's rest makes no chunk by itself.
    if (style_.answer.stream &&
        (!choice.text.empty() || !choice.logprobs.empty() || style_.answer.return_token_ids)) {
      Chunk(prompt, delta.branch, choice, sse);
    }
  }

  void OnBranchEnd(int32_t prompt, const BranchEnd& end, std::string& sse) override {
    Choice& choice = At(prompt, end.branch);
    Begin(prompt, choice);
    choice.finish_reason = style_.prompt_only ? "length" : FinishReasonText(end.reason);
    JsonWriter w;
    WriteStopReason(end, *info_.model, w);
    choice.stop_reason = w.text();
    if (style_.answer.stream) Chunk(prompt, end.branch, choice, sse);
  }

  void OnDone(int32_t, const RequestStats& stats) override {
    if (!style_.prompt_only) usage_.OnDone(stats);
  }

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
    for (int32_t p = 0; p < style_.answer.num_prompts; ++p) {
      for (int32_t i = 0; i < style_.answer.num_outputs; ++i) WriteChoice(p, i, At(p, i), w);
    }
    w.EndArray();
    Usage(w);
    w.EndObject();
    return w.text();
  }

  std::string Fail(const absl::Status& status) override { return FailedStream(status); }

 private:
  struct Prompt {
    std::shared_ptr<const Request> request;
    std::vector<PromptLogprob> logprobs;
    bool told_ids = false;
  };

  Choice& At(int32_t prompt, int32_t output) {
    return choices_[static_cast<size_t>(prompt * style_.answer.num_outputs + output)];
  }

  // Before an output's first token.
  void Begin(int32_t prompt, Choice& choice) {
    if (std::exchange(choice.begun, true) || !style_.echo) return;
    const Prompt& p = prompts_[static_cast<size_t>(prompt)];
    choice.text = style_.echo_texts[static_cast<size_t>(prompt)];
    if (choice.text.empty()) {
      choice.text = info_.model->tokenizer->Decode(p.request->prompt, /*skip_special=*/false);
    }
    if (style_.answer.num_logprobs < 0) return;
    choice.logprobs.AddUnknown(names_, p.request->prompt.front());
    for (const PromptLogprob& position : p.logprobs) {
      choice.logprobs.Add(names_, position.logprob, style_.answer.num_logprobs);
    }
  }

  void Head(JsonWriter& w) const {
    w.BeginObject();
    w.Key("id");
    w.String(info_.id);
    w.Key("object");
    w.String("text_completion");
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

  void WriteChoice(int32_t prompt, int32_t output, const Choice& choice, JsonWriter& w) {
    Prompt& p = prompts_[static_cast<size_t>(prompt)];
    w.BeginObject();
    w.Key("index");
    w.Int(prompt * style_.answer.num_outputs + output);
    w.Key("text");
    w.String(choice.text);
    w.Key("logprobs");
    if (style_.answer.num_logprobs >= 0 && (!choice.logprobs.empty() || !style_.answer.stream)) {
      choice.logprobs.Write(w);
    } else {
      w.Null();
    }
    w.Key("finish_reason");
    if (choice.finish_reason.empty()) {
      w.Null();
    } else {
      w.String(choice.finish_reason);
    }
    w.Key("stop_reason");
    w.Raw(choice.stop_reason.empty() ? "null" : choice.stop_reason);
    if (style_.answer.return_token_ids) {
      w.Key("token_ids");
      WriteTokenIds(choice.token_ids, w);
      if (!style_.answer.stream || !std::exchange(p.told_ids, true)) {
        w.Key("prompt_token_ids");
        WriteTokenIds(p.request->prompt, w);
      }
    }
    if (style_.answer.prompt_logprobs) {
      w.Key("prompt_logprobs");
      WritePromptLogprobs(names_, p.logprobs, w);
    }
    w.EndObject();
  }

  void Chunk(int32_t prompt, int32_t output, Choice& choice, std::string& sse) {
    JsonWriter w;
    Head(w);
    w.BeginArray();
    WriteChoice(prompt, output, choice, w);
    w.EndArray();
    if (style_.answer.continuous_usage) Usage(w);
    w.EndObject();
    AppendEvent(w.text(), sse);
    choice.text.clear();
    choice.logprobs.Clear();
    choice.token_ids.clear();
  }

  const AnswerInfo info_;
  const CompletionStyle style_;
  const TokenNames names_;
  std::vector<Prompt> prompts_;
  std::vector<Choice> choices_;
  UsageSum usage_;
};

}  // namespace

std::unique_ptr<AnswerWriter> MakeCompletionWriter(AnswerInfo info, const CompletionStyle& style) {
  return std::make_unique<CompletionWriter>(std::move(info), style);
}

}  // namespace quire
