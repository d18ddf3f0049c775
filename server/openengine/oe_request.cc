// server/openengine/oe_request.cc -- see oe_request.h. The keys of `extra`: oe_extra.cc.
#include "server/openengine/oe_request.h"

#include <limits>

#include "server/openengine/oe_extra.h"

namespace quire {
namespace {

namespace oe = ::openengine::v1;

absl::Status ToInt32(uint32_t value, const char* field, int32_t& out) {
  if (value > static_cast<uint32_t>(std::numeric_limits<int32_t>::max())) {
    return InvalidArgument("{}={} exceeds {}", field, value, std::numeric_limits<int32_t>::max());
  }
  out = static_cast<int32_t>(value);
  return absl::OkStatus();
}

absl::Status ReadSampling(const oe::SamplingParams& in, pb::SamplingParams& out) {
  if (in.has_temperature()) out.set_temperature(static_cast<float>(in.temperature()));
  if (in.has_top_p()) out.set_top_p(static_cast<float>(in.top_p()));
  if (in.has_top_k()) out.set_top_k(in.top_k());
  if (in.has_min_p()) out.set_min_p(static_cast<float>(in.min_p()));
  if (in.has_frequency_penalty()) {
    out.set_frequency_penalty(static_cast<float>(in.frequency_penalty()));
  }
  if (in.has_presence_penalty()) {
    out.set_presence_penalty(static_cast<float>(in.presence_penalty()));
  }
  if (in.has_repetition_penalty()) {
    out.set_repetition_penalty(static_cast<float>(in.repetition_penalty()));
  }
  if (in.has_seed()) out.set_seed(in.seed());
  if (in.has_num_sequences()) {
    int32_t n = 0;
    RETURN_IF_ERROR(ToInt32(in.num_sequences(), "sampling.num_sequences", n));
    out.set_n(n);
  }
  return absl::OkStatus();
}

absl::Status ReadStopping(const oe::StoppingOptions& in, pb::StoppingOptions& out) {
  int32_t number = 0;
  if (in.has_max_tokens()) {
    RETURN_IF_ERROR(ToInt32(in.max_tokens(), "stopping.max_tokens", number));
    out.set_max_tokens(number);
  }
  if (in.has_min_tokens()) {
    RETURN_IF_ERROR(ToInt32(in.min_tokens(), "stopping.min_tokens", number));
    out.set_min_tokens(number);
  }
  for (int i = 0; i < in.conditions_size(); ++i) {
    const oe::StopCondition& condition = in.conditions(i);
    if (condition.has_stop_text()) {
      out.add_stop(condition.stop_text());
    } else if (condition.has_stop_token_id()) {
      out.add_stop_token_ids(condition.stop_token_id());
    } else {
      return InvalidArgument("stopping.conditions[{}] is not set; give stop_text or stop_token_id",
                             i);
    }
  }
  if (in.has_ignore_eos()) out.set_ignore_eos(in.ignore_eos());
  if (in.has_include_stop_in_output()) out.set_include_stop_in_output(in.include_stop_in_output());
  return absl::OkStatus();
}

// How many of the best to tell; -1: only the token itself, and those of `ids`.
absl::StatusOr<int32_t> TopN(const oe::CandidateTokenSelection& in, const char* field) {
  if (in.has_all()) {
    return InvalidArgument("{}.all can't be had; give top_n in [0, 20]", field);
  }
  int32_t top_n = 0;
  RETURN_IF_ERROR(ToInt32(in.top_n(), field, top_n));
  return top_n;
}

absl::Status ReadResponse(const oe::ResponseOptions& in, pb::GenerateRequest& out,
                          OeOptions& options) {
  out.mutable_response()->set_text(true);
  out.mutable_response()->set_token_ids(true);
  options.output_logprobs = in.return_output_logprobs();
  if (in.return_output_logprobs()) {
    ASSIGN_OR_RETURN(const int32_t top_n,
                     TopN(in.output_candidates(), "response.output_candidates"));
    out.mutable_response()->set_num_logprobs(top_n);
    if (in.output_candidates().has_token_ids()) {
      *out.mutable_sampling()->mutable_logprob_token_ids() =
          in.output_candidates().token_ids().ids();
    }
  } else if (in.has_output_candidates()) {
    return InvalidArgument("response.output_candidates needs return_output_logprobs=true");
  }
  if (in.return_prompt_logprobs()) {
    if (in.prompt_candidates().has_token_ids()) {
      return InvalidArgument("response.prompt_candidates.token_ids can't be had; give top_n");
    }
    ASSIGN_OR_RETURN(const int32_t top_n,
                     TopN(in.prompt_candidates(), "response.prompt_candidates"));
    out.mutable_response()->set_prompt_logprobs(top_n);
    options.prompt_logprob_start = in.prompt_logprob_start();
  } else if (in.has_prompt_candidates() || in.has_prompt_logprob_start()) {
    return InvalidArgument(
        "response.{} needs return_prompt_logprobs=true",
        in.has_prompt_candidates() ? "prompt_candidates" : "prompt_logprob_start");
  }
  return absl::OkStatus();
}

absl::Status ReadGuided(const oe::GuidedDecoding& in, pb::GenerateRequest& r) {
  if (!in.backend().empty() && in.backend() != "auto" && in.backend() != "xgrammar") {
    return InvalidArgument("guided.backend={} is not here; xgrammar is, or leave it out",
                           in.backend().substr(0, 64));
  }
  switch (in.guide_case()) {
    case oe::GuidedDecoding::kJsonSchema:
      r.mutable_guided()->set_json_schema(in.json_schema());
      break;
    case oe::GuidedDecoding::kRegex:
      r.mutable_guided()->set_regex(in.regex());
      break;
    case oe::GuidedDecoding::kEbnfGrammar:
      r.mutable_guided()->set_grammar(in.ebnf_grammar());
      break;
    case oe::GuidedDecoding::kStructuralTag:
      r.mutable_guided()->set_structural_tag(in.structural_tag());
      break;
    case oe::GuidedDecoding::kChoice:
      *r.mutable_guided()->mutable_choice()->mutable_texts() = in.choice().choices();
      break;
    case oe::GuidedDecoding::kJsonObject:
      r.mutable_guided()->set_json_object(true);
      break;
    case oe::GuidedDecoding::GUIDE_NOT_SET:
      return InvalidArgument("guided.guide is not set; name one or leave guided out");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<pb::GenerateRequest> FromOpenEngine(const oe::GenerateRequest& request,
                                                   OeOptions& options) {
  pb::GenerateRequest r;
  r.set_request_id(request.request_id());
  r.set_model(request.model());
  r.set_lora_name(request.lora_name());
  if (!request.media().empty()) {
    return InvalidArgument("media has {} items; the model takes text only", request.media_size());
  }
  switch (request.input_case()) {
    case oe::GenerateRequest::kPrompt:
      r.set_text(request.prompt());
      break;
    case oe::GenerateRequest::kTokenIds:
      *r.mutable_token_ids()->mutable_ids() = request.token_ids().ids();
      break;
    case oe::GenerateRequest::INPUT_NOT_SET:
      return InvalidArgument("input is not set; give prompt or token_ids");
  }
  RETURN_IF_ERROR(ReadSampling(request.sampling(), *r.mutable_sampling()));
  RETURN_IF_ERROR(ReadStopping(request.stopping(), *r.mutable_stopping()));
  RETURN_IF_ERROR(ReadResponse(request.response(), r, options));
  if (request.kv().has_session()) {
    return InvalidArgument("kv.session can't be used: caches are not transferred here");
  }
  r.mutable_kv()->set_cache_salt(request.kv().cache_salt());
  r.mutable_kv()->set_bypass_prefix_cache(request.kv().bypass_prefix_cache());
  if (request.has_guided()) RETURN_IF_ERROR(ReadGuided(request.guided(), r));
  RETURN_IF_ERROR(ReadExtra(request.extra(), r));
  return r;
}

const FieldNames& OeFieldNames() {
  static const auto* const names =
      new FieldNames{{"sampling.n", "sampling.num_sequences"},
                     {"n", "num_sequences"},
                     {"beam_width", "extra.beam_width"},
                     {"num_return_sequences", "num_sequences"},
                     {"num_logprobs", "response.output_candidates.top_n"},
                     {"stop_token_ids", "stopping.conditions.stop_token_id"},
                     {"sampling.logprob_token_ids", "response.output_candidates.token_ids.ids"},
                     {"stopping.stop_token_ids", "stopping.conditions.stop_token_id"},
                     {"stopping.stop", "stopping.conditions.stop_text"},
                     {"response.num_logprobs", "response.output_candidates.top_n"},
                     {"response.prompt_logprobs", "response.prompt_candidates.top_n"},
                     {"guided.grammar", "guided.ebnf_grammar"},
                     {"guided.choice.texts", "guided.choice.choices"},
                     {"beam.diversity_rate", "extra.beam_search_diversity_rate"},
                     {"beam.num_return_sequences", "sampling.num_sequences"},
                     {"beam.", "extra."},
                     {"scheduling.priority", "priority"}};
  return *names;
}

}  // namespace quire
