// server/openengine/oe_answer.h -- one request's output as events of openengine.v1: text and token
// ids in each. Edge thread, or any in tests: no clock, no locks, no gRPC.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "openengine/v1/openengine.pb.h"
#include "server/edge/generation.h"
#include "server/openengine/oe_request.h"
#include "server/served_model.h"

namespace quire {

class OeAnswer {
 public:
  // model: outlives it.
  OeAnswer(const Generation& generation, OeOptions options, const ServedModel& model);

  using Event = openengine::v1::GenerateResponse;
  // Nothing if all of it lies before prompt_logprob_start.
  std::optional<Event> Prompt(const std::vector<PromptLogprob>& logprobs);
  Event Tokens(const Delta& delta) const;
  // A deadline's end is told by Error alone.
  std::optional<Event> End(const BranchEnd& end, const RequestStats* last);
  Event Error(const absl::Status& status, const RequestStats& stats) const;
  bool all_ended() const { return num_ended_ == num_outputs_; }

 private:
  void FillToken(const Sampled& sampled, openengine::v1::TokenInfo& out) const;
  std::string TextOf(TokenId id) const;

  const std::string request_id_;
  const OeOptions options_;
  const ServedModel& model_;
  const std::shared_ptr<const Request> request_;
  const int32_t num_outputs_;
  bool told_first_ = false;
  int32_t num_ended_ = 0;
};

openengine::v1::ErrorCode OeErrorCode(const absl::Status& status);

}  // namespace quire
