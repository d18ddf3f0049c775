// server/openai/chat.cc -- POST /v1/chat/completions: the body. Its answer: chat_answer.cc.
#include "base/json_slice.h"
#include "server/openai/call.h"
#include "server/openai/chat_answer.h"
#include "server/openai/chat_input.h"
#include "server/openai/fields.h"
#include "server/openai/sampling_fields.h"

namespace quire {
namespace {

void ReadLimits(Fields& fields, pb::GenerateRequest& out) {
  const auto max_tokens = fields.Int("max_tokens");
  if (const auto limit = fields.Int("max_completion_tokens")) {
    out.mutable_stopping()->set_max_tokens(*limit);
  } else if (max_tokens) {
    out.mutable_stopping()->set_max_tokens(*max_tokens);
  }
}

void ReadLogprobs(Fields& fields, ChatStyle& style, pb::GenerateRequest& out) {
  const bool logprobs = fields.Bool("logprobs").value_or(false);
  const auto top = fields.Int("top_logprobs");
  if (top && (*top < 0 || *top > 20)) fields.Refuse("top_logprobs", "is outside [0, 20]");
  if (top && *top > 0 && !logprobs) {
    fields.Refuse("top_logprobs", "needs logprobs=true; set it or leave this out");
  }
  if (!logprobs) return;
  style.answer.num_logprobs = top.value_or(0);
  out.mutable_response()->set_num_logprobs(style.answer.num_logprobs);
}

// What the template gets besides messages and tools.
void ReadTemplate(Fields& fields, std::string_view body, pb::ChatInput& chat) {
  if (const auto value = fields.Bool("add_generation_prompt")) {
    chat.set_add_generation_prompt(*value);
  }
  if (fields.Bool("continue_final_message").value_or(false)) {
    chat.set_continue_final_message(true);
    // vLLM wants it said; a client that does not say it can mean nothing else.
    if (!fields.Has("add_generation_prompt")) chat.set_add_generation_prompt(false);
  }
  std::string kwargs;
  if (fields.Object("chat_template_kwargs")) {
    kwargs = RawMember(body, "chat_template_kwargs").value_or("");
  }
  if (const auto effort = fields.String("reasoning_effort")) {
    JsonWriter w;
    w.String(*effort);
    const bool is_empty = RawMembers(kwargs).empty();
    kwargs = fmt::format("{{\"reasoning_effort\":{}{}", w.text(),
                         is_empty ? "}" : "," + kwargs.substr(kwargs.find('{') + 1));
  }
  chat.set_template_kwargs_json(kwargs);
  if (!fields.Array("documents").empty()) {
    chat.set_documents_json(std::string(RawMember(body, "documents").value_or("")));
  }
  fields.Refuse("chat_template", "is not allowed; the template comes with the model");
}

void RefuseOthers(Fields& fields) {
  constexpr std::string_view kNotOffered = "is not offered here; leave it out";
  for (const char* name : {"functions", "function_call", "audio", "prediction",
                           "web_search_options", "mm_processor_kwargs"}) {
    fields.Refuse(name, kNotOffered);
  }
  for (const std::string& modality : fields.Strings("modalities")) {
    if (modality != "text") fields.Refuse("modalities", "is not text only");
  }
  if (fields.Bool("echo").value_or(false)) fields.Refuse("echo", kNotOffered);
  if (fields.Bool("add_special_tokens").value_or(false)) {
    fields.Refuse("add_special_tokens", "is not offered here: the template writes them");
  }
}

}  // namespace

absl::StatusOr<OpenAiCall> ReadChat(std::string_view body, const ServedModel& model,
                                    AnswerInfo info) {
  ASSIGN_OR_RETURN(const Json json, ParseBody(body));
  Fields fields(json);
  OpenAiCall call;
  pb::GenerateRequest& request = call.requests.emplace_back();
  ReadSamplingFields(fields, model, request);
  BodyNames names{.num_logprobs = "top_logprobs"};
  names.guide = ReadGuidedFields(fields, body, request);
  names.has_best_of = fields.Has("best_of");
  if (fields.Has("max_completion_tokens")) names.max_tokens = "max_completion_tokens";
  call.names = OpenAiFieldNames(names);
  ChatStyle style;
  ReadStyle(fields, style.answer);
  ReadLimits(fields, request);
  ReadLogprobs(fields, style, request);
  ReadTemplate(fields, body, *request.mutable_chat());
  RefuseOthers(fields);
  fields.Array("messages");
  fields.Array("tools");
  const bool parallel = fields.Bool("parallel_tool_calls").value_or(true);
  RETURN_IF_ERROR(fields.status());
  ASSIGN_OR_RETURN(*request.mutable_chat()->mutable_messages_json(),
                   TemplateMessages(RawMember(body, "messages").value_or("")));
  ASSIGN_OR_RETURN(const ToolUse tools, ReadTools(RawMember(body, "tools").value_or(""),
                                                  json["tool_choice"], parallel, model));
  RETURN_IF_ERROR(ApplyTools(tools, model, request));
  style.tools = tools.format;
  style.named_tool = tools.named;
  style.parallel_tools = tools.parallel;
  style.answer.num_outputs = request.has_beam()           ? request.beam().num_return_sequences()
                             : request.sampling().has_n() ? request.sampling().n()
                                                          : 1;
  if (style.answer.num_outputs < 1 || style.answer.num_outputs > 128) {
    return InvalidArgument("n={} is outside [1, 128]; the default is 1", style.answer.num_outputs);
  }
  info.id = "chatcmpl-" + info.id;
  call.stream = style.answer.stream;
  call.writer = MakeChatWriter(std::move(info), style);
  return call;
}

}  // namespace quire
