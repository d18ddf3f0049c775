// server/convert_answers.cc -- events and results to the wire; see convert.h.
#include "server/convert.h"

namespace quire {
namespace {

double Ms(int64_t us) { return static_cast<double>(us) / 1e3; }
uint32_t U32(int64_t v) { return static_cast<uint32_t>(v); }

void SetTokenLogprob(const TokenLogprob& entry, pb::TokenLogprob& out) {
  out.set_token_id(U32(entry.token));
  out.set_logprob(entry.logprob);
}

void SetLogprobs(const Sampled& sampled, pb::Logprobs& out) {
  out.set_token_id(U32(sampled.token));
  out.set_logprob(sampled.logprob);
  for (const TokenLogprob& entry : sampled.top) SetTokenLogprob(entry, *out.add_top());
  for (const TokenLogprob& entry : sampled.asked) SetTokenLogprob(entry, *out.add_asked());
  out.set_rank(U32(sampled.rank));
}

template <typename Message>
void Append(Message& out, const Delta& delta) {
  out.mutable_text()->append(delta.text);
  for (const TokenId id : delta.token_ids) out.add_token_ids(U32(id));
  for (const Sampled& sampled : delta.logprobs) SetLogprobs(sampled, *out.add_logprobs());
}

}  // namespace

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
  usage.set_draft_tokens(U32(stats.draft_tokens));
  usage.set_accepted_draft_tokens(U32(stats.accepted_draft_tokens));
  timings.set_queue_ms(Ms(stats.queue_us));
  timings.set_prefill_ms(Ms(stats.prefill_us));
  timings.set_first_token_ms(Ms(stats.queue_us + stats.prefill_us));
  timings.set_decode_ms(Ms(stats.decode_us));
}

void ToProto(const std::vector<PromptLogprob>& logprobs, pb::PromptLogprobs& out) {
  if (!logprobs.empty()) out.set_first_position(U32(logprobs[0].position));
  for (const PromptLogprob& entry : logprobs) SetLogprobs(entry.logprob, *out.add_logprobs());
}

void AppendTo(pb::GenerateResult& out, const std::vector<PromptLogprob>& logprobs) {
  for (const PromptLogprob& entry : logprobs) {
    SetLogprobs(entry.logprob, *out.add_prompt_logprobs());
  }
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
  if (end.score) out.set_score(*end.score);
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
