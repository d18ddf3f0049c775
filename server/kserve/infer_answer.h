// server/kserve/infer_answer.h -- one request's output as ModelInferResponses: one for each delta
// of a streamed request, one with everything of the others.
//
// Edge thread, or any in tests: no clock, no locks, no gRPC.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "inference/grpc_service.pb.h"
#include "server/edge/generation.h"
#include "server/kserve/infer_request.h"

namespace quire {

class KserveAnswer {
 public:
  // text: the prompt's. tokenizer: for what logprobs call a token; outlives it.
  KserveAnswer(KserveOptions options, std::string text, const ServedModel& model)
      : options_(std::move(options)), text_(std::move(text)), model_(model) {}

  const KserveOptions& options() const { return options_; }

  void Begin(const Generation& generation);
  // Of a streamed request: what is to be sent now.
  std::optional<inference::ModelInferResponse> Add(const Delta& delta);
  void End(const BranchEnd& end);
  // Once the request has ended well: all of it, or the end of a stream if there is something to
  // say.
  std::optional<inference::ModelInferResponse> Finish();

 private:
  struct Output {
    std::string text;
    std::string finish_reason = "None";  // as Python shows it
    std::string logprobs;                // of a JSON array, without brackets
    double cumulative_logprob = 0;
    uint32_t num_tokens = 0;
  };

  void Append(const Delta& delta, Output& out);
  inference::ModelInferResponse Respond(bool is_final) const;

  const KserveOptions options_;
  const std::string text_;
  const ServedModel& model_;
  uint32_t num_input_tokens_ = 0;
  std::vector<Output> outputs_;
  bool has_sent_ = false;
};

}  // namespace quire
