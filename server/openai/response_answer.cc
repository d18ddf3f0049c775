#include "server/openai/response_answer.h"

#include <utility>

#include "server/openai/chat_answer.h"
#include "server/openai/errors.h"

namespace quire {
namespace {

// One thing that the model made: a message, or a call of a tool.
struct Item {
  bool is_call = false;
  bool is_done = false;
  std::string id;
  std::string call_id;
  std::string name;
  std::string text;  // of the message; arguments of the call
};

class ResponseWriter final : public AnswerWriter {
 public:
  ResponseWriter(AnswerInfo info, ResponseStyle style)
      : info_(std::move(info)),
        style_(std::move(style)),
        parser_(style_.tools, style_.named_tool, style_.parallel_tools) {}

  void OnRequest(int32_t, std::shared_ptr<const Request>) override {}

  void OnAccepted(int32_t, const RequestStats& stats, std::string& sse) override {
    usage_.OnAccepted(stats);
    for (const char* name : {"response.created", "response.in_progress"}) {
      Event(name, sse, [&](JsonWriter& w) {
        w.Key("response");
        w.Raw(Response("in_progress"));
      });
    }
  }

  void OnPromptLogprobs(int32_t, const std::vector<PromptLogprob>&) override {}

  void OnDelta(int32_t, const Delta& delta, std::string& sse) override {
    usage_.OnTokens(static_cast<int64_t>(delta.token_ids.size()));
    std::vector<ToolPiece> pieces;
    parser_.Push(delta.text, pieces);
    Take(pieces, sse);
  }

  void OnBranchEnd(int32_t, const BranchEnd& end, std::string& sse) override {
    std::vector<ToolPiece> pieces;
    parser_.Finish(pieces);
    Take(pieces, sse);
    if (items_.empty()) Open({.id = ItemId("msg")}, sse);  // an empty answer is a message, too
    is_cut_ = end.reason == FinishReason::kLength;
    CloseLast(sse);
  }

  void OnDone(int32_t, const RequestStats& stats) override { usage_.OnDone(stats); }

  std::string Finish() override {
    const char* const status = is_cut_ ? "incomplete" : "completed";
    if (!style_.stream) return Response(status);
    std::string sse;
    Event(fmt::format("response.{}", status), sse, [&](JsonWriter& w) {
      w.Key("response");
      w.Raw(Response(status));
    });
    return sse;
  }

  std::string Fail(const absl::Status& status) override {
    std::string sse;
    Event("error", sse, [&](JsonWriter& w) {
      w.Key("code");
      w.String(std::to_string(HttpStatusOf(status)));
      w.Key("message");
      w.String(Message(status));
      w.Key("param");
      w.Null();
    });
    return sse;
  }

 private:
  // write: the members of the event besides its type and number.
  template <typename Fn>
  void Event(std::string_view type, std::string& sse, Fn write) {
    if (!style_.stream) return;
    JsonWriter w;
    w.BeginObject();
    w.Key("type");
    w.String(type);
    w.Key("sequence_number");
    w.Int(num_events_++);
    write(w);
    w.EndObject();
    AppendEvent(w.text(), sse, type);
  }
  // Of the last item.
  template <typename Fn>
  void ItemEvent(std::string_view type, std::string& sse, Fn write) {
    Event(type, sse, [&](JsonWriter& w) {
      w.Key("item_id");
      w.String(items_.back().id);
      w.Key("output_index");
      w.Int(static_cast<int64_t>(items_.size()) - 1);
      if (!items_.back().is_call) {
        w.Key("content_index");
        w.Int(0);
      }
      write(w);
    });
  }

  std::string ItemId(std::string_view prefix) const {
    return fmt::format("{}_{}_{}", prefix, info_.id.substr(info_.id.find('_') + 1), items_.size());
  }

  static void WritePart(const Item& item, JsonWriter& w) {
    w.BeginObject();
    w.Key("type");
    w.String("output_text");
    w.Key("text");
    w.String(item.text);
    w.Key("annotations");
    w.BeginArray();
    w.EndArray();
    w.Key("logprobs");
    w.BeginArray();
    w.EndArray();
    w.EndObject();
  }

  void WriteItem(const Item& item, JsonWriter& w) const {
    w.BeginObject();
    w.Key("type");
    w.String(item.is_call ? "function_call" : "message");
    w.Key("id");
    w.String(item.id);
    w.Key("status");
    w.String(!item.is_done ? "in_progress" : is_cut_ ? "incomplete" : "completed");
    if (item.is_call) {
      w.Key("call_id");
      w.String(item.call_id);
      w.Key("name");
      w.String(item.name);
      w.Key("arguments");
      w.String(item.text);
    } else {
      w.Key("role");
      w.String("assistant");
      w.Key("content");
      w.BeginArray();
      if (item.is_done) WritePart(item, w);
      w.EndArray();
    }
    w.EndObject();
  }

  void Open(Item item, std::string& sse) {
    items_.push_back(std::move(item));
    Event("response.output_item.added", sse, [&](JsonWriter& w) {
      w.Key("output_index");
      w.Int(static_cast<int64_t>(items_.size()) - 1);
      w.Key("item");
      WriteItem(items_.back(), w);
    });
    if (items_.back().is_call) return;
    ItemEvent("response.content_part.added", sse, [&](JsonWriter& w) {
      w.Key("part");
      WritePart(items_.back(), w);
    });
  }

  void CloseLast(std::string& sse) {
    if (items_.empty() || items_.back().is_done) return;
    Item& item = items_.back();
    item.is_done = true;
    if (item.is_call) {
      ItemEvent("response.function_call_arguments.done", sse, [&](JsonWriter& w) {
        w.Key("name");
        w.String(item.name);
        w.Key("arguments");
        w.String(item.text);
      });
    } else {
      ItemEvent("response.output_text.done", sse, [&](JsonWriter& w) {
        w.Key("text");
        w.String(item.text);
        w.Key("logprobs");
        w.BeginArray();
        w.EndArray();
      });
      ItemEvent("response.content_part.done", sse, [&](JsonWriter& w) {
        w.Key("part");
        WritePart(item, w);
      });
    }
    Event("response.output_item.done", sse, [&](JsonWriter& w) {
      w.Key("output_index");
      w.Int(static_cast<int64_t>(items_.size()) - 1);
      w.Key("item");
      WriteItem(item, w);
    });
  }

  void Take(const std::vector<ToolPiece>& pieces, std::string& sse) {
    for (const ToolPiece& piece : pieces) {
      if (piece.kind == ToolPiece::Kind::kStart) {
        CloseLast(sse);
        Open({.is_call = true,
              .id = ItemId("fc"),
              .call_id = ToolCallId(info_, 0, piece.index),
              .name = piece.text},
             sse);
        continue;
      }
      const bool is_call = piece.kind == ToolPiece::Kind::kArguments;
      if (!is_call && (items_.empty() || items_.back().is_call)) {
        CloseLast(sse);
        Open({.id = ItemId("msg")}, sse);
      }
      items_.back().text += piece.text;
      ItemEvent(is_call ? "response.function_call_arguments.delta" : "response.output_text.delta",
                sse, [&](JsonWriter& w) {
                  w.Key("delta");
                  w.String(piece.text);
                  if (is_call) return;
                  w.Key("logprobs");
                  w.BeginArray();
                  w.EndArray();
                });
    }
  }

  void WriteUsage(JsonWriter& w) const {
    w.BeginObject();
    w.Key("input_tokens");
    w.Int(usage_.prompt_tokens());
    w.Key("input_tokens_details");
    w.BeginObject();
    w.Key("cached_tokens");
    w.Int(usage_.cached_tokens());
    w.EndObject();
    w.Key("output_tokens");
    w.Int(usage_.completion_tokens());
    w.Key("output_tokens_details");
    w.BeginObject();
    w.Key("reasoning_tokens");
    w.Int(0);
    w.EndObject();
    w.Key("total_tokens");
    w.Int(usage_.prompt_tokens() + usage_.completion_tokens());
    w.EndObject();
  }

  std::string Response(std::string_view status) const {
    JsonWriter w;
    w.BeginObject();
    w.Key("id");
    w.String(info_.id);
    w.Key("object");
    w.String("response");
    w.Key("created_at");
    w.Int(info_.created);
    w.Key("status");
    w.String(status);
    w.Key("model");
    w.String(info_.model->name);
    w.Key("error");
    w.Null();
    w.Key("incomplete_details");
    if (status == "incomplete") {
      w.Raw(R"({"reason":"max_output_tokens"})");
    } else {
      w.Null();
    }
    w.Key("output");
    w.BeginArray();
    for (const Item& item : items_) WriteItem(item, w);
    w.EndArray();
    w.Key("previous_response_id");
    w.Null();
    w.Key("store");
    w.Bool(false);
    w.Key("usage");
    if (status == "in_progress") {
      w.Null();
    } else {
      WriteUsage(w);
    }
    w.EndObject();
    std::string text = w.text();
    text.pop_back();
    return text + "," + style_.echoed + "}";
  }

  const AnswerInfo info_;
  const ResponseStyle style_;
  ToolParser parser_;
  std::vector<Item> items_;
  UsageSum usage_;
  bool is_cut_ = false;
  int64_t num_events_ = 0;
};

}  // namespace

std::unique_ptr<AnswerWriter> MakeResponseWriter(AnswerInfo info, ResponseStyle style) {
  return std::make_unique<ResponseWriter>(std::move(info), std::move(style));
}

}  // namespace quire
