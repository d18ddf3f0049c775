// server/grpc/kv_event_streams.h -- gRPC calls that tell KV events, whichever service they are of.
//
// All such calls live on one thread of their own, so what they cost is taken neither from the
// engine nor from the edge, which answers requests. Each reads the hub at its own pace: one message
// is being written, the next is made once that is done. Who doesn't read holds one message and, if
// it began with one, its snapshot; when the hub has dropped what it would read next, its call ends
// and says so.
//
//   engine thread              this thread                       gRPC
//   Publish -> on_ready -----> Pump(): Next(), Encode -------->  StartWrite
//                              Pump() <------------------------  OnWriteDone
//
// Life of a call: created in the handler, Pump()ed here, deleted here after OnDone. Its
// subscription ends before its Finish, so nothing is posted for it after its deletion.
#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <unordered_set>
#include <utility>

#include "base/status.h"
#include "server/events/kv_event_hub.h"
#include "server/grpc/status.h"

namespace quire {

inline constexpr const char* kKvEventsAreOff =
    "kv_events=false: what is cached is not told; start the server with kv_events=true";

class KvEventStreams {
 public:
  // One call. All of it on the thread of the streams.
  class Call {
   public:
    virtual ~Call() = default;
    // Writes what comes next, if it can.
    virtual void Pump() = 0;
  };

  explicit KvEventStreams(int32_t max_calls) : max_calls_(max_calls) {}
  ~KvEventStreams() { Stop(); }

  // From then on events are told. REQUIRES: before the first call; the hub outlives this.
  void Start(KvEventHub& hub);
  // Calls end with kUnavailable once they have written what there is. Returns when all are gone, or
  // `patience` has passed: of those whose clients don't read.
  void End(std::chrono::milliseconds patience);
  // Waits until the last call is gone, then ends the thread. REQUIRES: no new calls come; those
  // that can't write are cancelled.
  void Stop();

  // Any thread.
  bool on() const { return hub_ != nullptr; }
  KvEventHub& hub() { return *hub_; }
  // ERRORS: kUnavailable after End, kResourceExhausted beyond the most calls.
  absl::Status Enter();
  void Leave() { num_calls_.fetch_sub(1); }
  bool ending() const { return ending_.load(); }
  template <typename Fn>
  void Post(Fn&& fn) {
    boost::asio::post(io_, std::forward<Fn>(fn));
  }
  // For subscriptions of the hub: pumps all calls.
  std::function<void()> on_ready() {
    return [this] { WakeAll(); };
  }

  // Thread of the streams.
  void Add(Call* call) { calls_.insert(call); }
  void Remove(Call* call) { calls_.erase(call); }

 private:
  void WakeAll();

  const int32_t max_calls_;
  KvEventHub* hub_ = nullptr;
  boost::asio::io_context io_{1};
  std::optional<boost::asio::executor_work_guard<boost::asio::io_context::executor_type>> work_;
  std::thread thread_;
  std::atomic<int32_t> num_calls_{0};  // from Enter to Leave
  std::atomic<bool> ending_{false};
  std::atomic<bool> awake_{false};   // WakeAll is posted
  std::unordered_set<Call*> calls_;  // of its thread
};

// The reactor of one call. What a message looks like, and an end, is the deriving class's.
template <typename Message>
class KvEventCall : public grpc::ServerWriteReactor<Message>, public KvEventStreams::Call {
 public:
  // REQUIRES: streams.Enter() was OK.
  explicit KvEventCall(KvEventStreams& streams) : streams_(streams) {}

  // In the handler, last thing.
  void Open(const KvEventHub::Start& start) {
    // At once, so that the client knows that it is subscribed though there may be nothing to tell.
    this->StartSendInitialMetadata();
    streams_.Post([this, start] { Begin(start); });
  }

  // gRPC threads.
  void OnWriteDone(bool ok) override {
    streams_.Post([this, ok] {
      writing_ = false;
      if (!ok) gone_ = true;
      Pump();
    });
  }
  void OnCancel() override {
    streams_.Post([this] {
      gone_ = true;
      Pump();
    });
  }
  void OnDone() override {
    KvEventStreams& streams = streams_;
    streams.Post([this, &streams] {
      streams.Remove(this);
      delete this;
      streams.Leave();
    });
  }

 protected:
  const KvEventFacts& facts() const { return streams_.hub().facts(); }

 private:
  virtual Message Encode(const KvEventBatch& batch) = 0;
  // The call's last message, if it says in one why it ends; the status is OK then.
  virtual std::optional<Message> LastWord(const absl::Status&) { return std::nullopt; }

  void Begin(const KvEventHub::Start& start) {
    streams_.Add(this);
    if (gone_) return FinishWith(grpc::Status::CANCELLED);
    auto subscription = streams_.hub().Subscribe(start, streams_.on_ready());
    if (!subscription.ok()) return FinishWith(ToGrpc(subscription.status()));
    subscription_ = *std::move(subscription);
    Pump();
  }

  void Pump() override {
    if (writing_ || finished_ || (subscription_ == nullptr && !said_last_)) return;
    if (gone_) return FinishWith(grpc::Status::CANCELLED);
    if (said_last_) return FinishWith(grpc::Status::OK);
    absl::StatusOr<std::shared_ptr<const KvEventBatch>> batch = subscription_->Next();
    if (batch.ok() && *batch == nullptr) {
      if (!streams_.ending()) return;  // on_ready tells
      batch = absl::UnavailableError("the server is shutting down; retry elsewhere");
    }
    if (batch.ok()) return Write(Encode(**batch));
    std::optional<Message> last = LastWord(batch.status());
    if (!last.has_value()) return FinishWith(ToGrpc(batch.status()));
    subscription_.reset();
    said_last_ = true;
    Write(*std::move(last));
  }

  void Write(Message message) {
    message_ = std::move(message);
    writing_ = true;
    this->StartWrite(&message_);
  }
  void FinishWith(const grpc::Status& status) {
    finished_ = true;
    subscription_.reset();
    this->Finish(status);
  }

  KvEventStreams& streams_;
  std::unique_ptr<KvEventSubscription> subscription_;
  Message message_;  // alive until OnWriteDone
  bool writing_ = false;
  bool gone_ = false;  // the client
  bool said_last_ = false;
  bool finished_ = false;
};

// Of a snapshot's chunks, the numbers that they are told with: consecutive, the last one is that of
// the last batch that the snapshot contains, so that the next batch has the next number.
inline uint64_t ToldSequence(const KvEventBatch& batch) {
  if (!batch.is_snapshot) return batch.sequence;
  const uint64_t back = batch.snapshot_count - 1 - batch.snapshot_index;
  return batch.sequence < back ? 0 : batch.sequence - back;
}
// The first chunk of a snapshot begins with "cleared".
inline bool BeginsAnew(const KvEventBatch& batch) {
  return batch.is_snapshot && batch.snapshot_index == 0;
}

}  // namespace quire
