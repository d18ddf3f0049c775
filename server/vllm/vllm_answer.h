// server/vllm/vllm_answer.h -- one request's output as messages of vllm.grpc.engine.
//
// Streamed: a chunk for each delta, with its new tokens only, and per output one `complete`, which
// repeats the last delta (clients take the tokens from the chunks, the end from the complete).
// Unary in spirit, though a stream on the wire: only completes, one per output, with everything.
//
// Edge thread, or any in tests: no clock, no locks, no gRPC.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/status.h"
#include "server/edge/generation.h"
#include "vllm/grpc/engine/vllm_engine.pb.h"

namespace quire {

class VllmAnswer {
 public:
  VllmAnswer(const Generation& generation, bool stream, const std::vector<TokenId>& eos_token_ids);

  // Of the logprobs of the prompt, which are kept until the first chunk, about, in bytes.
  int64_t input_logprob_bytes() const;

  void Accepted(const RequestStats& stats) { stats_ = stats; }
  void AddPromptLogprobs(const std::vector<PromptLogprob>& logprobs);
  // What is to be sent now: at most one message.
  using Messages = std::vector<vllm::grpc::engine::GenerateResponse>;
  Messages Add(const Delta& delta);
  // Of a stream: the output's complete. A deadline's end is told by the status alone.
  Messages End(const BranchEnd& end, const RequestStats* last);
  // Of the others: all completes, once the request has ended well.
  Messages TakeCompletes(const RequestStats& stats);
  // Every output has had its `complete`, though the request was aborted.
  bool told_aborted() const { return num_aborted_ > 0 && num_ended_ == outputs_.size(); }

 private:
  struct Output {
    bool has_sent = false;                        // a chunk
    vllm::grpc::engine::GenerateComplete so_far;  // a stream's: the last delta
  };
  void FillEnd(const BranchEnd& end, vllm::grpc::engine::GenerateComplete& out) const;

  const bool stream_;
  const bool want_top_;
  const bool want_input_;
  const bool want_input_top_;
  const std::vector<TokenId> eos_token_ids_;  // that end this request
  const std::shared_ptr<const Request> request_;
  RequestStats stats_;
  vllm::grpc::engine::InputLogProbs input_;
  std::vector<Output> outputs_;
  size_t num_ended_ = 0;
  size_t num_aborted_ = 0;
};

}  // namespace quire
