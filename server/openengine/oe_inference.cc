// server/openengine/oe_inference.cc -- see oe_inference.h.
#include "server/openengine/oe_inference.h"

#include <absl/strings/numbers.h>

#include <memory>
#include <utility>

#include "server/grpc/call.h"
#include "server/grpc/queued_stream.h"
#include "server/openengine/oe_answer.h"
#include "server/openengine/oe_request.h"

namespace quire {
namespace {

namespace oe = ::openengine::v1;

class GenerateReactor final : public GenerationStream<oe::GenerateResponse> {
 public:
  explicit GenerateReactor(const Serving& serving)
      : GenerationStream(serving.door.edge()), model_(serving.door.model()) {}

  // In the handler, before the edge knows of it.
  OeOptions& options() { return options_; }

  // Edge thread.
  void OnAccepted(const RequestStats&) override {}
  void OnPromptLogprobs(const std::vector<PromptLogprob>& logprobs) override {
    Send(answer_->Prompt(logprobs));
  }
  void OnDelta(Delta delta) override { Enqueue(answer_->Tokens(delta)); }
  void OnBranchEnd(const BranchEnd& end, const RequestStats* last) override {
    Send(answer_->End(end, last));
  }
  void OnClosed(const absl::Status& status, bool accepted, const RequestStats& stats) override {
    if (!accepted || status.ok()) {
      return CloseWith(ToGrpc(WithNames(status, OeFieldNames())));
    }
    if (absl::IsResourceExhausted(status)) DropQueue();  // what the reader didn't take
    // An abort was told by the outputs' ends.
    if (!(absl::IsCancelled(status) && answer_->all_ended())) {
      Enqueue(answer_->Error(status, stats));
    }
    CloseWith(grpc::Status::OK);
  }

 private:
  absl::Status Begin(const Generation& generation) override {
    answer_ = std::make_unique<OeAnswer>(generation, options_, model_);
    return absl::OkStatus();
  }
  void Send(std::optional<oe::GenerateResponse> event) {
    if (event.has_value()) Enqueue(*std::move(event));
  }

  const ServedModel& model_;
  OeOptions options_;
  std::unique_ptr<OeAnswer> answer_;  // once the request was let in
};

// What routers of this contract send beside the message.
absl::Status ReadRouting(const grpc::CallbackServerContext& context, pb::GenerateRequest& r) {
  ASSIGN_OR_RETURN(const std::string rank, Metadata(context, "openengine-target-dp-rank"));
  if (!rank.empty() && rank != "0") {
    return InvalidArgument("openengine-target-dp-rank={} is not here; this engine is rank 0", rank);
  }
  ASSIGN_OR_RETURN(const std::string priority, Metadata(context, "openengine-priority"));
  if (priority.empty() || r.scheduling().has_priority()) return absl::OkStatus();
  int32_t level = 0;  // higher is sooner, as here
  if (!absl::SimpleAtoi(priority, &level)) {
    return InvalidArgument("openengine-priority={} is not a whole number", priority.substr(0, 64));
  }
  r.mutable_scheduling()->set_priority(level);
  return absl::OkStatus();
}

absl::Status Start(const Serving& serving, const grpc::CallbackServerContext& context,
                   const oe::GenerateRequest& request, GenerateReactor* reactor) {
  ASSIGN_OR_RETURN(pb::GenerateRequest ours, FromOpenEngine(request, reactor->options()));
  RETURN_IF_ERROR(ReadExtras(context, ours));
  RETURN_IF_ERROR(ReadRouting(context, ours));
  return WithNames(StartGeneration(serving.door, context, ours, /*unary=*/false, reactor),
                   OeFieldNames());
}

}  // namespace

grpc::ServerWriteReactor<oe::GenerateResponse>* OeInference::Generate(
    grpc::CallbackServerContext* context, const oe::GenerateRequest* request) {
  auto* const reactor = new GenerateReactor(serving_);
  if (const absl::Status s = Start(serving_, *context, *request, reactor); !s.ok()) {
    reactor->Refuse(s);
  }
  return reactor;
}

}  // namespace quire
