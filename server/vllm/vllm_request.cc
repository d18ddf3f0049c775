// server/vllm/vllm_request.cc -- see vllm_request.h.
#include "server/vllm/vllm_request.h"

#include <cstdint>
#include <limits>

namespace quire {
namespace {

namespace ve = ::vllm::grpc::engine;

absl::Status ToInt32(uint32_t value, const char* field, int32_t& out) {
  if (value > static_cast<uint32_t>(std::numeric_limits<int32_t>::max())) {
    return InvalidArgument("sampling_params.{}={} exceeds {}", field, value,
                           std::numeric_limits<int32_t>::max());
  }
  out = static_cast<int32_t>(value);
  return absl::OkStatus();
}

// Parts of a request that need what this server does not have.
absl::Status RefuseUnsupported(const ve::GenerateRequest& r) {
  const char* field = r.has_mm_inputs()                 ? "mm_inputs"
                      : !r.extra_mm_inputs().empty()    ? "extra_mm_inputs"
                      : r.has_media_refs()              ? "media_refs"
                      : r.has_kv_transfer_params()      ? "kv_transfer_params"
                      : r.has_kv_transfer_params_json() ? "kv_transfer_params_json"
                                                        : nullptr;
  if (field != nullptr) {
    return InvalidArgument(
        "{} can't be used here: text only, and no transfer of caches; leave it "
        "out",
        field);
  }
  if (r.has_data_parallel_rank() && r.data_parallel_rank() != 0) {
    return InvalidArgument("data_parallel_rank={} is not here; this engine is rank 0",
                           r.data_parallel_rank());
  }
  return absl::OkStatus();
}

absl::Status ReadSampling(const ve::SamplingParams& p, pb::SamplingParams& s) {
  if (p.has_temperature()) s.set_temperature(p.temperature());
  if (p.top_p() != 0) s.set_top_p(p.top_p());
  int32_t top_k = 0;
  RETURN_IF_ERROR(ToInt32(p.top_k(), "top_k", top_k));
  s.set_top_k(top_k);
  s.set_min_p(p.min_p());
  s.set_frequency_penalty(p.frequency_penalty());
  s.set_presence_penalty(p.presence_penalty());
  if (p.repetition_penalty() != 0) s.set_repetition_penalty(p.repetition_penalty());
  if (p.n() != 0) {
    int32_t n = 0;
    RETURN_IF_ERROR(ToInt32(p.n(), "n", n));
    s.set_n(n);
  }
  // vLLM takes -1 for "none".
  if (p.has_seed() && p.seed() != -1) s.set_seed(static_cast<uint64_t>(int64_t{p.seed()}));
  for (const auto& [id, bias] : p.logit_bias()) (*s.mutable_logit_bias())[id] = bias;
  return absl::OkStatus();
}

absl::Status ReadStopping(const ve::SamplingParams& p, pb::StoppingOptions& s) {
  if (p.has_max_tokens()) {
    int32_t max_tokens = 0;
    RETURN_IF_ERROR(ToInt32(p.max_tokens(), "max_tokens", max_tokens));
    s.set_max_tokens(max_tokens);
  }
  int32_t min_tokens = 0;
  RETURN_IF_ERROR(ToInt32(p.min_tokens(), "min_tokens", min_tokens));
  s.set_min_tokens(min_tokens);
  *s.mutable_stop() = p.stop();
  *s.mutable_stop_token_ids() = p.stop_token_ids();
  s.set_ignore_eos(p.ignore_eos());
  s.set_include_stop_in_output(p.include_stop_str_in_output());
  return absl::OkStatus();
}

// -1, which asks for the whole vocabulary, would be "none" in ours.
absl::Status ReadLogprobs(const ve::SamplingParams& p, pb::ResponseOptions& response) {
  const auto check = [](const char* field, int32_t value) {
    return value >= 0 ? absl::OkStatus()
                      : InvalidArgument(
                            "sampling_params.{}={} is outside [0, 20]; all of them "
                            "can't be had",
                            field, value);
  };
  if (p.has_logprobs()) {
    RETURN_IF_ERROR(check("logprobs", p.logprobs()));
    response.set_num_logprobs(p.logprobs());
  }
  if (p.has_prompt_logprobs()) {
    RETURN_IF_ERROR(check("prompt_logprobs", p.prompt_logprobs()));
    response.set_prompt_logprobs(p.prompt_logprobs());
  }
  return absl::OkStatus();
}

void ReadConstraint(const ve::SamplingParams& p, pb::GenerateRequest& r) {
  switch (p.constraint_case()) {
    case ve::SamplingParams::kJsonSchema:
      r.mutable_guided()->set_json_schema(p.json_schema());
      break;
    case ve::SamplingParams::kRegex:
      r.mutable_guided()->set_regex(p.regex());
      break;
    case ve::SamplingParams::kGrammar:
      r.mutable_guided()->set_grammar(p.grammar());
      break;
    case ve::SamplingParams::kStructuralTag:
      r.mutable_guided()->set_structural_tag(p.structural_tag());
      break;
    case ve::SamplingParams::kJsonObject:
      r.mutable_guided()->set_json_object(p.json_object());
      break;
    case ve::SamplingParams::kChoice:
      *r.mutable_guided()->mutable_choice()->mutable_texts() = p.choice().choices();
      break;
    case ve::SamplingParams::CONSTRAINT_NOT_SET:
      break;
  }
}

}  // namespace

absl::StatusOr<pb::GenerateRequest> FromVllm(const ve::GenerateRequest& request) {
  RETURN_IF_ERROR(RefuseUnsupported(request));
  pb::GenerateRequest r;
  r.set_request_id(request.request_id());
  switch (request.input_case()) {
    case ve::GenerateRequest::kTokenized:
      *r.mutable_token_ids()->mutable_ids() = request.tokenized().input_ids();
      break;
    case ve::GenerateRequest::kText:
      r.set_text(request.text());
      break;
    case ve::GenerateRequest::INPUT_NOT_SET:
      return InvalidArgument("input is not set; give tokenized or text");
  }
  const ve::SamplingParams& p = request.sampling_params();
  RETURN_IF_ERROR(ReadSampling(p, *r.mutable_sampling()));
  RETURN_IF_ERROR(ReadStopping(p, *r.mutable_stopping()));
  RETURN_IF_ERROR(ReadLogprobs(p, *r.mutable_response()));
  ReadConstraint(p, r);
  if (p.has_truncate_prompt_tokens()) r.set_truncate_prompt_tokens(p.truncate_prompt_tokens());
  r.mutable_response()->set_text(false);
  r.mutable_response()->set_token_ids(true);
  // What it means for text matters to stop strings only.
  r.mutable_response()->set_skip_special_tokens(p.skip_special_tokens());
  return r;
}

const FieldNames& VllmFieldNames() {
  static const auto* const names = new FieldNames{
      {"sampling.", "sampling_params."},
      {"stopping.include_stop_in_output", "sampling_params.include_stop_str_in_output"},
      {"stopping.", "sampling_params."},
      {"response.num_logprobs", "sampling_params.logprobs"},
      {"num_logprobs", "logprobs"},
      {"response.prompt_logprobs", "sampling_params.prompt_logprobs"},
      {"truncate_prompt_tokens", "sampling_params.truncate_prompt_tokens"},
      {"guided.choice.texts", "sampling_params.choice.choices"},
      {"guided.", "sampling_params."},
      {"guided", "sampling_params.constraint"},
      {"token_ids.ids", "tokenized.input_ids"}};
  return *names;
}

}  // namespace quire
