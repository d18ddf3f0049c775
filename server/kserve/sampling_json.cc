// server/kserve/sampling_json.cc -- see sampling_json.h.
#include "server/kserve/sampling_json.h"

#include <absl/strings/numbers.h>

#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>

#include "base/json.h"

namespace quire {
namespace {

constexpr int32_t kDefaultMaxTokens = 16;
constexpr JsonLimits kLimits{.max_bytes = 1 << 20, .max_depth = 64};

absl::Status Bad(std::string_view key, std::string_view wanted) {
  return InvalidArgument("sampling_parameters.{} is not {}", std::string(key.substr(0, 64)),
                         wanted);
}

std::optional<double> NumberOf(const Json& value) {
  if (value.is_number()) return value.as_double();
  double number = 0;
  if (const auto text = value.as_string();
      text && absl::SimpleAtod(absl::string_view(text->data(), text->size()), &number)) {
    return number;
  }
  return std::nullopt;
}

std::optional<int64_t> IntOf(const Json& value) {
  if (value.is_number()) return value.as_int();
  int64_t number = 0;
  if (const auto text = value.as_string();
      text && absl::SimpleAtoi(absl::string_view(text->data(), text->size()), &number)) {
    return number;
  }
  return std::nullopt;
}

std::optional<bool> BoolOf(const Json& value) {
  if (value.is_bool()) return value.as_bool();
  const auto text = value.as_string();
  if (text == "true" || text == "True" || text == "1") return true;
  if (text == "false" || text == "False" || text == "0") return false;
  return std::nullopt;
}

absl::Status ReadInt32(std::string_view key, const Json& value, int32_t& out) {
  const std::optional<int64_t> number = IntOf(value);
  if (!number || *number < std::numeric_limits<int32_t>::min() ||
      *number > std::numeric_limits<int32_t>::max()) {
    return Bad(key, "a whole number of 32 bits");
  }
  out = static_cast<int32_t>(*number);
  return absl::OkStatus();
}

absl::Status ReadIds(std::string_view key, const Json& value,
                     google::protobuf::RepeatedField<uint32_t>& out) {
  if (!value.is_array()) return Bad(key, "a list of token ids");
  for (size_t i = 0; i < value.size(); ++i) {
    const std::optional<int64_t> id = IntOf(value.at(i));
    if (!id || *id < 0 || *id > std::numeric_limits<uint32_t>::max()) {
      return Bad(key, "a list of token ids");
    }
    out.Add(static_cast<uint32_t>(*id));
  }
  return absl::OkStatus();
}

absl::Status ReadStop(const Json& value, pb::StoppingOptions& out) {
  if (const auto text = value.as_string()) {
    out.add_stop(std::string(*text));
    return absl::OkStatus();
  }
  if (!value.is_array()) return Bad("stop", "a string or a list of strings");
  for (size_t i = 0; i < value.size(); ++i) {
    const auto text = value.at(i).as_string();
    if (!text) return Bad("stop", "a string or a list of strings");
    out.add_stop(std::string(*text));
  }
  return absl::OkStatus();
}

absl::Status ReadBias(const Json& value, pb::SamplingParams& out) {
  if (!value.is_object()) return Bad("logit_bias", "an object of token ids and numbers");
  for (const std::string& key : value.keys()) {
    int32_t id = 0;
    const std::optional<double> bias = NumberOf(value[key]);
    if (!absl::SimpleAtoi(key, &id) || !bias) {
      return Bad("logit_bias", "an object of token ids and numbers");
    }
    (*out.mutable_logit_bias())[id] = static_cast<float>(*bias);
  }
  return absl::OkStatus();
}

using Set32 = void (*)(pb::GenerateRequest&, int32_t);
using SetFloat = void (*)(pb::GenerateRequest&, float);
using SetBool = void (*)(pb::GenerateRequest&, bool);

struct IntKey {
  std::string_view key;
  Set32 set;
};
struct FloatKey {
  std::string_view key;
  SetFloat set;
};
struct BoolKey {
  std::string_view key;
  SetBool set;
};

constexpr IntKey kIntKeys[] = {
    {"top_k", [](auto& r, int32_t v) { r.mutable_sampling()->set_top_k(v); }},
    {"n", [](auto& r, int32_t v) { r.mutable_sampling()->set_n(v); }},
    {"best_of", [](auto& r, int32_t v) { r.mutable_sampling()->set_best_of(v); }},
    {"max_tokens", [](auto& r, int32_t v) { r.mutable_stopping()->set_max_tokens(v); }},
    {"min_tokens", [](auto& r, int32_t v) { r.mutable_stopping()->set_min_tokens(v); }},
    {"truncate_prompt_tokens", [](auto& r, int32_t v) { r.set_truncate_prompt_tokens(v); }},
    {"logprobs", [](auto& r, int32_t v) { r.mutable_response()->set_num_logprobs(v); }},
};
constexpr FloatKey kFloatKeys[] = {
    {"temperature", [](auto& r, float v) { r.mutable_sampling()->set_temperature(v); }},
    {"top_p", [](auto& r, float v) { r.mutable_sampling()->set_top_p(v); }},
    {"min_p", [](auto& r, float v) { r.mutable_sampling()->set_min_p(v); }},
    {"presence_penalty", [](auto& r, float v) { r.mutable_sampling()->set_presence_penalty(v); }},
    {"frequency_penalty", [](auto& r, float v) { r.mutable_sampling()->set_frequency_penalty(v); }},
    {"repetition_penalty",
     [](auto& r, float v) { r.mutable_sampling()->set_repetition_penalty(v); }},
};
constexpr BoolKey kBoolKeys[] = {
    {"ignore_eos", [](auto& r, bool v) { r.mutable_stopping()->set_ignore_eos(v); }},
    {"include_stop_str_in_output",
     [](auto& r, bool v) { r.mutable_stopping()->set_include_stop_in_output(v); }},
    {"skip_special_tokens",
     [](auto& r, bool v) { r.mutable_response()->set_skip_special_tokens(v); }},
    // Says how texts of tokens are joined by tokenizers that aren't served here.
    {"spaces_between_special_tokens", [](auto&, bool) {}},
};

absl::Status ReadKey(std::string_view key, const Json& value, pb::GenerateRequest& r) {
  for (const IntKey& row : kIntKeys) {
    if (row.key != key) continue;
    int32_t number = 0;
    RETURN_IF_ERROR(ReadInt32(key, value, number));
    row.set(r, number);
    return absl::OkStatus();
  }
  for (const FloatKey& row : kFloatKeys) {
    if (row.key != key) continue;
    const std::optional<double> number = NumberOf(value);
    if (!number) return Bad(key, "a number");
    row.set(r, static_cast<float>(*number));
    return absl::OkStatus();
  }
  for (const BoolKey& row : kBoolKeys) {
    if (row.key != key) continue;
    const std::optional<bool> flag = BoolOf(value);
    if (!flag) return Bad(key, "true or false");
    row.set(r, *flag);
    return absl::OkStatus();
  }
  if (key == "stop") return ReadStop(value, *r.mutable_stopping());
  if (key == "stop_token_ids") {
    return ReadIds(key, value, *r.mutable_stopping()->mutable_stop_token_ids());
  }
  if (key == "allowed_token_ids") {
    return ReadIds(key, value, *r.mutable_sampling()->mutable_allowed_token_ids());
  }
  if (key == "logit_bias") return ReadBias(value, *r.mutable_sampling());
  if (key == "seed") {
    const std::optional<int64_t> seed = IntOf(value);
    if (!seed) return Bad(key, "a whole number");
    if (*seed != -1) r.mutable_sampling()->set_seed(static_cast<uint64_t>(*seed));
    return absl::OkStatus();
  }
  if (key == "lora_name") {
    const auto name = value.as_string();
    if (!name) return Bad(key, "a string");
    r.set_lora_name(std::string(*name));
    return absl::OkStatus();
  }
  return InvalidArgument("sampling_parameters.{} is not known or not supported; leave it out",
                         std::string(key.substr(0, 64)));
}

}  // namespace

absl::Status ReadSamplingJson(const std::string& json, pb::GenerateRequest& request) {
  const absl::StatusOr<Json> parsed = Json::Parse(json, kLimits);
  if (!parsed.ok()) return Annotate(parsed.status(), "sampling_parameters");
  if (!parsed->is_object()) return InvalidArgument("sampling_parameters is not a JSON object");
  for (const std::string& key : parsed->keys()) {
    const Json value = (*parsed)[key];
    if (value.is_null()) continue;  // the default
    RETURN_IF_ERROR(ReadKey(key, value, request));
  }
  if (!parsed->Has("max_tokens")) {
    request.mutable_stopping()->set_max_tokens(kDefaultMaxTokens);
    // The default gives way, not the request.
    if (request.stopping().min_tokens() > kDefaultMaxTokens) {
      request.mutable_stopping()->set_max_tokens(request.stopping().min_tokens());
    }
  }
  return absl::OkStatus();
}

const FieldNames& KserveFieldNames() {
  static const auto* const names = new FieldNames{
      {"sampling.", "sampling_parameters."},
      {"stopping.include_stop_in_output", "sampling_parameters.include_stop_str_in_output"},
      {"stopping.", "sampling_parameters."},
      {"response.num_logprobs", "sampling_parameters.logprobs"},
      {"num_logprobs", "logprobs"},
      {"scheduling.queue_timeout_ms", "parameter timeout/1000"},
      {"scheduling.priority", "parameter priority (negated)"},
      {"truncate_prompt_tokens", "sampling_parameters.truncate_prompt_tokens"},
      {"lora_name", "sampling_parameters.lora_name"}};
  return *names;
}

}  // namespace quire
