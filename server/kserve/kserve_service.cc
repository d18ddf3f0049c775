// server/kserve/kserve_service.cc -- the inferring calls; see kserve_service.h.
//
// A stream carries many requests at a time: each has a sink of its own, all write to the stream's
// one queue. Sinks live on the edge thread, from being let in to their OnClosed or to the end of
// the stream.
#include "server/kserve/kserve_service.h"

#include <memory>
#include <unordered_map>
#include <utility>

#include "server/grpc/call.h"
#include "server/grpc/queued_stream.h"
#include "server/kserve/infer_answer.h"
#include "server/kserve/infer_request.h"
#include "server/kserve/sampling_json.h"

namespace quire {
namespace {

absl::StatusOr<KserveRequest> Translate(const Serving& serving,
                                        const grpc::CallbackServerContext& context,
                                        const inference::ModelInferRequest& request) {
  ASSIGN_OR_RETURN(KserveRequest translated, FromKserve(request, serving.door.model()));
  RETURN_IF_ERROR(ReadExtras(context, translated.request));
  return translated;
}

class UnaryInfer final : public grpc::ServerUnaryReactor, public StreamSink {
 public:
  UnaryInfer(Edge& edge, inference::ModelInferResponse* response)
      : edge_(edge), response_(response) {
    edge_.CallOpened();
  }

  // In the handler, before the edge knows of it.
  void Expect(KserveAnswer answer) { answer_.emplace(std::move(answer)); }
  absl::Status Named(const Generation& generation, Clock::time_point deadline) {
    answer_->Begin(generation);
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

  // Edge thread.
  void OnAccepted(const RequestStats&) override {}
  void OnPromptLogprobs(const std::vector<PromptLogprob>&) override {}
  void OnDelta(Delta delta) override { answer_->Add(delta); }
  void OnBranchEnd(const BranchEnd& end, const RequestStats*) override { answer_->End(end); }
  void OnClosed(const absl::Status& status, bool, const RequestStats&) override {
    if (status.ok()) *response_ = *answer_->Finish();
    Close(ToGrpc(WithNames(status, KserveFieldNames())));
  }
  size_t buffered_bytes() const override { return 0; }  // bounded when the request was checked

 private:
  void Close(const grpc::Status& status) {
    if (!std::exchange(finished_, true)) Finish(status);
  }

  Edge& edge_;
  inference::ModelInferResponse* const response_;  // gRPC's, valid until OnDone
  std::optional<KserveAnswer> answer_;
  Clock::time_point deadline_ = Clock::time_point::max();
  bool finished_ = false;
};

class StreamInfer;

// One request of a stream.
class InferSink final : public StreamSink {
 public:
  InferSink(StreamInfer& stream, KserveAnswer answer)
      : stream_(stream), answer_(std::move(answer)) {}

  absl::Status Named(const Generation& generation, Clock::time_point) {
    answer_.Begin(generation);
    return absl::OkStatus();
  }

  void OnAccepted(const RequestStats&) override {}
  void OnPromptLogprobs(const std::vector<PromptLogprob>&) override {}
  void OnDelta(Delta delta) override { Send(answer_.Add(delta)); }
  void OnBranchEnd(const BranchEnd& end, const RequestStats*) override { answer_.End(end); }
  void OnClosed(const absl::Status& status, bool accepted, const RequestStats& stats) override;
  size_t buffered_bytes() const override;

 private:
  void Send(std::optional<inference::ModelInferResponse> response);

  StreamInfer& stream_;
  KserveAnswer answer_;
};

class StreamInfer final
    : public QueuedStream<grpc::ServerBidiReactor<inference::ModelInferRequest,
                                                  inference::ModelStreamInferResponse>,
                          inference::ModelStreamInferResponse> {
 public:
  StreamInfer(const Serving& serving, const grpc::CallbackServerContext& context)
      : QueuedStream(serving.door.edge()), serving_(serving), context_(context) {
    StartRead(&request_);
  }

  // gRPC threads; one read at a time.
  void OnReadDone(bool ok) override {
    if (!ok) return edge().Post([this] { HalfClosed(); });
    Take(request_);
    StartRead(&request_);
  }
  void OnCancel() override {
    const bool is_past = IsPast(DeadlineOf(context_));
    edge().Post([this, is_past] {
      for (const auto& entry : sinks_) edge().ClientGone(entry.first, is_past);
    });
    QueuedStream::OnCancel();
  }

  // Edge thread.
  void Send(inference::ModelStreamInferResponse response) { Enqueue(std::move(response)); }
  void Fail(const std::string& id, const absl::Status& status) {
    inference::ModelStreamInferResponse response;
    response.set_error_message(Message(WithNames(status, KserveFieldNames())));
    response.mutable_infer_response()->set_id(id);
    Enqueue(std::move(response));
  }
  void Closed(InferSink* sink) {
    sinks_.erase(sink);
    CloseWhenDone();
  }
  // Nobody reads: all requests of the stream end.
  void Overflow(const absl::Status& status) {
    DropQueue();
    CloseWith(ToGrpc(status));
    for (const auto& entry : sinks_) edge().ClientGone(entry.first, /*deadline_passed=*/false);
  }
  size_t bytes() const { return queued_bytes(); }

 private:
  void Take(const inference::ModelInferRequest& request) {
    const std::string id = request.id();
    absl::StatusOr<KserveRequest> translated = Translate(serving_, context_, request);
    if (!translated.ok()) return Refuse(id, translated.status());
    absl::StatusOr<Arrival> arrival = ArrivalOf(serving_.door, context_);
    if (!arrival.ok()) return Refuse(id, arrival.status());
    const bool unary = !translated->options.stream;
    auto sink = std::make_shared<InferSink>(
        *this, KserveAnswer(std::move(translated->options), std::move(translated->text),
                            serving_.door.model()));
    absl::StatusOr<Admitted> admitted =
        serving_.door.Admit(translated->request, *std::move(arrival), unary);
    if (!admitted.ok()) return Refuse(id, admitted.status());
    sink->Named(admitted->generation, {}).IgnoreError();
    auto shared = std::make_shared<Admitted>(*std::move(admitted));
    edge().Post([this, sink, shared] {
      if (gone()) return;  // its place in the queue is given back
      InferSink* const key = sink.get();
      sinks_.emplace(key, sink);
      serving_.door.Open(std::move(*shared), key);
    });
  }
  void Refuse(const std::string& id, const absl::Status& status) {
    edge().Post([this, id, status] { Fail(id, status); });
  }
  void HalfClosed() {
    half_closed_ = true;
    CloseWhenDone();
  }
  void CloseWhenDone() {
    if (half_closed_ && sinks_.empty()) CloseWith(grpc::Status::OK);
  }

  const Serving& serving_;
  const grpc::CallbackServerContext& context_;  // gRPC's, valid until OnDone
  inference::ModelInferRequest request_;
  std::unordered_map<InferSink*, std::shared_ptr<InferSink>> sinks_;
  bool half_closed_ = false;
};

void InferSink::Send(std::optional<inference::ModelInferResponse> response) {
  if (!response.has_value()) return;
  inference::ModelStreamInferResponse message;
  *message.mutable_infer_response() = *std::move(response);
  stream_.Send(std::move(message));
}

size_t InferSink::buffered_bytes() const { return stream_.bytes(); }

void InferSink::OnClosed(const absl::Status& status, bool accepted, const RequestStats&) {
  if (status.ok()) {
    Send(answer_.Finish());
  } else if (accepted && absl::IsResourceExhausted(status)) {
    stream_.Overflow(status);
  } else {
    stream_.Fail(answer_.options().id, status);
  }
  stream_.Closed(this);  // deletes this
}

}  // namespace

KserveService::Unary* KserveService::ModelInfer(Context* context,
                                                const inference::ModelInferRequest* request,
                                                inference::ModelInferResponse* response) {
  auto* const reactor = new UnaryInfer(serving_.door.edge(), response);
  const auto start = [&]() -> absl::Status {
    ASSIGN_OR_RETURN(KserveRequest translated, Translate(serving_, *context, *request));
    if (translated.options.stream) {
      return InvalidArgument("stream=true needs ModelStreamInfer; leave it out for ModelInfer");
    }
    reactor->Expect(KserveAnswer(std::move(translated.options), std::move(translated.text),
                                 serving_.door.model()));
    return WithNames(
        StartGeneration(serving_.door, *context, translated.request, /*unary=*/true, reactor),
        KserveFieldNames());
  };
  if (const absl::Status status = start(); !status.ok()) reactor->Refuse(status);
  return reactor;
}

grpc::ServerBidiReactor<inference::ModelInferRequest, inference::ModelStreamInferResponse>*
KserveService::ModelStreamInfer(Context* context) {
  return new StreamInfer(serving_, *context);
}

}  // namespace quire
