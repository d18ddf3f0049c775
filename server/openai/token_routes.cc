#include "server/openai/token_routes.h"

#include "base/json_slice.h"
#include "server/convert.h"
#include "server/openai/call.h"
#include "server/openai/chat_input.h"
#include "server/openai/fields.h"
#include "server/openai/logprob_text.h"
#include "server/openai/sampling_fields.h"

namespace quire {
namespace {

void WriteCard(const ServedModel& model, int64_t created, JsonWriter& w) {
  w.BeginObject();
  w.Key("id");
  w.String(model.name);
  w.Key("object");
  w.String("model");
  w.Key("created");
  w.Int(created);
  w.Key("owned_by");
  w.String("quire");
  w.Key("root");
  w.String(model.name);
  w.Key("parent");
  w.Null();
  w.Key("max_model_len");
  w.Int(model.max_model_len);
  w.Key("permission");
  w.BeginArray();
  w.EndArray();
  w.EndObject();
}

absl::Status CheckModel(Fields& fields, const ServedModel& model) {
  const auto name = fields.String("model");
  if (!name || name->empty() || *name == model.name) return absl::OkStatus();
  return Error(absl::StatusCode::kNotFound, "model={} is not served here; {} is", *name,
               model.name);
}

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

std::string ModelCard(const ServedModel& model, int64_t created) {
  JsonWriter w;
  WriteCard(model, created, w);
  return w.text();
}

std::string ModelList(const ServedModel& model, int64_t created) {
  JsonWriter w;
  w.BeginObject();
  w.Key("object");
  w.String("list");
  w.Key("data");
  w.BeginArray();
  WriteCard(model, created, w);
  w.EndArray();
  w.EndObject();
  return w.text();
}

absl::StatusOr<std::string> TokenizeBody(std::string_view body, const ServedModel& model) {
  ASSIGN_OR_RETURN(const Json json, ParseBody(body));
  Fields fields(json);
  RETURN_IF_ERROR(CheckModel(fields, model));
  pb::TokenizeRequest request;
  const bool want_texts = fields.Bool("return_token_strs").value_or(false);
  const auto add_special = fields.Bool("add_special_tokens");
  if (fields.Has("messages")) {
    fields.Array("messages");
    fields.Array("tools");
    if (const auto value = fields.Bool("add_generation_prompt")) {
      request.mutable_chat()->set_add_generation_prompt(*value);
    }
    if (fields.Bool("continue_final_message").value_or(false)) {
      request.mutable_chat()->set_continue_final_message(true);
    }
    if (fields.Object("chat_template_kwargs")) {
      request.mutable_chat()->set_template_kwargs_json(
          std::string(RawMember(body, "chat_template_kwargs").value_or("")));
    }
    fields.Refuse("chat_template", "is not allowed; the template comes with the model");
    RETURN_IF_ERROR(fields.status());
    ASSIGN_OR_RETURN(*request.mutable_chat()->mutable_messages_json(),
                     TemplateMessages(RawMember(body, "messages").value_or("")));
    if (fields.Has("tools")) {
      request.mutable_chat()->set_tools_json(std::string(RawMember(body, "tools").value_or("")));
    }
  } else {
    const auto prompt = fields.String("prompt");
    RETURN_IF_ERROR(fields.status());
    if (!prompt) return InvalidArgument("prompt is missing; give a string, or messages");
    request.set_text(*prompt);
    request.set_add_special_tokens(add_special.value_or(true));
  }
  RETURN_IF_ERROR(fields.status());
  pb::TokenizeResponse response;
  RETURN_IF_ERROR(TokenizeFromProto(request, model, response));
  JsonWriter w;
  w.BeginObject();
  w.Key("count");
  w.Int(response.token_ids_size());
  w.Key("max_model_len");
  w.Int(model.max_model_len);
  w.Key("tokens");
  w.BeginArray();
  for (const uint32_t id : response.token_ids()) w.Uint(id);
  w.EndArray();
  w.Key("token_strs");
  if (want_texts) {
    w.BeginArray();
    for (const uint32_t id : response.token_ids()) {
      w.String(model.tokenizer->TokenText(static_cast<TokenId>(id)));
    }
    w.EndArray();
  } else {
    w.Null();
  }
  w.EndObject();
  return w.text();
}

absl::StatusOr<std::string> DetokenizeBody(std::string_view body, const ServedModel& model) {
  ASSIGN_OR_RETURN(const Json json, ParseBody(body));
  Fields fields(json);
  RETURN_IF_ERROR(CheckModel(fields, model));
  if (!fields.Has("tokens")) return InvalidArgument("tokens is missing; give an array of ids");
  pb::DetokenizeRequest request;
  ToTokenIds(fields, "tokens", fields.Ints("tokens"), request.mutable_token_ids());
  // As the client's own text comes back: with everything that it holds.
  request.set_skip_special_tokens(fields.Bool("skip_special_tokens").value_or(false));
  RETURN_IF_ERROR(fields.status());
  pb::DetokenizeResponse response;
  RETURN_IF_ERROR(DetokenizeFromProto(request, model, response));
  JsonWriter w;
  w.BeginObject();
  w.Key("prompt");
  w.String(response.text());
  w.EndObject();
  return w.text();
}

std::string PercentDecoded(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size() && HexDigit(text[i + 1]) >= 0 &&
        HexDigit(text[i + 2]) >= 0) {
      out += static_cast<char>(HexDigit(text[i + 1]) * 16 + HexDigit(text[i + 2]));
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

}  // namespace quire
