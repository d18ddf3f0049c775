// server/edge/edge.h -- the one thread between clients and the engine.
//
// Everything about requests in flight happens here: registering, events to text, timeouts, slow
// readers, aborts, drain. gRPC threads only check and tokenize a request, then hand it over; the
// engine thread hands over one vector of events per step. So no state here needs a lock, except the
// few counters that callers read before they tokenize.
//
//   gRPC thread                 edge thread                       engine thread
//   Reserve() -> slot
//   parse, tokenize
//   Open(generation, sink) ---> register, Submit ---------------> queue
//                               sink->OnDelta ... <-------------- Publish(events)
//   (a request with a grammar waits here until the worker has compiled it)
//   ClientGone(sink) ---------> Cancel -------------------------> drop from the batch
//
// A sink belongs to gRPC. It is known here from Open until OnClosed or Forget, whichever is first.
#pragma once

#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/status.h"
#include "scheduler/engine.h"
#include "scheduler/request.h"
#include "server/edge/active_request.h"
#include "server/edge/generation.h"
#include "server/edge/grammar_worker.h"
#include "server/edge/observer.h"

namespace quire {

// A place in the engine's bounded queue, held from before a prompt is tokenized until it is posted.
// Move-only; gives the place back unless Consume() was called.
class QueueSlot {
 public:
  QueueSlot() = default;
  explicit QueueSlot(Engine* engine) : engine_(engine) {}
  QueueSlot(QueueSlot&& other) noexcept : engine_(std::exchange(other.engine_, nullptr)) {}
  QueueSlot& operator=(QueueSlot&& other) noexcept {
    std::swap(engine_, other.engine_);
    return *this;
  }
  ~QueueSlot() {
    if (engine_ != nullptr) engine_->Leave();
  }
  void Consume() { engine_ = nullptr; }  // the engine gives it back

 private:
  Engine* engine_ = nullptr;
};

// How requests ended; started = ok + cancelled + deadline + failed once nothing is in flight.
struct RequestCounts {
  uint64_t started = 0;  // handed to the engine
  uint64_t ok = 0;
  uint64_t cancelled = 0;  // by the client or by Abort
  uint64_t deadline = 0;
  uint64_t failed = 0;   // refused by the engine, slow reader, drain, our fault
  uint64_t refused = 0;  // before the engine saw them; not in `started`
  // Commands to the engine that end a request early; one that comes too late changes no outcome.
  uint64_t cancel_commands = 0;
};

class Edge {
 public:
  Edge(const Tokenizer& tokenizer, size_t max_stream_buffer_bytes);
  ~Edge();
  Edge(const Edge&) = delete;
  Edge& operator=(const Edge&) = delete;

  // Who compiles grammars; without, requests for them are refused. REQUIRES: before the first Open;
  // `grammars` outlives all calls of Open.
  void UseGrammars(GrammarWorker& grammars) { grammars_ = &grammars; }
  // Tells `observer` what becomes of requests. REQUIRES: before the first Open; it outlives the
  // edge's thread and all calls of Reserve and CountRefused.
  void Observe(EdgeObserver& observer) { observers_.push_back(&observer); }
  // Starts the thread. REQUIRES: `engine` publishes to this edge and outlives all calls below.
  void Start(Engine& engine);
  // Runs what is still posted, then ends the thread. REQUIRES: no sink is known any more.
  void Stop();

  // ---- any thread ----

  // ERRORS: kResourceExhausted if the queue is full, kUnavailable while draining. Takes
  // microseconds.
  absl::StatusOr<QueueSlot> Reserve();
  void CountRefused(const absl::Status& status);

  // sink must stay alive until its OnClosed was called or Forget was handled.
  void Open(QueueSlot slot, Generation generation, StreamSink* sink);

  // The client cancelled or its deadline has passed: ends the work, the sink is not called again.
  void ClientGone(StreamSink* sink, bool deadline_passed);
  // The same by client ids; the sinks are closed with CANCELLED. reply: the ids that were in
  // flight. caller: whose key asks; it reaches requests of its own key and tenant only, unless it
  // is an operator's. Null: all.
  void Abort(std::vector<std::string> client_ids, bool all,
             std::function<void(std::vector<std::string>)> reply,
             std::shared_ptr<const Account> caller = nullptr);

  // The engine's events of one step.
  void Publish(std::vector<TokenEvent> events);

  // From now on Reserve fails, and what waits for its grammar is refused. `drained` runs on the
  // edge thread once nothing is in flight and all calls have got their answers; what is still
  // running at `deadline` is cut with UNAVAILABLE, and a reader that doesn't take its answer is not
  // waited for much longer. A second call can only bring the deadline forward; its `drained` is
  // ignored.
  void Drain(Clock::time_point deadline, std::function<void()> drained);
  bool draining() const { return draining_.load(); }

  // A call exists, from its handler until its reactor is deleted on the edge thread.
  void CallOpened() { num_calls_.fetch_add(1); }
  void CallClosed();

  // Runs fn on the edge thread, after everything posted before.
  template <typename Fn>
  void Post(Fn&& fn) {
    boost::asio::post(io_, std::forward<Fn>(fn));
  }
  boost::asio::io_context& io() { return io_; }

  RequestId NewId() { return next_id_.fetch_add(1, std::memory_order_relaxed); }
  RequestCounts counts() const;
  // Requests that wait for their grammar: the engine doesn't know of them yet.
  int32_t num_deferred() const { return num_deferred_.load(std::memory_order_relaxed); }

 private:
  struct Entry {
    std::unique_ptr<ActiveRequest> request;
    std::unique_ptr<boost::asio::steady_timer> queue_timer;
    bool cancel_sent = false;
    std::vector<Clock::time_point> last_token;  // [branches], from the first token on
  };
  // A request whose grammar is being compiled: the engine doesn't know of it.
  struct Pending {
    QueueSlot slot;
    Generation generation;
    StreamSink* sink = nullptr;
    GrammarWorker::Dropped dropped;
    std::unique_ptr<boost::asio::steady_timer> timer;
  };

  // Edge thread.
  void Register(QueueSlot slot, Generation generation, StreamSink* sink);
  void Submit(QueueSlot slot, Generation generation, StreamSink* sink);
  void Refuse(const Generation& generation, StreamSink* sink, const absl::Status& status);
  std::unique_ptr<boost::asio::steady_timer> StartTimer(Clock::time_point when,
                                                        std::function<void()> fire);
  void AwaitGrammar(QueueSlot slot, Generation generation, StreamSink* sink);
  void OnGrammar(RequestId id, GrammarWorker::Result grammar);
  void EndPending(RequestId id, const absl::Status& status, bool tell);
  void Count(const absl::Status& outcome);
  void TellToken(const TokenEvent& event, Entry& entry, Clock::time_point now);
  void TellEnd(const RequestEnd& end);
  const Generation& GenerationOf(RequestId id) const;
  void Handle(const std::vector<TokenEvent>& events);
  void CancelInEngine(RequestId id, Entry& entry, FinishReason reason, absl::Status error);
  void ReleaseNames(RequestId id, const Generation& generation, StreamSink* sink);
  void Finished(RequestId id, Entry& entry);
  void OnQueueTimeout(RequestId id);
  void CheckDrained();

  const Tokenizer& tokenizer_;
  const size_t max_stream_buffer_bytes_;
  Engine* engine_ = nullptr;
  GrammarWorker* grammars_ = nullptr;
  std::vector<EdgeObserver*> observers_;
  boost::asio::io_context io_{1};
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_;
  std::thread thread_;

  std::atomic<RequestId> next_id_{1};
  std::atomic<bool> draining_{false};
  std::atomic<int32_t> num_calls_{0};
  std::atomic<int32_t> num_deferred_{0};  // pending_.size()
  std::atomic<uint64_t> started_{0}, ok_{0}, cancelled_{0}, deadline_{0}, failed_{0}, refused_{0},
      cancel_commands_{0};

  // Edge thread only.
  std::unordered_map<RequestId, Entry> entries_;             // until the engine's last event
  std::unordered_map<RequestId, Pending> pending_;           // in no engine yet
  std::unordered_map<std::string, RequestId> by_client_id_;  // until the client's side ended
  std::unordered_map<const StreamSink*, RequestId> by_sink_;
  std::function<void()> drained_;
  boost::asio::steady_timer drain_timer_;
  bool out_of_time_ = false;
  bool closed_ = false;  // drained: nothing is let in any more
};

}  // namespace quire
