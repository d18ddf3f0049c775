// server/convert.cc -- see convert.h.
#include "server/convert.h"

#include <absl/strings/numbers.h>

#include <algorithm>
#include <random>

#include "sampling/stop.h"
#include "server/access/key_rules.h"
#include "server/convert_decoding.h"
#include "server/convert_fields.h"
#include "server/convert_prompt.h"
#include "server/retention.h"

namespace quire {
namespace {

constexpr size_t kMaxNameBytes = 128;  // of request ids and tenants
constexpr int32_t kMaxPriority = 1000;
constexpr int32_t kMaxPromptLogprobs = 20;  // as num_logprobs

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
        "stopping.max_tokens={} exceeds {}: the prompt has {} tokens of max_model_len={}; lower it "
        "or shorten the prompt",
        max_tokens, room, prompt_tokens, model.max_model_len);
  }
  return absl::OkStatus();
}

absl::Status ReadSampling(const pb::GenerateRequest& r, const ServedModel& model,
                          SamplingParams& params) {
  ReadFields(r, params);
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
  return ReadIds(s.logprob_token_ids(), model, "sampling.logprob_token_ids",
                 params.logprob_token_ids);
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

absl::Status CheckName(std::string_view field, const std::string& name) {
  if (name.size() > kMaxNameBytes) {
    return InvalidArgument("{} has {} bytes, limit is {}", field, name.size(), kMaxNameBytes);
  }
  for (const char c : name) {
    if (c <= ' ' || c > '~') {
      return InvalidArgument("{} has a byte 0x{:02x}, must be printable ASCII without spaces",
                             field, static_cast<uint8_t>(c));
    }
  }
  return absl::OkStatus();
}

// What the policies read; fields win over metadata.
absl::Status ReadPolicyFields(const pb::SchedulingOptions& s, const Arrival& arrival,
                              Request& request) {
  const char* name = "scheduling.priority";
  if (s.has_priority()) {
    request.priority = s.priority();
  } else if (!arrival.priority.empty()) {
    name = "x-priority";
    if (!absl::SimpleAtoi(arrival.priority, &request.priority)) {
      return InvalidArgument("x-priority={} is not a whole number in [-{}, {}]",
                             arrival.priority.substr(0, kMaxNameBytes), kMaxPriority, kMaxPriority);
    }
  }
  if (request.priority < -kMaxPriority || request.priority > kMaxPriority) {
    return InvalidArgument("{}={} is outside [-{}, {}]; the default is 0", name, request.priority,
                           kMaxPriority, kMaxPriority);
  }
  const bool by_field = !s.tenant().empty();
  request.tenant = by_field ? s.tenant() : arrival.tenant;
  RETURN_IF_ERROR(CheckName(by_field ? "scheduling.tenant" : "x-tenant-id", request.tenant));
  if (arrival.account == nullptr) return absl::OkStatus();
  return ApplyKey(arrival.account->key(), by_field, s.has_priority() || !arrival.priority.empty(),
                  request);
}

absl::Status ReadPromptLogprobs(const pb::ResponseOptions& response, Request& request) {
  if (!response.has_prompt_logprobs()) return absl::OkStatus();
  request.prompt_logprobs = response.prompt_logprobs();
  if (request.prompt_logprobs >= -1 && request.prompt_logprobs <= kMaxPromptLogprobs) {
    return absl::OkStatus();
  }
  return InvalidArgument("response.prompt_logprobs={} is outside [-1, {}]; the default is -1",
                         request.prompt_logprobs, kMaxPromptLogprobs);
}

absl::Status ReadRequestId(const std::string& id, const Arrival& arrival, Generation& generation) {
  if (id.empty()) {
    generation.client_id = fmt::format("quire-{:016x}", arrival.id ^ ServerNonce());
    return absl::OkStatus();
  }
  RETURN_IF_ERROR(CheckName("request_id", id));
  generation.client_id = id;
  return absl::OkStatus();
}

int64_t LogprobBytes(int64_t num_logprobs, int64_t num_asked) {
  return num_logprobs < 0 && num_asked == 0
             ? 0
             : 19 + 14 * (std::max<int64_t>(0, num_logprobs) + num_asked);
}

// What an answer that is kept whole may take at most, by what was asked for: a unary one, and all
// candidates of one that is told at the end. Text is counted at 8 bytes a token.
absl::Status CheckAnswerSize(const Request& request, const Generation& g, const ServedModel& model,
                             bool unary) {
  const SamplingParams& sampling = request.sampling;
  const int64_t per_token =
      (g.want_text ? 8 : 0) + (g.want_token_ids ? 5 : 0) +
      (g.hide_logprobs ? 0
                       : LogprobBytes(sampling.num_logprobs,
                                      static_cast<int64_t>(sampling.logprob_token_ids.size())));
  const int64_t outputs = std::max(sampling.n, g.num_outputs());
  int64_t bytes = per_token * request.stop.max_tokens * outputs;
  if (unary) {
    bytes += static_cast<int64_t>(request.prompt.size()) * LogprobBytes(request.prompt_logprobs, 0);
  }
  if (bytes <= static_cast<int64_t>(model.max_message_bytes)) return absl::OkStatus();
  return InvalidArgument(
      "the answer may take {} bytes (max_tokens={}, n={}, num_logprobs={}), limit is {} "
      "(max_message_bytes); {}",
      bytes, request.stop.max_tokens, outputs, sampling.num_logprobs, model.max_message_bytes,
      g.told_at_end() ? "lower max_tokens: candidates are kept until all have ended"
                      : "have it streamed, or lower max_tokens");
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
  if (!r.lora_name().empty()) {
    return InvalidArgument("lora_name={} can't be used, no adapters are served; leave it out",
                           r.lora_name().substr(0, kMaxNameBytes));
  }
  RETURN_IF_ERROR(ReadTimeouts(r.scheduling(), arrival, *request, g));
  RETURN_IF_ERROR(ReadPolicyFields(r.scheduling(), arrival, *request));
  RETURN_IF_ERROR(ReadSampling(r, model, request->sampling));
  RETURN_IF_ERROR(ReadStopping(r.stopping(), model, request->stop, g));
  g.want_text = !r.response().has_text() || r.response().text();
  g.want_token_ids = r.response().token_ids();
  g.skip_special_tokens =
      !r.response().has_skip_special_tokens() || r.response().skip_special_tokens();
  request->cache_salt = r.kv().cache_salt();
  if (model.salt_by_tenant) SaltByTenant(*request);
  g.account = arrival.account;
  request->bypass_prefix_cache = r.kv().bypass_prefix_cache();
  ASSIGN_OR_RETURN(const pb::RetentionPolicy retention,
                   ReadRetention(r.kv(), arrival.kv_retention));
  // The cheap checks first: a bad parameter is told before a long prompt is tokenized.
  request->stop.max_tokens =
      r.stopping().has_max_tokens() ? r.stopping().max_tokens() : std::max(1, model.max_model_len);
  RETURN_IF_ERROR(WithPath(Validate(request->sampling, request->stop, model.vocab_size), r));
  RETURN_IF_ERROR(ReadPromptLogprobs(r.response(), *request));
  RETURN_IF_ERROR(CheckPromptFields(r));
  RETURN_IF_ERROR(ReadDecoding(r, model, *request, g));
  RETURN_IF_ERROR(ReadPrompt(r, model, request->prompt));
  RETURN_IF_ERROR(ResolveMaxTokens(r, model, static_cast<int64_t>(request->prompt.size()),
                                   request->stop.max_tokens));
  RETURN_IF_ERROR(WithPath(Validate(request->sampling, request->stop, model.vocab_size), r));
  g.request = request;
  if (unary || g.told_at_end()) RETURN_IF_ERROR(CheckAnswerSize(*request, g, model, unary));
  request->retention = ToPolicy(retention, static_cast<int32_t>(request->prompt.size()));
  request->client_id = g.client_id;
  request->seed = request->sampling.seed.has_value() ? *request->sampling.seed : DrawSeed();
  return g;
}

std::vector<std::string> SamplingFieldsWithoutTwin() {
  std::vector<std::string> missing;
  AddFieldsWithoutTwin<SamplingParams>(missing);
  AddFieldsWithoutTwin<BeamParams>(missing);
  AddFieldsWithoutTwin<SpeculationParams>(missing);
  return missing;
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

}  // namespace quire
