// server/vllm/vllm_answer.cc -- see vllm_answer.h.
#include "server/vllm/vllm_answer.h"

#include <algorithm>
#include <utility>

namespace quire {
namespace {

namespace ve = ::vllm::grpc::engine;

uint32_t U32(int64_t v) { return static_cast<uint32_t>(v); }

void AddTop(const Sampled& sampled, ve::TopLogProbs& out) {
  for (const TokenLogprob& entry : sampled.top) {
    out.add_values(entry.logprob);
    out.add_token_ids(U32(entry.token));
  }
}

void AddTokens(const Delta& delta, google::protobuf::RepeatedField<uint32_t>& ids) {
  for (const TokenId id : delta.token_ids) ids.Add(U32(id));
}

void AddLogprobs(const Delta& delta, bool want_top, ve::OutputLogProbs& out) {
  for (const Sampled& sampled : delta.logprobs) {
    out.add_token_logprobs(sampled.logprob);
    out.add_token_ids(U32(sampled.token));
    if (want_top) AddTop(sampled, *out.add_top_logprobs());
  }
}

}  // namespace

VllmAnswer::VllmAnswer(const Generation& generation, bool stream,
                       const std::vector<TokenId>& eos_token_ids)
    : stream_(stream),
      want_top_(generation.request->sampling.num_logprobs > 0),
      want_input_(generation.request->prompt_logprobs >= 0),
      want_input_top_(generation.request->prompt_logprobs > 0),
      eos_token_ids_(eos_token_ids),
      request_(generation.request),
      outputs_(static_cast<size_t>(generation.num_outputs())) {
  stats_.prompt_tokens = static_cast<int32_t>(request_->prompt.size());
  if (!want_input_) return;
  // Nothing comes before the first token.
  input_.add_token_logprobs();
  input_.add_token_ids(U32(request_->prompt.front()));
  if (want_input_top_) input_.add_top_logprobs();
}

int64_t VllmAnswer::input_logprob_bytes() const {
  if (!want_input_) return 0;
  const int64_t per_token = 12 + (want_input_top_ ? 8 + 10 * request_->prompt_logprobs : 0);
  return per_token * static_cast<int64_t>(request_->prompt.size());
}

void VllmAnswer::AddPromptLogprobs(const std::vector<PromptLogprob>& logprobs) {
  for (const PromptLogprob& entry : logprobs) {
    input_.add_token_logprobs()->set_value(entry.logprob.logprob);
    input_.add_token_ids(U32(entry.logprob.token));
    if (want_input_top_) AddTop(entry.logprob, *input_.add_top_logprobs());
  }
}

VllmAnswer::Messages VllmAnswer::Add(const Delta& delta) {
  Output& output = outputs_[static_cast<size_t>(delta.branch)];
  if (stream_) output.so_far.Clear();
  AddTokens(delta, *output.so_far.mutable_output_ids());
  if (!delta.logprobs.empty()) {
    AddLogprobs(delta, want_top_, *output.so_far.mutable_output_logprobs());
  }
  if (!stream_) return {};
  Messages messages(1);
  ve::GenerateStreamChunk& chunk = *messages[0].mutable_chunk();
  *chunk.mutable_token_ids() = output.so_far.output_ids();
  if (output.so_far.has_output_logprobs()) {
    *chunk.mutable_output_logprobs() = output.so_far.output_logprobs();
  }
  chunk.set_prompt_tokens(U32(stats_.prompt_tokens));
  chunk.set_cached_tokens(U32(stats_.cached_tokens));
  chunk.set_completion_tokens(U32(chunk.token_ids_size()));
  chunk.set_index(U32(delta.branch));
  if (want_input_ && !std::exchange(output.has_sent, true)) {
    *chunk.mutable_input_logprobs() = input_;
  }
  return messages;
}

void VllmAnswer::FillEnd(const BranchEnd& end, ve::GenerateComplete& out) const {
  out.set_index(U32(end.branch));
  out.set_prompt_tokens(U32(stats_.prompt_tokens));
  out.set_cached_tokens(U32(stats_.cached_tokens));
  out.set_completion_tokens(U32(out.output_ids_size()));
  out.set_finish_reason(end.reason == FinishReason::kLength      ? "length"
                        : end.reason == FinishReason::kCancelled ? "abort"
                                                                 : "stop");
  if (!end.stop_string.empty()) out.set_matched_stop_str(end.stop_string);
  // The model's own end is no match, unless the client asked for that token.
  const std::vector<TokenId>& asked = request_->stop.stop_token_ids;
  const bool is_asked = std::find(asked.begin(), asked.end(), end.stop_token) != asked.end();
  const bool is_eos = std::find(eos_token_ids_.begin(), eos_token_ids_.end(), end.stop_token) !=
                      eos_token_ids_.end();
  if (end.stop_token >= 0 && (is_asked || !is_eos)) out.set_matched_token_id(U32(end.stop_token));
}

VllmAnswer::Messages VllmAnswer::End(const BranchEnd& end, const RequestStats* last) {
  if (last != nullptr) stats_ = *last;
  if (end.reason == FinishReason::kDeadline) return {};
  ++num_ended_;
  num_aborted_ += end.reason == FinishReason::kCancelled;
  Output& output = outputs_[static_cast<size_t>(end.branch)];
  FillEnd(end, output.so_far);
  if (!stream_) return {};
  if (last != nullptr) {
    output.so_far.set_spec_draft_tokens(U32(last->draft_tokens));
    output.so_far.set_spec_accepted_tokens(U32(last->accepted_draft_tokens));
  }
  Messages messages(1);
  *messages[0].mutable_complete() = std::move(output.so_far);
  return messages;
}

VllmAnswer::Messages VllmAnswer::TakeCompletes(const RequestStats& stats) {
  Messages messages(stream_ ? 0 : outputs_.size());
  for (size_t i = 0; i < messages.size(); ++i) {
    ve::GenerateComplete& complete = *messages[i].mutable_complete();
    complete = std::move(outputs_[i].so_far);
    if (want_input_) *complete.mutable_input_logprobs() = input_;
  }
  if (!messages.empty()) {
    messages.back().mutable_complete()->set_spec_draft_tokens(U32(stats.draft_tokens));
    messages.back().mutable_complete()->set_spec_accepted_tokens(U32(stats.accepted_draft_tokens));
  }
  return messages;
}

}  // namespace quire
