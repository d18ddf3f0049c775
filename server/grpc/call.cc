// server/grpc/call.cc -- see call.h.
#include "server/grpc/call.h"

#include <iterator>

#include "server/grpc/caller.h"

namespace quire {

Clock::time_point DeadlineOf(const grpc::CallbackServerContext& context) {
  const auto deadline = context.deadline();
  const auto now = std::chrono::system_clock::now();
  // No grpc-timeout is a time point beyond all; a century would overflow nanoseconds of now().
  if (deadline - now > std::chrono::hours(24 * 365)) return Clock::time_point::max();
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(deadline - now);
}

bool IsPast(Clock::time_point deadline) {
  return deadline != Clock::time_point::max() &&
         Clock::now() + std::chrono::milliseconds(50) >= deadline;
}

absl::StatusOr<std::string> Metadata(const grpc::CallbackServerContext& context, const char* key) {
  const auto [begin, end] = context.client_metadata().equal_range(key);
  if (begin == end) return std::string();
  if (std::next(begin) != end) return InvalidArgument("{} is given twice; give one", key);
  return std::string(begin->second.data(), begin->second.size());
}

absl::StatusOr<Arrival> ArrivalOf(FrontDoor& door, const grpc::CallbackServerContext& context) {
  Arrival arrival{.deadline = DeadlineOf(context)};
  ASSIGN_OR_RETURN(arrival.kv_retention, Metadata(context, "x-kv-retention"));
  ASSIGN_OR_RETURN(arrival.priority, Metadata(context, "x-priority"));
  ASSIGN_OR_RETURN(arrival.tenant, Metadata(context, "x-tenant-id"));
  ASSIGN_OR_RETURN(arrival.account, door.access().Identify(CredentialsOf(context)));
  return arrival;
}

absl::Status ReadExtras(const grpc::CallbackServerContext& context, pb::GenerateRequest& request) {
  ASSIGN_OR_RETURN(std::string rank, Metadata(context, "x-data-parallel-rank"));
  if (!rank.empty() && rank != "0") {
    return InvalidArgument("x-data-parallel-rank={} is not here; this engine is rank 0", rank);
  }
  ASSIGN_OR_RETURN(std::string salt, Metadata(context, "x-cache-salt"));
  if (request.kv().cache_salt().empty() && !salt.empty()) {
    request.mutable_kv()->set_cache_salt(std::move(salt));
  }
  if (request.request_id().empty()) {
    ASSIGN_OR_RETURN(*request.mutable_request_id(), Metadata(context, "x-request-id"));
  }
  return absl::OkStatus();
}

grpc::ServerUnaryReactor* AbortRequests(FrontDoor& door, const grpc::CallbackServerContext& context,
                                        std::vector<std::string> ids, bool all,
                                        std::function<void(std::vector<std::string>)> done) {
  const absl::StatusOr<std::shared_ptr<Account>> caller =
      door.access().Identify(CredentialsOf(context));
  if (!caller.ok()) return AnswerNow(caller.status());
  auto* const reactor = new SimpleReactor;
  door.edge().Abort(
      std::move(ids), all,
      [reactor, done = std::move(done)](std::vector<std::string> aborted) {
        done(std::move(aborted));
        reactor->Finish(grpc::Status::OK);
      },
      *caller);
  return reactor;
}

}  // namespace quire
