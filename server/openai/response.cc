// server/openai/response.cc -- POST /v1/responses: the body. Its answer: response_answer.cc.
//
// A response is a chat by other names: what comes in becomes messages and tools of one. Nothing is
// stored, so what needs an earlier response is refused.
#include <utility>

#include "base/json_slice.h"
#include "server/openai/call.h"
#include "server/openai/chat_answer.h"
#include "server/openai/chat_input.h"
#include "server/openai/fields.h"
#include "server/openai/response_answer.h"
#include "server/openai/sampling_fields.h"

namespace quire {
namespace {

std::string JsonString(std::string_view text) {
  JsonWriter w;
  w.String(text);
  return w.text();
}

std::string RawOr(std::string_view body, std::string_view name, std::string_view otherwise) {
  const std::string_view raw = RawMember(body, name).value_or("null");
  return std::string(raw == "null" ? otherwise : raw);
}

// Items of `input` as messages of a chat.
class MessageList {
 public:
  void Add(std::string_view role, std::string_view raw_content) {
    CloseCalls();
    Next(fmt::format(R"({{"role":{},"content":{}}})", JsonString(role), raw_content));
  }
  // Calls that follow each other are one turn of the assistant.
  void AddCall(const Json& item) {
    if (!calls_.empty()) calls_ += ',';
    calls_ +=
        fmt::format(R"({{"id":{},"type":"function","function":{{"name":{},"arguments":{}}}}})",
                    item["call_id"].Dump(), item["name"].Dump(), item["arguments"].Dump());
  }
  void AddCallOutput(const Json& item, std::string_view raw_output) {
    CloseCalls();
    Next(fmt::format(R"({{"role":"tool","tool_call_id":{},"content":{}}})", item["call_id"].Dump(),
                     raw_output));
  }
  std::string Text() {
    CloseCalls();
    return "[" + text_ + "]";
  }

 private:
  void CloseCalls() {
    if (calls_.empty()) return;
    Next(fmt::format(R"({{"role":"assistant","content":"","tool_calls":[{}]}})",
                     std::exchange(calls_, {})));
  }
  void Next(std::string_view message) {
    if (!text_.empty()) text_ += ',';
    text_ += message;
  }

  std::string text_;
  std::string calls_;
};

absl::Status AddItem(std::string_view raw, size_t index, MessageList& messages) {
  ASSIGN_OR_RETURN(const Json item, Json::Parse(raw));
  const std::string type(item["type"].as_string().value_or("message"));
  if (type == "message") {
    const Json role = item["role"];
    if (!role.is_string()) {
      return InvalidArgument("input[{}].role={} is not a string", index, Shown(role));
    }
    // Templates know it by its older name.
    messages.Add(*role.as_string() == "developer" ? "system" : *role.as_string(),
                 RawOr(raw, "content", "\"\""));
    return absl::OkStatus();
  }
  if (type == "function_call" || type == "function_call_output") {
    const bool is_call = type == "function_call";
    for (const char* name : is_call ? std::vector<const char*>{"call_id", "name", "arguments"}
                                    : std::vector<const char*>{"call_id"}) {
      if (!item[name].is_string()) {
        return InvalidArgument("input[{}].{}={} is not a string", index, name, Shown(item[name]));
      }
    }
    if (is_call) {
      messages.AddCall(item);
    } else {
      messages.AddCallOutput(item, RawOr(raw, "output", "\"\""));
    }
    return absl::OkStatus();
  }
  if (type == "reasoning") return absl::OkStatus();  // of an earlier turn: templates leave it out
  return InvalidArgument("input[{}].type={} is not offered here", index, Shown(item["type"]));
}

absl::StatusOr<std::string> Messages(Fields& fields, std::string_view body) {
  MessageList messages;
  if (const auto instructions = fields.String("instructions")) {
    messages.Add("system", JsonString(*instructions));
  }
  RETURN_IF_ERROR(fields.status());
  const Json input = fields.json()["input"];
  if (const auto text = input.as_string()) {
    messages.Add("user", JsonString(*text));
  } else if (input.is_array() && input.size() > 0) {
    size_t index = 0;
    for (const std::string_view item : RawElements(RawMember(body, "input").value_or(""))) {
      RETURN_IF_ERROR(AddItem(item, index++, messages));
    }
  } else {
    return InvalidArgument("input={} is neither a string nor an array of items", Shown(input));
  }
  return TemplateMessages(messages.Text());
}

// {"type": "function", "name", ...} as {"type": "function", "function": {"name", ...}}.
std::string ChatTools(std::string_view raw) {
  std::string tools;
  for (const std::string_view tool : RawElements(raw)) {
    std::string type = "null";
    std::string function;
    for (const auto& [key, value] : RawMembers(tool)) {
      if (key == "type") {
        type = value;
      } else {
        function += fmt::format("{}\"{}\":{}", function.empty() ? "" : ",", key, value);
      }
    }
    tools += fmt::format(R"({}{{"type":{},"function":{{{}}}}})", tools.empty() ? "" : ",", type,
                         function);
  }
  return tools.empty() ? std::string() : "[" + tools + "]";
}

void RefuseOthers(Fields& fields) {
  for (const char* name : {"previous_response_id", "conversation", "prompt"}) {
    fields.Refuse(name, "is not offered here: responses are not stored; send the whole input");
  }
  for (const char* name : {"top_logprobs", "max_tool_calls", "n", "use_beam_search"}) {
    fields.Refuse(name, "is not offered by this route; use /v1/chat/completions");
  }
  if (fields.Bool("background").value_or(false)) {
    fields.Refuse("background", "is not offered here: responses are not stored");
  }
  for (const std::string& include : fields.Strings("include")) {
    if (include != "reasoning.encrypted_content") {
      fields.Refuse("include", "is not offered here; leave it out");
    }
  }
  if (fields.String("truncation").value_or("disabled") != "disabled") {
    fields.Refuse(
        "truncation",
        "is not \"disabled\": turns are not left out here; truncate_prompt_tokens cuts by tokens");
  }
}

// The members by which a response tells what was asked for.
std::string Echoed(std::string_view body) {
  std::string out;
  const auto add = [&](const char* name, std::string_view otherwise) {
    out += fmt::format(",\"{}\":{}", name, RawOr(body, name, otherwise));
  };
  add("instructions", "null");
  add("max_output_tokens", "null");
  add("metadata", "{}");
  add("parallel_tool_calls", "true");
  add("reasoning", "null");
  add("temperature", "1.0");
  add("text", R"({"format":{"type":"text"}})");
  add("tool_choice", "\"auto\"");
  add("tools", "[]");
  add("top_p", "1.0");
  add("truncation", "\"disabled\"");
  add("user", "null");
  return out.substr(1);
}

}  // namespace

absl::StatusOr<OpenAiCall> ReadResponse(std::string_view body, const ServedModel& model,
                                        AnswerInfo info) {
  ASSIGN_OR_RETURN(const Json json, ParseBody(body));
  Fields fields(json);
  OpenAiCall call;
  pb::GenerateRequest& request = call.requests.emplace_back();
  RefuseOthers(fields);
  ReadSamplingFields(fields, model, request);
  BodyNames names{.max_tokens = "max_output_tokens", .num_logprobs = "top_logprobs"};
  names.guide = ReadGuidedFields(fields, body, request);
  if (const auto limit = fields.Int("max_output_tokens")) {
    request.mutable_stopping()->set_max_tokens(*limit);
  }
  if (auto reasoning = fields.Object("reasoning")) {
    if (const auto effort = reasoning->String("effort")) {
      request.mutable_chat()->set_template_kwargs_json(
          fmt::format("{{\"reasoning_effort\":{}}}", JsonString(*effort)));
    }
    fields.Merge(*reasoning);
  }
  if (auto text = fields.Object("text"); text && text->Has("format")) {
    // The same as response_format of a chat.
    const std::string_view format =
        RawMember(RawMember(body, "text").value_or(""), "format").value_or("{}");
    const std::string as_chat = fmt::format("{{\"response_format\":{}}}", format);
    ASSIGN_OR_RETURN(const Json chat_json, Json::Parse(as_chat));
    Fields chat_fields(chat_json);
    if (!ReadGuidedFields(chat_fields, as_chat, request).empty()) names.guide = "text.format";
    fields.Merge(chat_fields);
  }
  call.names = OpenAiFieldNames(names);
  ResponseStyle style;
  style.stream = fields.Bool("stream").value_or(false);
  fields.Bool("store");
  fields.Object("metadata");
  fields.Array("tools");
  const bool parallel = fields.Bool("parallel_tool_calls").value_or(true);
  RETURN_IF_ERROR(fields.status());
  ASSIGN_OR_RETURN(*request.mutable_chat()->mutable_messages_json(), Messages(fields, body));
  ASSIGN_OR_RETURN(const ToolUse tools, ReadTools(ChatTools(RawMember(body, "tools").value_or("")),
                                                  json["tool_choice"], parallel, model));
  RETURN_IF_ERROR(ApplyTools(tools, model, request));
  style.tools = tools.format;
  style.named_tool = tools.named;
  style.parallel_tools = tools.parallel;
  style.echoed = Echoed(body);
  info.id = "resp_" + info.id;
  call.stream = style.stream;
  call.writer = MakeResponseWriter(std::move(info), std::move(style));
  return call;
}

}  // namespace quire
