// server/grpc/generation_service.cc -- the reactors of quire.v1.Generation.
//
// Life of a reactor. Created in the handler, on a gRPC thread. All its reactions only post to the
// edge thread, where all of its state lives; OnDone, which gRPC calls last, posts its deletion, and
// posts run in order. So a reactor is never touched after it is gone and needs no lock.
//
//   events from the edge -> queue_ -> StartWrite, one in flight -> OnWriteDone -> next ... ->
//   Finish
#include "server/grpc/generation_service.h"

#include <algorithm>
#include <deque>
#include <optional>
#include <utility>

#include "server/grpc/caller.h"
#include "server/grpc/status.h"

namespace quire {
namespace {

// Deltas that wait for a slow reader are joined up to this size.
constexpr size_t kMaxJoinedBytes = 16 << 10;

Clock::time_point DeadlineOf(const grpc::CallbackServerContext& context) {
  const auto deadline = context.deadline();
  const auto now = std::chrono::system_clock::now();
  // No grpc-timeout is a time point beyond all; a century would overflow nanoseconds of now().
  if (deadline - now > std::chrono::hours(24 * 365)) return Clock::time_point::max();
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(deadline - now);
}

// A client's clock starts before ours, so its deadline passes a little before ours does. Only for
// the books: the client is gone either way.
bool IsPast(Clock::time_point deadline) {
  return deadline != Clock::time_point::max() &&
         Clock::now() + std::chrono::milliseconds(50) >= deadline;
}

// What proxies and clients of other protos send beside the message.
absl::StatusOr<std::string> Metadata(const grpc::CallbackServerContext& context, const char* key) {
  const auto [begin, end] = context.client_metadata().equal_range(key);
  if (begin == end) return std::string();
  if (std::next(begin) != end) return InvalidArgument("{} is given twice; give one", key);
  return std::string(begin->second.data(), begin->second.size());
}

// Says goodbye to the edge and deletes the reactor there.
template <typename Reactor>
void DeleteOnEdge(Edge& edge, Reactor* reactor) {
  edge.Post([&edge, reactor] {
    delete reactor;
    edge.CallClosed();
  });
}

class StreamReactor final : public grpc::ServerWriteReactor<pb::GenerateEvent>, public StreamSink {
 public:
  explicit StreamReactor(Edge& edge) : edge_(edge) { edge_.CallOpened(); }

  // In the handler, before the edge knows of it.
  void Named(const Generation& generation, Clock::time_point deadline) {
    request_id_ = generation.client_id;
    deadline_ = deadline;
  }
  void Refuse(const absl::Status& status) {
    edge_.Post([this, status] { OnClosed(status, false, {}); });
  }

  // gRPC threads.
  void OnWriteDone(bool ok) override {
    edge_.Post([this, ok] { WriteDone(ok); });
  }
  void OnCancel() override {
    edge_.ClientGone(this, IsPast(deadline_));
    edge_.Post([this] { GiveUp(); });
  }
  void OnDone() override { DeleteOnEdge(edge_, this); }

  // Edge thread from here on.
  void OnAccepted(const RequestStats& stats) override {
    pb::GenerateEvent event;
    ToProto(stats, *event.mutable_accepted());
    Enqueue(std::move(event));
  }

  void OnPromptLogprobs(const std::vector<PromptLogprob>& logprobs) override {
    pb::GenerateEvent event;
    ToProto(logprobs, *event.mutable_prompt_logprobs());
    Enqueue(std::move(event));
  }

  void OnDelta(Delta delta) override {
    if (Join(delta)) return;
    pb::GenerateEvent event;
    ToProto(delta, *event.mutable_delta());
    Enqueue(std::move(event));
  }

  void OnBranchEnd(const BranchEnd& end, const RequestStats* last) override {
    pb::GenerateEvent event;
    ToProto(end, *event.mutable_finished());
    if (last != nullptr) ToProto(*last, *event.mutable_usage(), *event.mutable_timings());
    Enqueue(std::move(event));
  }

  void OnClosed(const absl::Status& status, bool accepted, const RequestStats& stats) override {
    const bool overflow = status.code() == absl::StatusCode::kResourceExhausted;
    if (overflow) {  // what the reader didn't take is dropped
      queue_.clear();
      buffered_bytes_ = 0;
    } else if (accepted && !status.ok() && status.code() != absl::StatusCode::kCancelled &&
               status.code() != absl::StatusCode::kDeadlineExceeded) {
      pb::GenerateEvent event;
      event.mutable_failure()->set_code(static_cast<int32_t>(status.code()));
      event.mutable_failure()->set_message(Message(status));
      ToProto(stats, *event.mutable_usage(), *event.mutable_timings());
      Enqueue(std::move(event));
    }
    close_ = ToGrpc(status);
    Pump();
  }

  size_t buffered_bytes() const override { return buffered_bytes_; }

 private:
  void Enqueue(pb::GenerateEvent event) {
    if (gone_) return;
    event.set_request_id(request_id_);
    buffered_bytes_ += event.ByteSizeLong();
    queue_.push_back(std::move(event));
    Pump();
  }

  // Appends to the last delta of the same output, if the reader has yet to get it.
  bool Join(Delta& delta) {
    for (auto it = queue_.rbegin(); it != queue_.rend(); ++it) {
      if (!it->has_delta() || it->delta().output_index() != static_cast<uint32_t>(delta.branch)) {
        continue;
      }
      const size_t before = it->ByteSizeLong();
      if (before > kMaxJoinedBytes) return false;
      AppendTo(*it->mutable_delta(), delta);
      buffered_bytes_ += it->ByteSizeLong() - before;
      return true;
    }
    return false;
  }

  void Pump() {
    if (writing_ || finished_) return;
    if (!queue_.empty()) {
      in_flight_ = std::move(queue_.front());
      queue_.pop_front();
      writing_ = true;
      StartWrite(&in_flight_);
    } else if (close_.has_value()) {
      finished_ = true;
      Finish(*close_);
    }
  }

  void WriteDone(bool ok) {
    writing_ = false;
    const size_t written = in_flight_.ByteSizeLong();
    buffered_bytes_ -= std::min(buffered_bytes_, written);
    if (!ok) GiveUp();
    Pump();
  }

  // The client is gone: nothing more can be written, but gRPC still wants its Finish.
  void GiveUp() {
    gone_ = true;
    queue_.clear();
    buffered_bytes_ = 0;
    if (!close_.has_value()) close_ = grpc::Status::CANCELLED;
    Pump();
  }

  Edge& edge_;
  std::string request_id_;
  Clock::time_point deadline_ = Clock::time_point::max();
  std::deque<pb::GenerateEvent> queue_;
  pb::GenerateEvent in_flight_;  // alive until OnWriteDone
  size_t buffered_bytes_ = 0;    // queue_ and in_flight_
  bool writing_ = false;
  bool finished_ = false;
  bool gone_ = false;
  std::optional<grpc::Status> close_;  // set: finish once the queue is written
};

class UnaryReactor final : public grpc::ServerUnaryReactor, public StreamSink {
 public:
  UnaryReactor(Edge& edge, pb::GenerateResult* result) : edge_(edge), result_(result) {
    edge_.CallOpened();
  }

  // In the handler, before the edge knows of it.
  void Named(const Generation& generation, Clock::time_point deadline) {
    result_->set_request_id(generation.client_id);
    for (int32_t i = 0; i < generation.num_outputs(); ++i) {
      result_->add_outputs()->set_output_index(static_cast<uint32_t>(i));
    }
    deadline_ = deadline;
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

// For calls that are answered at once, or by one callback.
class SimpleReactor final : public grpc::ServerUnaryReactor {
 public:
  void OnDone() override { delete this; }
};

}  // namespace

GenerationService::GenerationService(FrontDoor& door)
    : door_(door), model_(door.model()), edge_(door.edge()) {}

template <typename Reactor>
absl::Status GenerationService::Start(const grpc::CallbackServerContext& context,
                                      const pb::GenerateRequest& request, bool unary,
                                      Reactor* reactor) {
  Arrival arrival{.deadline = DeadlineOf(context)};
  ASSIGN_OR_RETURN(arrival.kv_retention, Metadata(context, "x-kv-retention"));
  ASSIGN_OR_RETURN(arrival.priority, Metadata(context, "x-priority"));
  ASSIGN_OR_RETURN(arrival.tenant, Metadata(context, "x-tenant-id"));
  ASSIGN_OR_RETURN(arrival.account, door_.access().Identify(CredentialsOf(context)));
  const Clock::time_point deadline = arrival.deadline;
  ASSIGN_OR_RETURN(Admitted admitted, door_.Admit(request, std::move(arrival), unary));
  reactor->Named(admitted.generation, deadline);
  door_.Open(std::move(admitted), reactor);
  return absl::OkStatus();
}

grpc::ServerWriteReactor<pb::GenerateEvent>* GenerationService::Generate(
    grpc::CallbackServerContext* context, const pb::GenerateRequest* request) {
  auto* reactor = new StreamReactor(edge_);
  if (const absl::Status s = Start(*context, *request, /*unary=*/false, reactor); !s.ok()) {
    reactor->Refuse(s);
  }
  return reactor;
}

grpc::ServerUnaryReactor* GenerationService::GenerateUnary(grpc::CallbackServerContext* context,
                                                           const pb::GenerateRequest* request,
                                                           pb::GenerateResult* result) {
  auto* reactor = new UnaryReactor(edge_, result);
  if (const absl::Status s = Start(*context, *request, /*unary=*/true, reactor); !s.ok()) {
    reactor->Refuse(s);
  }
  return reactor;
}

grpc::ServerUnaryReactor* GenerationService::Tokenize(grpc::CallbackServerContext*,
                                                      const pb::TokenizeRequest* request,
                                                      pb::TokenizeResponse* response) {
  auto* reactor = new SimpleReactor;
  reactor->Finish(ToGrpc(TokenizeFromProto(*request, model_, *response)));
  return reactor;
}

grpc::ServerUnaryReactor* GenerationService::Detokenize(grpc::CallbackServerContext*,
                                                        const pb::DetokenizeRequest* request,
                                                        pb::DetokenizeResponse* response) {
  auto* reactor = new SimpleReactor;
  reactor->Finish(ToGrpc(DetokenizeFromProto(*request, model_, *response)));
  return reactor;
}

grpc::ServerUnaryReactor* GenerationService::Abort(grpc::CallbackServerContext* context,
                                                   const pb::AbortRequest* request,
                                                   pb::AbortResponse* response) {
  auto* reactor = new SimpleReactor;
  if (!request->all() && request->request_ids().empty()) {
    reactor->Finish(ToGrpc(InvalidArgument("request_ids is empty; give ids, or all=true")));
    return reactor;
  }
  const absl::StatusOr<std::shared_ptr<Account>> caller =
      door_.access().Identify(CredentialsOf(*context));
  if (!caller.ok()) {
    reactor->Finish(ToGrpc(caller.status()));
    return reactor;
  }
  std::vector<std::string> ids(request->request_ids().begin(), request->request_ids().end());
  edge_.Abort(
      std::move(ids), request->all(),
      [reactor, response](std::vector<std::string> aborted) {
        for (std::string& id : aborted) response->add_aborted_request_ids(std::move(id));
        reactor->Finish(grpc::Status::OK);
      },
      *caller);
  return reactor;
}

}  // namespace quire
