// server/grpc/call.h -- what all reactors of generating calls share: deadlines, metadata, the way
// in and the way out.
//
// gRPC threads, unless a comment says otherwise. Who uses it: the services in server/grpc/,
// server/vllm/, server/openengine/ and server/kserve/.
#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "server/edge/edge.h"
#include "server/field_names.h"
#include "server/front_door.h"
#include "server/grpc/status.h"

namespace quire {

Clock::time_point DeadlineOf(const grpc::CallbackServerContext& context);

// A client's clock starts before ours, so its deadline passes a little before ours does. Only for
// the books: the client is gone either way.
bool IsPast(Clock::time_point deadline);

// What proxies and clients of other protos send beside the message; empty if they don't.
// ERRORS: kInvalidArgument if it is given twice.
absl::StatusOr<std::string> Metadata(const grpc::CallbackServerContext& context, const char* key);

// grpc-timeout, x-kv-retention, x-priority, x-tenant-id, and whose key it came with.
// ERRORS: kInvalidArgument, kUnauthenticated.
absl::StatusOr<Arrival> ArrivalOf(FrontDoor& door, const grpc::CallbackServerContext& context);

// For services whose messages have no field for it: x-request-id where `request` has no id,
// x-cache-salt where it has no salt. ERRORS: kInvalidArgument if x-data-parallel-rank names another
// rank than 0.
absl::Status ReadExtras(const grpc::CallbackServerContext& context, pb::GenerateRequest& request);

// Says goodbye to the edge and deletes the reactor there.
template <typename Reactor>
void DeleteOnEdge(Edge& edge, Reactor* reactor) {
  edge.Post([&edge, reactor] {
    delete reactor;
    edge.CallClosed();
  });
}

// Lets `request` in for `sink`, which is told of it by Named(generation, deadline) before the edge
// knows of it. The one way from gRPC to the front door.
template <typename Sink>
absl::Status StartGeneration(FrontDoor& door, const grpc::CallbackServerContext& context,
                             const pb::GenerateRequest& request, bool unary, Sink* sink) {
  ASSIGN_OR_RETURN(Arrival arrival, ArrivalOf(door, context));
  const Clock::time_point deadline = arrival.deadline;
  ASSIGN_OR_RETURN(Admitted admitted, door.Admit(request, std::move(arrival), unary));
  if (absl::Status status = sink->Named(admitted.generation, deadline); !status.ok()) {
    door.edge().CountRefused(status);
    return status;
  }
  door.Open(std::move(admitted), sink);
  return absl::OkStatus();
}

// Ends requests by their ids, or all, as far as the caller's key reaches. done: on the edge thread,
// with the ids that were in flight.
grpc::ServerUnaryReactor* AbortRequests(FrontDoor& door, const grpc::CallbackServerContext& context,
                                        std::vector<std::string> ids, bool all,
                                        std::function<void(std::vector<std::string>)> done);

// For calls that are answered at once, or by one callback.
class SimpleReactor final : public grpc::ServerUnaryReactor {
 public:
  void OnDone() override { delete this; }
};

inline grpc::ServerUnaryReactor* AnswerNow(const absl::Status& status = absl::OkStatus()) {
  auto* const reactor = new SimpleReactor;
  reactor->Finish(ToGrpc(status));
  return reactor;
}

template <typename Message>
class RefusingStream final : public grpc::ServerWriteReactor<Message> {
 public:
  explicit RefusingStream(const absl::Status& status) { this->Finish(ToGrpc(status)); }
  void OnDone() override { delete this; }
};

// Of calls that a proto has and this server does not: says what and why.
inline grpc::ServerUnaryReactor* Unimplemented(std::string_view what) {
  return AnswerNow(absl::UnimplementedError({what.data(), what.size()}));
}

}  // namespace quire
