// server/openai/completion.cc -- POST /v1/completions: the body. Its answer: completion_answer.cc.
#include "server/openai/call.h"
#include "server/openai/completion_answer.h"
#include "server/openai/fields.h"
#include "server/openai/sampling_fields.h"

namespace quire {
namespace {

constexpr size_t kMaxPrompts = 256;
constexpr int32_t kDefaultMaxTokens = 16;  // OpenAI's
constexpr int32_t kMaxOutputs = 4096;      // of all prompts together

// str, [str], [int] or [[int]]: one prompt each, into copies of `base`.
void ReadPrompts(Fields& fields, const pb::GenerateRequest& base,
                 std::vector<pb::GenerateRequest>& out) {
  const Json prompt = fields.json()["prompt"];
  const auto add_ids = [&](const Json& array, const std::string& path) {
    pb::GenerateRequest& request = out.emplace_back(base);
    std::vector<int64_t> ids;
    ids.reserve(array.size());
    for (size_t i = 0; i < array.size(); ++i) {
      const auto id = array.at(i).as_int();
      if (!id) {
        fields.Fail(InvalidArgument("{}[{}]={} is no token id", path, i, Shown(array.at(i))));
        return;
      }
      ids.push_back(*id);
    }
    ToTokenIds(fields, path, ids, request.mutable_token_ids()->mutable_ids());
  };
  const auto add_text = [&](std::string_view text) {
    out.emplace_back(base).set_text(std::string(text));
  };
  if (const auto text = prompt.as_string()) return add_text(*text);
  if (!prompt.is_array() || prompt.size() == 0) {
    return fields.Fail(InvalidArgument(
        "prompt={} is not a string, an array of strings, or token ids", Shown(prompt)));
  }
  if (prompt.at(0).is_number()) return add_ids(prompt, "prompt");
  if (prompt.size() > kMaxPrompts) {
    return fields.Fail(InvalidArgument("prompt has {} entries, limit is {}; send several requests",
                                       prompt.size(), kMaxPrompts));
  }
  for (size_t i = 0; i < prompt.size(); ++i) {
    const Json one = prompt.at(i);
    if (const auto text = one.as_string()) {
      add_text(*text);
    } else if (one.is_array()) {
      add_ids(one, fmt::format("prompt[{}]", i));
    } else {
      return fields.Fail(
          InvalidArgument("prompt[{}]={} is neither a string nor token ids", i, Shown(one)));
    }
  }
}

}  // namespace

absl::StatusOr<Json> ParseBody(std::string_view body) {
  if (body.empty()) return InvalidArgument("the body is empty; send a JSON object");
  absl::StatusOr<Json> json = Json::Parse(body);
  if (!json.ok()) return Annotate(json.status(), "the body is not JSON");
  if (!json->is_object()) return InvalidArgument("the body is not a JSON object");
  return json;
}

void ReadStyle(Fields& fields, AnswerStyle& style) {
  style.stream = fields.Bool("stream").value_or(false);
  if (auto options = fields.Object("stream_options")) {
    if (!style.stream) fields.Refuse("stream_options", "needs stream=true; leave it out");
    style.include_usage = options->Bool("include_usage").value_or(false);
    style.continuous_usage = options->Bool("continuous_usage_stats").value_or(false);
    fields.Merge(*options);
  }
  style.tokens_as_ids = fields.Bool("return_tokens_as_token_ids").value_or(false);
  style.return_token_ids = fields.Bool("return_token_ids").value_or(false);
  const int32_t prompt_logprobs = fields.Int("prompt_logprobs").value_or(-1);
  style.prompt_logprobs = prompt_logprobs >= 0;
  if (style.prompt_logprobs && style.stream) {
    fields.Refuse("prompt_logprobs", "can't be streamed; set stream=false");
  }
}

absl::StatusOr<OpenAiCall> ReadCompletion(std::string_view body, const ServedModel& model,
                                          AnswerInfo info) {
  ASSIGN_OR_RETURN(const Json json, ParseBody(body));
  Fields fields(json);
  pb::GenerateRequest base;
  ReadSamplingFields(fields, model, base);
  BodyNames names;
  names.guide = ReadGuidedFields(fields, body, base);
  names.has_best_of = fields.Has("best_of");
  CompletionStyle style;
  ReadStyle(fields, style.answer);
  style.echo = fields.Bool("echo").value_or(false);
  if (const auto suffix = fields.String("suffix"); suffix && !suffix->empty()) {
    fields.Refuse("suffix", "is not offered here; leave it out");
  }
  if (style.echo && base.has_truncate_prompt_tokens()) {
    fields.Refuse("echo", "can't be had with truncate_prompt_tokens; leave one of them out");
  }
  const int32_t max_tokens = fields.Int("max_tokens").value_or(kDefaultMaxTokens);
  // Only the prompt is wanted: a token is computed all the same, and not told.
  style.prompt_only = style.echo && max_tokens == 0;
  base.mutable_stopping()->set_max_tokens(style.prompt_only ? 1 : max_tokens);
  if (const auto logprobs = fields.Int("logprobs")) {
    if (*logprobs < 0 || *logprobs > 20) {
      fields.Refuse("logprobs", "is outside [0, 20]; leave it out for none");
    }
    base.mutable_response()->set_num_logprobs(*logprobs);
    style.answer.num_logprobs = *logprobs;
    if (style.echo && !base.response().has_prompt_logprobs()) {
      base.mutable_response()->set_prompt_logprobs(*logprobs);
    }
  }
  if (!base.sampling().logprob_token_ids().empty() && style.answer.num_logprobs < 0) {
    fields.Refuse("logprob_token_ids", "needs logprobs; set it to 0 or more");
  }
  if (const auto add = fields.Bool("add_special_tokens")) base.set_add_special_tokens(*add);
  OpenAiCall call;
  call.names = OpenAiFieldNames(names);
  ReadPrompts(fields, base, call.requests);
  RETURN_IF_ERROR(fields.status());
  for (pb::GenerateRequest& request : call.requests) {
    if (request.has_token_ids()) request.clear_add_special_tokens();
    style.echo_texts.push_back(request.text());
  }
  const int32_t n = base.has_beam()           ? base.beam().num_return_sequences()
                    : base.sampling().has_n() ? base.sampling().n()
                                              : 1;
  const auto num_prompts = static_cast<int32_t>(call.requests.size());
  if (n < 1 || int64_t{n} * num_prompts > kMaxOutputs) {
    return InvalidArgument("n={} is outside [1, {}] with {} prompts", n, kMaxOutputs / num_prompts,
                           num_prompts);
  }
  style.answer.num_prompts = num_prompts;
  style.answer.num_outputs = n;
  info.id = "cmpl-" + info.id;
  call.stream = style.answer.stream;
  call.writer = MakeCompletionWriter(std::move(info), style);
  return call;
}

}  // namespace quire
