// server/grpc/kv_event_streams.cc -- see kv_event_streams.h.
#include "server/grpc/kv_event_streams.h"

#include <vector>

namespace quire {

void KvEventStreams::Start(KvEventHub& hub) {
  hub_ = &hub;
  work_.emplace(io_.get_executor());
  thread_ = std::thread([this] { io_.run(); });
}

absl::Status KvEventStreams::Enter() {
  if (ending()) return absl::UnavailableError("the server is shutting down; retry elsewhere");
  if (num_calls_.fetch_add(1) < max_calls_) return absl::OkStatus();
  Leave();
  return Error(
      absl::StatusCode::kResourceExhausted,
      "kv_events_max_subscribers={} calls of SubscribeKvEvents are open; end one, or raise "
      "it",
      max_calls_);
}

void KvEventStreams::WakeAll() {
  if (awake_.exchange(true)) return;
  Post([this] {
    awake_ = false;
    // A copy: a call may begin or end meanwhile.
    const std::vector<Call*> calls(calls_.begin(), calls_.end());
    for (Call* call : calls) call->Pump();
  });
}

void KvEventStreams::End(std::chrono::milliseconds patience) {
  ending_ = true;
  if (!thread_.joinable()) return;
  WakeAll();
  const auto end = std::chrono::steady_clock::now() + patience;
  while (num_calls_.load() > 0 && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

void KvEventStreams::Stop() {
  if (!thread_.joinable()) return;
  End({});
  // gRPC has ended the calls; their last words to this thread are on their way.
  while (num_calls_.load() > 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  work_.reset();
  thread_.join();
}

}  // namespace quire
