// server/convert_prompt.cc -- see convert_prompt.h.
#include "server/convert_prompt.h"

#include <algorithm>

#include "base/json.h"
#include "server/convert.h"

namespace quire {
namespace {

constexpr size_t kMaxChatMessages = 4096;

// The array for the template: as it came, or made of the plain messages.
absl::StatusOr<std::string> ChatMessages(const pb::ChatInput& chat) {
  size_t count = static_cast<size_t>(chat.messages_size());
  if (!chat.messages_json().empty()) {
    if (count > 0) return InvalidArgument("chat.messages and chat.messages_json are set; give one");
    const absl::StatusOr<Json> messages = Json::Parse(chat.messages_json());
    if (!messages.ok()) return Annotate(messages.status(), "chat.messages_json");
    if (!messages->is_array()) return InvalidArgument("chat.messages_json is not a JSON array");
    count = messages->size();
  }
  if (count == 0) return InvalidArgument("chat.messages is empty; give at least one");
  if (count > kMaxChatMessages) {
    return InvalidArgument("chat.messages has {} entries, limit is {}", count, kMaxChatMessages);
  }
  if (!chat.messages_json().empty()) return chat.messages_json();
  JsonWriter messages;
  messages.BeginArray();
  for (const pb::ChatMessage& m : chat.messages()) {
    messages.BeginObject();
    messages.Key("role");
    messages.String(m.role());
    messages.Key("content");
    messages.String(m.content());
    messages.EndObject();
  }
  messages.EndArray();
  return messages.text();
}

// JSON for the template, "" if not given. kind: of JSON, for the message.
absl::StatusOr<std::string> ChatJson(const std::string& text, std::string_view field,
                                     std::string_view kind) {
  if (text.empty()) return std::string();
  const absl::StatusOr<Json> json = Json::Parse(text);
  if (!json.ok()) return Annotate(json.status(), field);
  if (kind == "array" ? json->is_array() : json->is_object()) return text;
  return InvalidArgument("{} is not a JSON {}", field, kind);
}

absl::StatusOr<std::string> RenderChat(const pb::ChatInput& chat, const ServedModel& model) {
  if (model.render_chat == nullptr) return Annotate(model.no_chat, "chat");
  ChatPrompt request;
  ASSIGN_OR_RETURN(request.messages_json, ChatMessages(chat));
  request.add_generation_prompt = !chat.has_add_generation_prompt() || chat.add_generation_prompt();
  request.continue_final_message = chat.continue_final_message();
  if (request.add_generation_prompt && request.continue_final_message) {
    return InvalidArgument(
        "chat.continue_final_message=true needs add_generation_prompt=false; set it");
  }
  ASSIGN_OR_RETURN(request.tools_json, ChatJson(chat.tools_json(), "chat.tools_json", "array"));
  ASSIGN_OR_RETURN(request.documents_json,
                   ChatJson(chat.documents_json(), "chat.documents_json", "array"));
  ASSIGN_OR_RETURN(request.kwargs_json,
                   ChatJson(chat.template_kwargs_json(), "chat.template_kwargs_json", "object"));
  absl::StatusOr<std::string> text = model.render_chat(request);
  if (!text.ok()) return Annotate(text.status(), "chat");
  return text;
}

// What the tokenizer has added by itself to `text`, before and after `ids`.
struct AddedTokens {
  size_t before = 0;
  size_t after = 0;
};
absl::StatusOr<AddedTokens> FindAdded(const std::string& text, const std::vector<TokenId>& ids,
                                      const Tokenizer& tokenizer) {
  ASSIGN_OR_RETURN(const std::vector<TokenId> plain, tokenizer.Encode(text, false));
  const size_t added = ids.size() - std::min(ids.size(), plain.size());
  for (size_t before = 0; before <= added; ++before) {
    if (std::equal(plain.begin(), plain.end(), ids.begin() + static_cast<ptrdiff_t>(before),
                   ids.end() - static_cast<ptrdiff_t>(added - before))) {
      return AddedTokens{.before = before, .after = added - before};
    }
  }
  return AddedTokens{};
}

// A model wants its first token however much of a text is cut, so what the tokenizer has added
// stays if there is room for it.
absl::Status Truncate(const pb::GenerateRequest& r, const ServedModel& model,
                      std::vector<TokenId>& prompt) {
  if (!r.has_truncate_prompt_tokens()) return absl::OkStatus();
  int64_t limit = r.truncate_prompt_tokens();
  if (limit == -1) {
    const int64_t new_tokens = std::max(1, r.stopping().max_tokens());
    limit = std::max<int64_t>(1, model.max_model_len - new_tokens);
  }
  const auto keep = static_cast<size_t>(limit);
  if (prompt.size() <= keep) return absl::OkStatus();
  AddedTokens added;
  if (r.has_text() && (!r.has_add_special_tokens() || r.add_special_tokens())) {
    ASSIGN_OR_RETURN(added, FindAdded(r.text(), prompt, *model.tokenizer));
    if (added.before + added.after > keep) added = {};
  }
  const auto excess = static_cast<ptrdiff_t>(prompt.size() - keep);
  if (r.truncation_side() == pb::TRUNCATION_SIDE_RIGHT) {
    const auto end = prompt.end() - static_cast<ptrdiff_t>(added.after);
    prompt.erase(end - excess, end);
  } else {
    const auto begin = prompt.begin() + static_cast<ptrdiff_t>(added.before);
    prompt.erase(begin, begin + excess);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckId(uint32_t id, const ServedModel& model, std::string_view path, int i) {
  if (id < static_cast<uint32_t>(model.vocab_size)) return absl::OkStatus();
  return InvalidArgument("{}[{}]={} is outside [0, {}]; use ids of this model", path, i, id,
                         model.vocab_size - 1);
}

absl::Status CheckPromptFields(const pb::GenerateRequest& r) {
  if (r.has_add_special_tokens() && r.input_case() != pb::GenerateRequest::kText) {
    return InvalidArgument("add_special_tokens={} is for text only", r.add_special_tokens());
  }
  if (!pb::TruncationSide_IsValid(r.truncation_side())) {
    return InvalidArgument("truncation_side={} is none of TruncationSide; leave it out",
                           static_cast<int>(r.truncation_side()));
  }
  if (!r.has_truncate_prompt_tokens()) {
    if (r.truncation_side() == pb::TRUNCATION_SIDE_UNSPECIFIED) return absl::OkStatus();
    return InvalidArgument(
        "truncation_side={} needs truncate_prompt_tokens; set it or leave this out",
        pb::TruncationSide_Name(r.truncation_side()));
  }
  const int32_t keep = r.truncate_prompt_tokens();
  if (keep >= 1 || keep == -1) return absl::OkStatus();
  return InvalidArgument(
      "truncate_prompt_tokens={} must be at least 1, or -1 for what the model takes", keep);
}

absl::Status ReadPrompt(const pb::GenerateRequest& r, const ServedModel& model,
                        std::vector<TokenId>& prompt) {
  switch (r.input_case()) {
    case pb::GenerateRequest::kText: {
      const bool add_special = !r.has_add_special_tokens() || r.add_special_tokens();
      ASSIGN_OR_RETURN(prompt, model.tokenizer->Encode(r.text(), add_special));
      break;
    }
    case pb::GenerateRequest::kTokenIds:
      RETURN_IF_ERROR(ReadIds(r.token_ids().ids(), model, "token_ids.ids", prompt));
      break;
    case pb::GenerateRequest::kChat: {
      ASSIGN_OR_RETURN(const std::string text, RenderChat(r.chat(), model));
      ASSIGN_OR_RETURN(prompt, model.tokenizer->Encode(text, /*add_special_tokens=*/false));
      break;
    }
    case pb::GenerateRequest::INPUT_NOT_SET:
      return InvalidArgument("input is not set; give text, token_ids or chat");
  }
  if (prompt.empty()) return InvalidArgument("prompt has 0 tokens, must have at least 1");
  return Truncate(r, model, prompt);
}

absl::Status TokenizeFromProto(const pb::TokenizeRequest& r, const ServedModel& model,
                               pb::TokenizeResponse& response) {
  std::vector<TokenId> ids;
  switch (r.input_case()) {
    case pb::TokenizeRequest::kText: {
      const bool add_special = !r.has_add_special_tokens() || r.add_special_tokens();
      ASSIGN_OR_RETURN(ids, model.tokenizer->Encode(r.text(), add_special));
      break;
    }
    case pb::TokenizeRequest::kChat: {
      ASSIGN_OR_RETURN(std::string text, RenderChat(r.chat(), model));
      ASSIGN_OR_RETURN(ids, model.tokenizer->Encode(text, /*add_special_tokens=*/false));
      response.set_rendered_text(std::move(text));
      break;
    }
    case pb::TokenizeRequest::INPUT_NOT_SET:
      return InvalidArgument("input is not set; give text or chat");
  }
  response.mutable_token_ids()->Add(ids.begin(), ids.end());
  return absl::OkStatus();
}

}  // namespace quire
