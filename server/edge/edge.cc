// server/edge/edge.cc -- see edge.h.
#include "server/edge/edge.h"

#include <spdlog/spdlog.h>

#include <utility>

namespace quire {
namespace {

// After the drain deadline: for the last statuses to reach their clients.
constexpr std::chrono::milliseconds kFlushTime{200};

}  // namespace

Edge::Edge(const Tokenizer& tokenizer, size_t max_stream_buffer_bytes)
    : tokenizer_(tokenizer),
      max_stream_buffer_bytes_(max_stream_buffer_bytes),
      work_(io_.get_executor()),
      drain_timer_(io_) {}

Edge::~Edge() { Stop(); }

void Edge::Start(Engine& engine) {
  engine_ = &engine;
  thread_ = std::thread([this] { io_.run(); });
}

void Edge::Stop() {
  if (!thread_.joinable()) return;
  Post(
      [this] { io_.stop(); });  // behind everything posted before; timers and signals don't hold it
  thread_.join();
}

absl::StatusOr<QueueSlot> Edge::Reserve() {
  if (!draining()) {
    if (engine_->TryEnter()) return QueueSlot(engine_);
    if (engine_->accepting()) {
      return absl::ResourceExhaustedError(
          "the queue is full (max_queued_requests); try again later");
    }
  }
  return absl::UnavailableError("the server is shutting down; ask another one");
}

RequestCounts Edge::counts() const {
  return {.started = started_,
          .ok = ok_,
          .cancelled = cancelled_,
          .deadline = deadline_,
          .failed = failed_,
          .refused = refused_,
          .cancel_commands = cancel_commands_};
}

void Edge::Open(QueueSlot slot, Generation generation, StreamSink* sink) {
  Post([this, slot = std::make_shared<QueueSlot>(std::move(slot)),
        generation = std::move(generation),
        sink]() mutable { Register(std::move(*slot), std::move(generation), sink); });
}

void Edge::Register(QueueSlot slot, Generation generation, StreamSink* sink) {
  const auto refuse = [&](const absl::Status& status) {
    CountRefused();
    sink->OnClosed(status, false, {});
  };
  const auto refuse_closed = [&] {
    refuse(absl::UnavailableError("the server is shutting down; ask another one"));
  };
  if (closed_) return refuse_closed();
  const RequestId id = generation.request->id;
  if (!by_client_id_.emplace(generation.client_id, id).second) {
    return refuse(
        InvalidArgument("request_id={} is in use; ids are unique among the requests in "
                        "flight, or empty",
                        generation.client_id));
  }
  Submit submit{generation.request};
  const Clock::time_point queue_deadline = generation.queue_deadline;
  const std::string client_id = generation.client_id;
  Entry entry{.request = std::make_unique<ActiveRequest>(tokenizer_, std::move(generation), sink)};
  if (!engine_->Post(std::move(submit))) {
    by_client_id_.erase(client_id);
    if (!engine_->accepting()) return refuse_closed();
    return refuse(absl::ResourceExhaustedError("the engine's inbox is full; try again later"));
  }
  slot.Consume();
  started_.fetch_add(1, std::memory_order_relaxed);
  by_sink_[sink] = id;
  if (queue_deadline != Clock::time_point::max()) {
    entry.queue_timer = std::make_unique<boost::asio::steady_timer>(io_, queue_deadline);
    entry.queue_timer->async_wait([this, id](const boost::system::error_code& error) {
      if (!error) OnQueueTimeout(id);
    });
  }
  const Request& request = *entry.request->generation().request;
  spdlog::debug("request queued id={} prompt_tokens={} max_tokens={} n={}", client_id,
                request.prompt.size(), request.stop.max_tokens, request.sampling.n);
  entries_.emplace(id, std::move(entry));
}

void Edge::OnQueueTimeout(RequestId id) {
  const auto it = entries_.find(id);
  if (it == entries_.end() || it->second.request->accepted()) return;
  CancelInEngine(id, it->second, FinishReason::kDeadline,
                 absl::DeadlineExceededError("the request was still queued after "
                                             "scheduling.queue_timeout_ms"));
}

void Edge::CancelInEngine(RequestId id, Entry& entry, FinishReason reason, absl::Status error) {
  if (std::exchange(entry.cancel_sent, true)) return;
  engine_->PostCancel({id, reason, std::move(error)});
  ++cancel_commands_;
}

void Edge::ReleaseNames(RequestId id, Entry& entry, StreamSink* sink) {
  const auto name = by_client_id_.find(entry.request->generation().client_id);
  if (name != by_client_id_.end() && name->second == id) by_client_id_.erase(name);
  by_sink_.erase(sink);
}

void Edge::ClientGone(StreamSink* sink, bool deadline_passed) {
  Post([this, sink, deadline_passed] {
    const auto it = by_sink_.find(sink);
    if (it == by_sink_.end()) return;  // closed before, or refused
    const RequestId id = it->second;
    Entry& entry = entries_.at(id);
    ReleaseNames(id, entry, sink);
    entry.request->Detach();
    CancelInEngine(id, entry, deadline_passed ? FinishReason::kDeadline : FinishReason::kCancelled,
                   {});
  });
}

void Edge::Abort(std::vector<std::string> client_ids, bool all,
                 std::function<void(std::vector<std::string>)> reply) {
  Post([this, client_ids = std::move(client_ids), all, reply = std::move(reply)]() mutable {
    if (all) {
      client_ids.clear();
      for (const auto& [client_id, id] : by_client_id_) client_ids.push_back(client_id);
    }
    std::vector<std::string> aborted;
    for (std::string& client_id : client_ids) {
      const auto it = by_client_id_.find(client_id);
      if (it == by_client_id_.end()) continue;
      Entry& entry = entries_.at(it->second);
      if (entry.cancel_sent) continue;
      CancelInEngine(it->second, entry, FinishReason::kCancelled,
                     absl::CancelledError("the request was aborted"));
      aborted.push_back(std::move(client_id));
    }
    reply(std::move(aborted));
  });
}

void Edge::Publish(std::vector<TokenEvent> events) {
  Post([this, events = std::move(events)] { Handle(events); });
}

void Edge::Handle(const std::vector<TokenEvent>& events) {
  for (const TokenEvent& event : events) {
    const auto it = entries_.find(event.request);
    CHECK(it != entries_.end(), "event for unknown request {}", event.request);
    Entry& entry = it->second;
    StreamSink* const sink = entry.request->sink();
    if (event.kind == TokenEvent::Kind::kAccepted) entry.queue_timer.reset();
    if (std::optional<Finish> finish = entry.request->Apply(event)) engine_->PostFinish(*finish);
    if (sink != nullptr && entry.request->closed()) {
      ReleaseNames(event.request, entry, sink);
    } else if (sink != nullptr && sink->buffered_bytes() > max_stream_buffer_bytes_) {
      const absl::Status status =
          Error(absl::StatusCode::kResourceExhausted,
                "the client reads too slowly: {} bytes wait for it (max_stream_buffer_bytes={})",
                sink->buffered_bytes(), max_stream_buffer_bytes_);
      ReleaseNames(event.request, entry, sink);
      entry.request->Close(status);
      CancelInEngine(event.request, entry, FinishReason::kError, status);
    }
    if (event.request_done) {
      Finished(event.request, entry);
      entries_.erase(it);
    }
  }
  CheckDrained();
}

void Edge::Finished(RequestId id, Entry& entry) {
  const ActiveRequest& request = *entry.request;
  switch (request.outcome().code()) {
    case absl::StatusCode::kOk:
      ++ok_;
      break;
    case absl::StatusCode::kCancelled:
      ++cancelled_;
      break;
    case absl::StatusCode::kDeadlineExceeded:
      ++deadline_;
      break;
    default:
      ++failed_;
      break;
  }
  const RequestStats& stats = request.stats();
  spdlog::info(
      "request done id={} number={} status={} prompt_tokens={} cached_tokens={} "
      "completion_tokens={} preemptions={} queue_ms={:.1f} prefill_ms={:.1f} decode_ms={:.1f}{}",
      request.generation().client_id, id, absl::StatusCodeToString(request.outcome().code()),
      stats.prompt_tokens, stats.cached_tokens, stats.completion_tokens, stats.preemptions,
      static_cast<double>(stats.queue_us) / 1e3, static_cast<double>(stats.prefill_us) / 1e3,
      static_cast<double>(stats.decode_us) / 1e3,
      request.outcome().ok() ? "" : " error=\"" + Message(request.outcome()) + "\"");
}

void Edge::Drain(Clock::time_point deadline, std::function<void()> drained) {
  const bool is_first = !draining_.exchange(true);
  engine_->Drain(deadline);
  Post([this, is_first, deadline, drained = std::move(drained)]() mutable {
    if (is_first) drained_ = std::move(drained);
    if (is_first || deadline + kFlushTime < drain_timer_.expiry()) {
      drain_timer_.expires_at(deadline + kFlushTime);
      drain_timer_.async_wait([this](const boost::system::error_code& error) {
        if (error) return;
        out_of_time_ = true;
        CheckDrained();
      });
    }
    CheckDrained();
  });
}

void Edge::CallClosed() {
  num_calls_.fetch_sub(1);
  CheckDrained();
}

void Edge::CheckDrained() {
  if (!drained_) return;
  if (!out_of_time_ && (!entries_.empty() || num_calls_.load() > 0)) return;
  closed_ = true;
  drain_timer_.cancel();
  std::exchange(drained_, nullptr)();
}

}  // namespace quire
