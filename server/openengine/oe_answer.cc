// server/openengine/oe_answer.cc -- see oe_answer.h.
#include "server/openengine/oe_answer.h"

#include <algorithm>

namespace quire {
namespace {

namespace oe = ::openengine::v1;

uint32_t U32(int64_t v) { return static_cast<uint32_t>(v); }

void FillUsage(const RequestStats& stats, oe::Usage& usage) {
  usage.set_prompt_tokens(U32(stats.prompt_tokens));
  usage.set_completion_tokens(U32(stats.completion_tokens));
  usage.set_total_tokens(U32(int64_t{stats.prompt_tokens} + stats.completion_tokens));
  usage.set_cached_prompt_tokens(U32(stats.cached_tokens));
}

}  // namespace

OeAnswer::OeAnswer(const Generation& generation, OeOptions options, const ServedModel& model)
    : request_id_(generation.client_id),
      options_(options),
      model_(model),
      request_(generation.request),
      num_outputs_(generation.num_outputs()) {}

// Valid UTF-8 in any case: a token may be part of a character.
std::string OeAnswer::TextOf(TokenId id) const {
  return model_.tokenizer->Decode(std::vector<TokenId>{id}, /*skip_special_tokens=*/false);
}

void OeAnswer::FillToken(const Sampled& sampled, oe::TokenInfo& out) const {
  out.set_token_id(U32(sampled.token));
  out.set_token(TextOf(sampled.token));
  out.set_logprob(sampled.logprob);
  if (sampled.rank > 0) out.set_rank(U32(sampled.rank));
  const auto add = [&](const TokenLogprob& entry, int64_t rank) {
    oe::LogProb& candidate = *out.add_candidates();
    candidate.set_token_id(U32(entry.token));
    candidate.set_logprob(entry.logprob);
    candidate.set_token(TextOf(entry.token));
    if (rank > 0) candidate.set_rank(U32(rank));
  };
  for (size_t i = 0; i < sampled.top.size(); ++i) {
    add(sampled.top[i], static_cast<int64_t>(i) + 1);
  }
  for (const TokenLogprob& entry : sampled.asked) add(entry, 0);
}

std::optional<OeAnswer::Event> OeAnswer::Prompt(const std::vector<PromptLogprob>& logprobs) {
  Event event;
  oe::PromptOutput& prompt = *event.mutable_prompt();
  // Nothing comes before the first token, so it has no logprob.
  if (!std::exchange(told_first_, true) && options_.prompt_logprob_start == 0) {
    oe::TokenInfo& first = *prompt.add_tokens();
    first.set_token_id(U32(request_->prompt.front()));
    first.set_token(TextOf(request_->prompt.front()));
  }
  for (const PromptLogprob& entry : logprobs) {
    if (U32(entry.position) >= options_.prompt_logprob_start) {
      FillToken(entry.logprob, *prompt.add_tokens());
    }
  }
  if (prompt.tokens().empty()) return std::nullopt;
  event.set_request_id(request_id_);
  return event;
}

OeAnswer::Event OeAnswer::Tokens(const Delta& delta) const {
  Event event;
  event.set_request_id(request_id_);
  oe::TokenOutput& output = *event.mutable_token();
  output.set_output_index(U32(delta.branch));
  output.set_text(delta.text);
  if (options_.output_logprobs) {
    for (const Sampled& sampled : delta.logprobs) FillToken(sampled, *output.add_tokens());
  } else {
    for (const TokenId id : delta.token_ids) {
      oe::TokenInfo& token = *output.add_tokens();
      token.set_token_id(U32(id));
      token.set_token(TextOf(id));
    }
  }
  return event;
}

std::optional<OeAnswer::Event> OeAnswer::End(const BranchEnd& end, const RequestStats* last) {
  if (end.reason == FinishReason::kDeadline) return std::nullopt;
  ++num_ended_;
  Event event;
  event.set_request_id(request_id_);
  oe::GenerationFinished& finished = *event.mutable_finished();
  finished.set_output_index(U32(end.branch));
  finished.set_reason(end.reason == FinishReason::kLength      ? oe::FINISH_REASON_LENGTH
                      : end.reason == FinishReason::kCancelled ? oe::FINISH_REASON_CANCELLED
                                                               : oe::FINISH_REASON_STOP);
  if (!end.stop_string.empty()) finished.mutable_stop_match()->set_stop_text(end.stop_string);
  if (end.stop_token >= 0) {
    const std::vector<TokenId>& eos = model_.eos_token_ids;
    const std::vector<TokenId>& asked = request_->stop.stop_token_ids;
    const bool is_asked = std::find(asked.begin(), asked.end(), end.stop_token) != asked.end();
    const bool is_eos = std::find(eos.begin(), eos.end(), end.stop_token) != eos.end();
    if (is_eos && !is_asked) {
      finished.mutable_stop_match()->set_eos_token_id(U32(end.stop_token));
    } else {
      finished.mutable_stop_match()->set_stop_token_id(U32(end.stop_token));
    }
  }
  if (last != nullptr) FillUsage(*last, *event.mutable_usage());
  return event;
}

OeAnswer::Event OeAnswer::Error(const absl::Status& status, const RequestStats& stats) const {
  Event event;
  event.set_request_id(request_id_);
  oe::EngineError& error = *event.mutable_error();
  error.set_code(OeErrorCode(status));
  error.set_message(Message(status));
  error.set_retryable(absl::IsResourceExhausted(status) || absl::IsUnavailable(status));
  FillUsage(stats, *event.mutable_usage());
  return event;
}

oe::ErrorCode OeErrorCode(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kFailedPrecondition:  // what it asks for can't be had together
      return oe::ERROR_CODE_INVALID_ARGUMENT;
    case absl::StatusCode::kUnimplemented:
      return oe::ERROR_CODE_UNSUPPORTED_FEATURE;
    case absl::StatusCode::kNotFound:
      return oe::ERROR_CODE_MODEL_NOT_FOUND;
    case absl::StatusCode::kResourceExhausted:
      return oe::ERROR_CODE_OVERLOADED;
    case absl::StatusCode::kUnavailable:
      return oe::ERROR_CODE_DRAINING;
    case absl::StatusCode::kCancelled:
    case absl::StatusCode::kDeadlineExceeded:
      return oe::ERROR_CODE_CANCELLED;
    default:
      return oe::ERROR_CODE_INTERNAL;
  }
}

}  // namespace quire
