// server/grpc/generation_service.cc -- the reactors of quire.v1.Generation; see queued_stream.h.
#include "server/grpc/generation_service.h"

#include <utility>

#include "server/grpc/call.h"
#include "server/grpc/queued_stream.h"
#include "server/grpc/status.h"

namespace quire {
namespace {

// Deltas that wait for a slow reader are joined up to this size.
constexpr size_t kMaxJoinedBytes = 16 << 10;

class StreamReactor final : public GenerationStream<pb::GenerateEvent> {
 public:
  using GenerationStream::GenerationStream;

  // Edge thread.
  void OnAccepted(const RequestStats& stats) override {
    pb::GenerateEvent event;
    ToProto(stats, *event.mutable_accepted());
    Send(std::move(event));
  }

  void OnPromptLogprobs(const std::vector<PromptLogprob>& logprobs) override {
    pb::GenerateEvent event;
    ToProto(logprobs, *event.mutable_prompt_logprobs());
    Send(std::move(event));
  }

  void OnDelta(Delta delta) override {
    if (Join(delta)) return;
    pb::GenerateEvent event;
    ToProto(delta, *event.mutable_delta());
    Send(std::move(event));
  }

  void OnBranchEnd(const BranchEnd& end, const RequestStats* last) override {
    pb::GenerateEvent event;
    ToProto(end, *event.mutable_finished());
    if (last != nullptr) ToProto(*last, *event.mutable_usage(), *event.mutable_timings());
    Send(std::move(event));
  }

  void OnClosed(const absl::Status& status, bool accepted, const RequestStats& stats) override {
    if (absl::IsResourceExhausted(status)) {
      DropQueue();
    } else if (accepted && !status.ok() && status.code() != absl::StatusCode::kCancelled &&
               status.code() != absl::StatusCode::kDeadlineExceeded) {
      pb::GenerateEvent event;
      event.mutable_failure()->set_code(static_cast<int32_t>(status.code()));
      event.mutable_failure()->set_message(Message(status));
      ToProto(stats, *event.mutable_usage(), *event.mutable_timings());
      Send(std::move(event));
    }
    CloseWith(ToGrpc(status));
  }

 private:
  absl::Status Begin(const Generation& generation) override {
    request_id_ = generation.client_id;
    return absl::OkStatus();
  }

  void Send(pb::GenerateEvent event) {
    event.set_request_id(request_id_);
    Enqueue(std::move(event));
  }

  // Appends to the last delta of the same output, if the reader has yet to get it.
  bool Join(Delta& delta) {
    pb::GenerateEvent* const last = LastQueued([&delta](const pb::GenerateEvent& event) {
      return event.has_delta() &&
             event.delta().output_index() == static_cast<uint32_t>(delta.branch);
    });
    if (last == nullptr) return false;
    const size_t before = last->ByteSizeLong();
    if (before > kMaxJoinedBytes) return false;
    AppendTo(*last->mutable_delta(), delta);
    AddQueuedBytes(last->ByteSizeLong() - before);
    return true;
  }

  std::string request_id_;
};

class UnaryReactor final : public grpc::ServerUnaryReactor, public StreamSink {
 public:
  UnaryReactor(Edge& edge, pb::GenerateResult* result) : edge_(edge), result_(result) {
    edge_.CallOpened();
  }

  // In the handler, before the edge knows of it.
  absl::Status Named(const Generation& generation, Clock::time_point deadline) {
    result_->set_request_id(generation.client_id);
    for (int32_t i = 0; i < generation.num_outputs(); ++i) {
      result_->add_outputs()->set_output_index(static_cast<uint32_t>(i));
    }
    deadline_ = deadline;
    return absl::OkStatus();
  }
  void Refuse(const absl::Status& status) {
    edge_.Post([this, status] { OnClosed(status, false, {}); });
  }

  // gRPC threads.
  void OnCancel() override {
    edge_.ClientGone(this, IsPast(deadline_));
    edge_.Post([this] { Close(grpc::Status::CANCELLED); });
  }
  void OnDone() override { DeleteOnEdge(edge_, this); }

  // Edge thread from here on.
  void OnAccepted(const RequestStats&) override {}
  void OnPromptLogprobs(const std::vector<PromptLogprob>& logprobs) override {
    AppendTo(*result_, logprobs);
  }
  void OnDelta(Delta delta) override { AppendTo(*result_->mutable_outputs(delta.branch), delta); }
  void OnBranchEnd(const BranchEnd& end, const RequestStats*) override {
    ToProto(end, *result_->mutable_outputs(end.branch)->mutable_finished());
  }
  void OnClosed(const absl::Status& status, bool, const RequestStats& stats) override {
    ToProto(stats, *result_->mutable_usage(), *result_->mutable_timings());
    Close(ToGrpc(status));
  }
  size_t buffered_bytes() const override { return 0; }  // bounded when the request was checked

 private:
  void Close(const grpc::Status& status) {
    if (!std::exchange(finished_, true)) Finish(status);
  }

  Edge& edge_;
  pb::GenerateResult* const result_;  // gRPC's, valid until OnDone
  Clock::time_point deadline_ = Clock::time_point::max();
  bool finished_ = false;
};

}  // namespace

GenerationService::GenerationService(FrontDoor& door)
    : door_(door), model_(door.model()), edge_(door.edge()) {}

grpc::ServerWriteReactor<pb::GenerateEvent>* GenerationService::Generate(
    grpc::CallbackServerContext* context, const pb::GenerateRequest* request) {
  auto* reactor = new StreamReactor(edge_);
  if (const absl::Status s = StartGeneration(door_, *context, *request, /*unary=*/false, reactor);
      !s.ok()) {
    reactor->Refuse(s);
  }
  return reactor;
}

grpc::ServerUnaryReactor* GenerationService::GenerateUnary(grpc::CallbackServerContext* context,
                                                           const pb::GenerateRequest* request,
                                                           pb::GenerateResult* result) {
  auto* reactor = new UnaryReactor(edge_, result);
  if (const absl::Status s = StartGeneration(door_, *context, *request, /*unary=*/true, reactor);
      !s.ok()) {
    reactor->Refuse(s);
  }
  return reactor;
}

grpc::ServerUnaryReactor* GenerationService::Tokenize(grpc::CallbackServerContext*,
                                                      const pb::TokenizeRequest* request,
                                                      pb::TokenizeResponse* response) {
  return AnswerNow(TokenizeFromProto(*request, model_, *response));
}

grpc::ServerUnaryReactor* GenerationService::Detokenize(grpc::CallbackServerContext*,
                                                        const pb::DetokenizeRequest* request,
                                                        pb::DetokenizeResponse* response) {
  return AnswerNow(DetokenizeFromProto(*request, model_, *response));
}

grpc::ServerUnaryReactor* GenerationService::Abort(grpc::CallbackServerContext* context,
                                                   const pb::AbortRequest* request,
                                                   pb::AbortResponse* response) {
  if (!request->all() && request->request_ids().empty()) {
    return AnswerNow(InvalidArgument("request_ids is empty; give ids, or all=true"));
  }
  std::vector<std::string> ids(request->request_ids().begin(), request->request_ids().end());
  return AbortRequests(door_, *context, std::move(ids), request->all(),
                       [response](std::vector<std::string> aborted) {
                         for (std::string& id : aborted) {
                           response->add_aborted_request_ids(std::move(id));
                         }
                       });
}

}  // namespace quire
