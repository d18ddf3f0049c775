// server/convert.cc -- see convert.h.
#include "server/convert.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <algorithm>
#include <random>
#include <type_traits>

#include "base/json.h"
#include "sampling/stop.h"
#include "server/retention.h"

namespace quire {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

constexpr size_t kMaxRequestIdBytes = 128;
constexpr size_t kMaxChatMessages = 4096;

// Random per process: ids that the server makes don't repeat after a restart.
uint64_t ServerNonce() {
  static const uint64_t nonce = [] {
    std::random_device device;
    return (uint64_t{device()} << 32 | device()) & ~uint64_t{0xffffff};
  }();
  return nonce;
}

uint64_t DrawSeed() {
  thread_local std::mt19937_64 generator = [] {
    std::random_device device;
    std::seed_seq seeds{device(), device(), device(), device()};
    return std::mt19937_64(seeds);
  }();
  return generator();
}

// The submessages in which a sampling field may live, with their names in GenerateRequest.
struct Part {
  const char* path;
  const Message* message;
};
std::vector<Part> SamplingParts(const pb::GenerateRequest& r) {
  return {{"sampling", &r.sampling()}, {"stopping", &r.stopping()}, {"response", &r.response()}};
}

// "temperature=5 is ..." becomes "sampling.temperature=5 is ...".
absl::Status WithPath(const absl::Status& status, const pb::GenerateRequest& r) {
  if (status.ok()) return status;
  const std::string message = quire::Message(status);
  const std::string name = message.substr(0, message.find_first_of("=[. "));
  for (const Part& part : SamplingParts(r)) {
    if (part.message->GetDescriptor()->FindFieldByName(name) != nullptr) {
      return absl::Status(status.code(), fmt::format("{}.{}", part.path, message));
    }
  }
  return status;
}

template <typename T>
void ReadField(const Message& message, const FieldDescriptor* field, T& member) {
  const google::protobuf::Reflection* const reflection = message.GetReflection();
  if (!reflection->HasField(message, field)) return;  // the default stays
  if constexpr (std::is_same_v<T, float>) {
    member = reflection->GetFloat(message, field);
  } else {
    static_assert(std::is_same_v<T, int32_t>, "map this type, too");
    member = reflection->GetInt32(message, field);
  }
}

template <typename T>
bool HasType(const FieldDescriptor* field) {
  return field->has_presence() &&
         field->cpp_type() == (std::is_same_v<T, float> ? FieldDescriptor::CPPTYPE_FLOAT
                                                        : FieldDescriptor::CPPTYPE_INT32);
}

absl::Status CheckId(uint32_t id, const ServedModel& model, std::string_view path, int i) {
  if (id < static_cast<uint32_t>(model.vocab_size)) return absl::OkStatus();
  return InvalidArgument("{}[{}]={} is outside [0, {}]; use ids of this model", path, i, id,
                         model.vocab_size - 1);
}

template <typename Ids>
absl::Status ReadIds(const Ids& ids, const ServedModel& model, std::string_view path,
                     std::vector<TokenId>& out) {
  out.reserve(static_cast<size_t>(ids.size()));
  for (int i = 0; i < ids.size(); ++i) {
    RETURN_IF_ERROR(CheckId(ids[i], model, path, i));
    out.push_back(static_cast<TokenId>(ids[i]));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> RenderChat(const pb::ChatInput& chat, const ServedModel& model) {
  if (model.render_chat == nullptr) return Annotate(model.no_chat, "chat");
  if (chat.messages().empty()) return InvalidArgument("chat.messages is empty; give at least one");
  if (static_cast<size_t>(chat.messages_size()) > kMaxChatMessages) {
    return InvalidArgument("chat.messages has {} entries, limit is {}", chat.messages_size(),
                           kMaxChatMessages);
  }
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
  ChatPrompt request;
  request.messages_json = messages.text();
  request.add_generation_prompt = !chat.has_add_generation_prompt() || chat.add_generation_prompt();
  if (!chat.tools_json().empty()) {
    const absl::StatusOr<Json> tools = Json::Parse(chat.tools_json());
    if (!tools.ok()) return Annotate(tools.status(), "chat.tools_json");
    if (!tools->is_array()) return InvalidArgument("chat.tools_json is not a JSON array");
    request.tools_json = chat.tools_json();
  }
  if (!chat.template_kwargs_json().empty()) {
    const absl::StatusOr<Json> kwargs = Json::Parse(chat.template_kwargs_json());
    if (!kwargs.ok()) return Annotate(kwargs.status(), "chat.template_kwargs_json");
    if (!kwargs->is_object()) return InvalidArgument("chat.template_kwargs_json is not an object");
    request.kwargs_json = chat.template_kwargs_json();
  }
  absl::StatusOr<std::string> text = model.render_chat(request);
  if (!text.ok()) return Annotate(text.status(), "chat");
  return text;
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
  if (r.has_add_special_tokens() && r.input_case() != pb::GenerateRequest::kText) {
    return InvalidArgument("add_special_tokens={} is for text only", r.add_special_tokens());
  }
  if (prompt.empty()) return InvalidArgument("prompt has 0 tokens, must have at least 1");
  return absl::OkStatus();
}

absl::Status ResolveMaxTokens(const pb::GenerateRequest& r, const ServedModel& model,
                              int64_t prompt_tokens, int32_t& max_tokens) {
  if (prompt_tokens >= model.max_model_len) {
    return InvalidArgument(
        "prompt has {} tokens, limit is {} (max_model_len={} less one new token); shorten the "
        "prompt",
        prompt_tokens, model.max_model_len - 1, model.max_model_len);
  }
  const int32_t room = model.max_model_len - static_cast<int32_t>(prompt_tokens);
  if (!r.stopping().has_max_tokens()) {
    max_tokens = model.default_max_tokens > 0 ? std::min(model.default_max_tokens, room) : room;
    return absl::OkStatus();
  }
  max_tokens = r.stopping().max_tokens();
  if (max_tokens < 1)
    return InvalidArgument("stopping.max_tokens={} must be at least 1", max_tokens);
  if (max_tokens > room) {
    return InvalidArgument(
        "prompt has {} tokens, limit is {} (max_model_len={} - max_tokens={}); shorten the prompt "
        "or "
        "lower stopping.max_tokens",
        prompt_tokens, int64_t{model.max_model_len} - max_tokens, model.max_model_len, max_tokens);
  }
  return absl::OkStatus();
}

absl::Status ReadSampling(const pb::GenerateRequest& r, const ServedModel& model,
                          SamplingParams& params) {
  SamplingParams::VisitFields(params, [&](std::string_view name, auto& member, auto, auto) {
    for (const Part& part : SamplingParts(r)) {
      const FieldDescriptor* const field =
          part.message->GetDescriptor()->FindFieldByName(std::string(name));
      if (field != nullptr) ReadField(*part.message, field, member);
    }
  });
  const pb::SamplingParams& s = r.sampling();
  if (s.has_seed()) params.seed = s.seed();
  for (const auto& [id, bias] : s.logit_bias()) params.logit_bias.emplace_back(id, bias);
  std::sort(params.logit_bias.begin(), params.logit_bias.end());  // the map's order is random
  RETURN_IF_ERROR(ReadIds(s.allowed_token_ids(), model, "sampling.allowed_token_ids",
                          params.allowed_token_ids));
  for (int i = 0; i < s.bad_words_size(); ++i) {
    RETURN_IF_ERROR(ReadIds(s.bad_words(i).ids(), model,
                            fmt::format("sampling.bad_words[{}].ids", i),
                            params.bad_words.emplace_back()));
  }
  return absl::OkStatus();
}

absl::Status ReadStopping(const pb::StoppingOptions& s, const ServedModel& model,
                          StopConditions& stop, Generation& generation) {
  if (!s.ignore_eos()) stop.eos_token_ids = model.eos_token_ids;
  RETURN_IF_ERROR(
      ReadIds(s.stop_token_ids(), model, "stopping.stop_token_ids", stop.stop_token_ids));
  generation.stop_strings.assign(s.stop().begin(), s.stop().end());
  generation.include_stop_in_output = s.include_stop_in_output();
  return Annotate(ValidateStopStrings(generation.stop_strings), "stopping");
}

absl::Status ReadTimeouts(const pb::SchedulingOptions& s, const Arrival& arrival, Request& request,
                          Generation& generation) {
  request.arrival = arrival.time;
  request.deadline = arrival.deadline;
  if (s.has_total_timeout_ms()) {
    RETURN_IF_ERROR(CheckMs("scheduling.total_timeout_ms", s.total_timeout_ms()));
    request.deadline =
        std::min(request.deadline, arrival.time + std::chrono::milliseconds(s.total_timeout_ms()));
  }
  if (s.has_queue_timeout_ms()) {
    RETURN_IF_ERROR(CheckMs("scheduling.queue_timeout_ms", s.queue_timeout_ms()));
    generation.queue_deadline = arrival.time + std::chrono::milliseconds(s.queue_timeout_ms());
  }
  return absl::OkStatus();
}

absl::Status ReadRequestId(const std::string& id, const Arrival& arrival, Generation& generation) {
  if (id.empty()) {
    generation.client_id = fmt::format("quire-{:016x}", arrival.id ^ ServerNonce());
    return absl::OkStatus();
  }
  if (id.size() > kMaxRequestIdBytes) {
    return InvalidArgument("request_id has {} bytes, limit is {}", id.size(), kMaxRequestIdBytes);
  }
  for (const char c : id) {
    if (c <= ' ' || c > '~') {
      return InvalidArgument(
          "request_id has a byte 0x{:02x}, must be printable ASCII without spaces",
          static_cast<uint8_t>(c));
    }
  }
  generation.client_id = id;
  return absl::OkStatus();
}

// What a unary answer may take at most, by what was asked for; text is counted at 8 bytes a token.
absl::Status CheckUnarySize(const Request& request, const Generation& g, const ServedModel& model) {
  const int64_t k = request.sampling.num_logprobs;
  const int64_t per_token =
      (g.want_text ? 8 : 0) + (g.want_token_ids ? 5 : 0) + (k >= 0 ? 16 + 14 * k : 0);
  const int64_t bytes = per_token * request.stop.max_tokens * request.sampling.n;
  if (bytes <= static_cast<int64_t>(model.max_message_bytes)) return absl::OkStatus();
  return InvalidArgument(
      "the answer may take {} bytes (max_tokens={}, n={}, num_logprobs={}), limit is {} "
      "(max_message_bytes); use Generate, which streams it",
      bytes, request.stop.max_tokens, request.sampling.n, k, model.max_message_bytes);
}

double Ms(int64_t us) { return static_cast<double>(us) / 1e3; }
uint32_t U32(int64_t v) { return static_cast<uint32_t>(v); }

template <typename Message>
void Append(Message& out, const Delta& delta) {
  out.mutable_text()->append(delta.text);
  for (const TokenId id : delta.token_ids) out.add_token_ids(U32(id));
  for (const Sampled& sampled : delta.logprobs) {
    pb::Logprobs& logprobs = *out.add_logprobs();
    logprobs.set_token_id(U32(sampled.token));
    logprobs.set_logprob(sampled.logprob);
    for (const TokenLogprob& entry : sampled.top) {
      pb::TokenLogprob& top = *logprobs.add_top();
      top.set_token_id(U32(entry.token));
      top.set_logprob(entry.logprob);
    }
  }
}

}  // namespace

absl::StatusOr<Generation> FromProto(const pb::GenerateRequest& r, const ServedModel& model,
                                     const Arrival& arrival, bool unary) {
  if (!r.model().empty() && r.model() != model.name) {
    return Error(absl::StatusCode::kNotFound, "model={} is not served here; {} is", r.model(),
                 model.name);
  }
  Generation g;
  auto request = std::make_shared<Request>();
  request->id = arrival.id;
  RETURN_IF_ERROR(ReadRequestId(r.request_id(), arrival, g));
  RETURN_IF_ERROR(ReadTimeouts(r.scheduling(), arrival, *request, g));
  RETURN_IF_ERROR(ReadSampling(r, model, request->sampling));
  RETURN_IF_ERROR(ReadStopping(r.stopping(), model, request->stop, g));
  g.want_text = !r.response().has_text() || r.response().text();
  g.want_token_ids = r.response().token_ids();
  g.skip_special_tokens =
      !r.response().has_skip_special_tokens() || r.response().skip_special_tokens();
  request->cache_salt = r.kv().cache_salt();
  request->bypass_prefix_cache = r.kv().bypass_prefix_cache();
  ASSIGN_OR_RETURN(const pb::RetentionPolicy retention,
                   ReadRetention(r.kv(), arrival.kv_retention));
  // The cheap checks first: a bad parameter is told before a long prompt is tokenized.
  request->stop.max_tokens =
      r.stopping().has_max_tokens() ? r.stopping().max_tokens() : std::max(1, model.max_model_len);
  RETURN_IF_ERROR(WithPath(Validate(request->sampling, request->stop, model.vocab_size), r));
  RETURN_IF_ERROR(ReadPrompt(r, model, request->prompt));
  RETURN_IF_ERROR(ResolveMaxTokens(r, model, static_cast<int64_t>(request->prompt.size()),
                                   request->stop.max_tokens));
  RETURN_IF_ERROR(WithPath(Validate(request->sampling, request->stop, model.vocab_size), r));
  if (unary) RETURN_IF_ERROR(CheckUnarySize(*request, g, model));
  request->retention = ToPolicy(retention, static_cast<int32_t>(request->prompt.size()));
  request->client_id = g.client_id;
  request->seed = request->sampling.seed.has_value() ? *request->sampling.seed : DrawSeed();
  g.request = std::move(request);
  return g;
}

std::vector<std::string> SamplingFieldsWithoutTwin() {
  std::vector<std::string> missing;
  const pb::GenerateRequest r;
  SamplingParams params;
  SamplingParams::VisitFields(params, [&](std::string_view name, auto& member, auto, auto) {
    int twins = 0;
    for (const Part& part : SamplingParts(r)) {
      const FieldDescriptor* const field =
          part.message->GetDescriptor()->FindFieldByName(std::string(name));
      twins += field != nullptr && HasType<std::decay_t<decltype(member)>>(field);
    }
    if (twins != 1) missing.emplace_back(name);
  });
  return missing;
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

absl::Status PinFromProto(const pb::PinPrefixRequest& r, const ServedModel& model,
                          PinRequest& pin) {
  if (r.has_ttl_ms()) {
    RETURN_IF_ERROR(CheckMs("ttl_ms", r.ttl_ms()));
    pin.ttl_ms = r.ttl_ms();
  }
  switch (r.prefix_case()) {
    case pb::PinPrefixRequest::kText: {
      const bool add_special = !r.has_add_special_tokens() || r.add_special_tokens();
      ASSIGN_OR_RETURN(pin.tokens, model.tokenizer->Encode(r.text(), add_special));
      break;
    }
    case pb::PinPrefixRequest::kTokenIds:
      RETURN_IF_ERROR(ReadIds(r.token_ids().ids(), model, "token_ids.ids", pin.tokens));
      break;
    case pb::PinPrefixRequest::PREFIX_NOT_SET:
      return InvalidArgument("prefix is not set; give text or token_ids");
  }
  if (pin.tokens.size() > static_cast<size_t>(model.max_model_len)) {
    return InvalidArgument("prefix has {} tokens, limit is {} (max_model_len)", pin.tokens.size(),
                           model.max_model_len);
  }
  pin.cache_salt = r.cache_salt();
  return absl::OkStatus();
}

absl::Status DetokenizeFromProto(const pb::DetokenizeRequest& r, const ServedModel& model,
                                 pb::DetokenizeResponse& response) {
  std::vector<TokenId> ids;
  RETURN_IF_ERROR(ReadIds(r.token_ids(), model, "token_ids", ids));
  const bool skip_special = !r.has_skip_special_tokens() || r.skip_special_tokens();
  response.set_text(model.tokenizer->Decode(ids, skip_special));
  return absl::OkStatus();
}

void ToProto(const RequestStats& stats, pb::Accepted& out) {
  out.set_prompt_tokens(U32(stats.prompt_tokens));
  out.set_cached_tokens(U32(stats.cached_tokens));
  out.set_queue_ms(Ms(stats.queue_us));
}

void ToProto(const RequestStats& stats, pb::Usage& usage, pb::Timings& timings) {
  usage.set_prompt_tokens(U32(stats.prompt_tokens));
  usage.set_completion_tokens(U32(stats.completion_tokens));
  usage.set_cached_tokens(U32(stats.cached_tokens));
  usage.set_preemptions(U32(stats.preemptions));
  timings.set_queue_ms(Ms(stats.queue_us));
  timings.set_prefill_ms(Ms(stats.prefill_us));
  timings.set_first_token_ms(Ms(stats.queue_us + stats.prefill_us));
  timings.set_decode_ms(Ms(stats.decode_us));
}

void AppendTo(pb::Delta& out, const Delta& delta) { Append(out, delta); }
void AppendTo(pb::Output& out, const Delta& delta) { Append(out, delta); }

void ToProto(const Delta& delta, pb::Delta& out) {
  out.set_output_index(U32(delta.branch));
  AppendTo(out, delta);
}

void ToProto(const BranchEnd& end, pb::Finished& out) {
  out.set_output_index(U32(end.branch));
  out.set_completion_tokens(U32(end.completion_tokens));
  if (!end.stop_string.empty()) out.set_stop_string(end.stop_string);
  if (end.stop_token >= 0) out.set_stop_token_id(U32(end.stop_token));
  switch (end.reason) {
    case FinishReason::kStop:
      out.set_reason(pb::FINISH_REASON_STOP);
      break;
    case FinishReason::kLength:
      out.set_reason(pb::FINISH_REASON_LENGTH);
      break;
    case FinishReason::kCancelled:
      out.set_reason(pb::FINISH_REASON_CANCELLED);
      break;
    case FinishReason::kDeadline:
      out.set_reason(pb::FINISH_REASON_DEADLINE);
      break;
    case FinishReason::kNone:
    case FinishReason::kError:
      break;
  }
}

}  // namespace quire
