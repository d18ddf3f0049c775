// server/edge/edge.cc -- see edge.h.
#include "server/edge/edge.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "base/thread_name.h"
#include "server/access/account.h"
#include "server/access/retry_after.h"

namespace quire {
namespace {

absl::Status ShuttingDown() {
  return absl::UnavailableError("the server is shutting down; ask another one");
}

absl::Status QueueTimeout() {
  return absl::DeadlineExceededError(
      "the request was still queued after scheduling.queue_timeout_ms");
}

// After the drain deadline: for the last statuses to reach their clients.
constexpr std::chrono::milliseconds kFlushTime{200};

// What a refused caller is told to wait: a step or so of a busy engine.
constexpr std::chrono::milliseconds kQueueFullWait{1000};

absl::Status QueueFull(const char* what) {
  return WithRetryAfter(absl::ResourceExhaustedError(what), kQueueFullWait);
}

double SecondsBetween(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

// Null: keys are off.
bool MayAbort(const Account* caller, const Generation& generation) {
  if (caller == nullptr || caller->key().admin) return true;
  if (generation.account == nullptr) return false;
  const ApiKey& key = generation.account->key();
  return key.name == caller->key().name ||
         (!key.tenant.empty() && key.tenant == caller->key().tenant);
}

}  // namespace

Edge::Edge(const Tokenizer& tokenizer, size_t max_stream_buffer_bytes)
    : tokenizer_(tokenizer),
      max_stream_buffer_bytes_(max_stream_buffer_bytes),
      work_(io_.get_executor()),
      drain_timer_(io_) {}

Edge::~Edge() { Stop(); }

void Edge::Start(Engine& engine) {
  engine_ = &engine;
  thread_ = std::thread([this] {
    SetThreadName("quire-edge");
    io_.run();
  });
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
      return QueueFull("the queue is full (max_queued_requests); try again later");
    }
  }
  return ShuttingDown();
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

void Edge::CountRefused(const absl::Status& status) {
  refused_.fetch_add(1, std::memory_order_relaxed);
  for (EdgeObserver* const observer : observers_) observer->OnRefused(status);
}

void Edge::Refuse(const Generation& generation, StreamSink* sink, const absl::Status& status) {
  ReleaseNames(generation.request->id, generation, sink);
  CountRefused(status);
  sink->OnClosed(status, false, {});
}

void Edge::Register(QueueSlot slot, Generation generation, StreamSink* sink) {
  if (closed_) return Refuse(generation, sink, ShuttingDown());
  const RequestId id = generation.request->id;
  if (!by_client_id_.emplace(generation.client_id, id).second) {
    return Refuse(generation, sink,
                  InvalidArgument("request_id={} is in use; ids are unique among the requests in "
                                  "flight, or empty",
                                  generation.client_id));
  }
  by_sink_[sink] = id;
  if (generation.grammar.has_value() && !draining()) {
    AwaitGrammar(std::move(slot), std::move(generation), sink);
  } else {
    Submit(std::move(slot), std::move(generation), sink);
  }
}

std::unique_ptr<boost::asio::steady_timer> Edge::StartTimer(Clock::time_point when,
                                                            std::function<void()> fire) {
  if (when == Clock::time_point::max()) return nullptr;
  auto timer = std::make_unique<boost::asio::steady_timer>(io_, when);
  timer->async_wait([fire = std::move(fire)](const boost::system::error_code& error) {
    if (!error) fire();
  });
  return timer;
}

// The request keeps its place in the queue meanwhile; its deadlines and its client are looked after
// here.
void Edge::AwaitGrammar(QueueSlot slot, Generation generation, StreamSink* sink) {
  const RequestId id = generation.request->id;
  const auto dropped = std::make_shared<std::atomic<bool>>(false);
  absl::Status status = absl::UnimplementedError("guided is not offered by this server");
  if (grammars_ != nullptr) {
    status = grammars_->Compile(*std::exchange(generation.grammar, std::nullopt), dropped,
                                [this, id](GrammarWorker::Result grammar) {
                                  Post([this, id, grammar = std::move(grammar)]() mutable {
                                    OnGrammar(id, std::move(grammar));
                                  });
                                });
  }
  if (!status.ok()) return Refuse(generation, sink, status);
  const Clock::time_point queue_deadline = generation.queue_deadline;
  const Clock::time_point deadline = generation.request->deadline;
  auto timer = StartTimer(std::min(queue_deadline, deadline), [this, id, queue_deadline, deadline] {
    EndPending(
        id,
        queue_deadline < deadline ? QueueTimeout() : StatusOfReason(FinishReason::kDeadline, {}),
        /*tell=*/true);
  });
  pending_.emplace(
      id, Pending{std::move(slot), std::move(generation), sink, dropped, std::move(timer)});
  ++num_deferred_;
}

void Edge::OnGrammar(RequestId id, GrammarWorker::Result grammar) {
  const auto it = pending_.find(id);
  if (it == pending_.end()) return;  // nobody waits for it any more
  Pending pending = std::move(it->second);
  pending_.erase(it);
  --num_deferred_;
  pending.timer.reset();
  if (!grammar.ok()) {
    Refuse(pending.generation, pending.sink, grammar.status());
  } else if (closed_) {
    Refuse(pending.generation, pending.sink, ShuttingDown());
  } else {
    auto request = std::make_shared<Request>(*pending.generation.request);
    request->grammar = *std::move(grammar);
    pending.generation.request = std::move(request);
    Submit(std::move(pending.slot), std::move(pending.generation), pending.sink);
  }
  CheckDrained();
}

// Before the engine knew of it. tell: the sink is still there.
void Edge::EndPending(RequestId id, const absl::Status& status, bool tell) {
  const auto it = pending_.find(id);
  if (it == pending_.end()) return;
  const Pending pending = std::move(it->second);
  pending_.erase(it);
  --num_deferred_;
  pending.dropped->store(true);
  ReleaseNames(id, pending.generation, pending.sink);
  ++started_;  // the books: it was taken in, and ended otherwise than by a refusal
  Count(status);
  const RequestStats none;
  TellEnd({pending.generation, none, status, FinishReason::kNone, /*accepted=*/false,
           SecondsBetween(pending.generation.request->arrival, Clock::now())});
  if (tell) pending.sink->OnClosed(status, false, {});
  CheckDrained();
}

void Edge::Submit(QueueSlot slot, Generation generation, StreamSink* sink) {
  const RequestId id = generation.request->id;
  if (!engine_->Post(quire::Submit{generation.request})) {
    return Refuse(generation, sink,
                  engine_->accepting() ? QueueFull("the engine's inbox is full; try again later")
                                       : ShuttingDown());
  }
  slot.Consume();
  started_.fetch_add(1, std::memory_order_relaxed);
  const Request& request = *generation.request;
  spdlog::debug("request queued id={} prompt_tokens={} max_tokens={} n={}", generation.client_id,
                request.prompt.size(), request.stop.max_tokens, request.sampling.n);
  auto timer = StartTimer(generation.queue_deadline, [this, id] { OnQueueTimeout(id); });
  entries_.emplace(id,
                   Entry{std::make_unique<ActiveRequest>(tokenizer_, std::move(generation), sink),
                         std::move(timer)});
}

void Edge::OnQueueTimeout(RequestId id) {
  const auto it = entries_.find(id);
  if (it == entries_.end() || it->second.request->accepted()) return;
  CancelInEngine(id, it->second, FinishReason::kDeadline, QueueTimeout());
}

void Edge::CancelInEngine(RequestId id, Entry& entry, FinishReason reason, absl::Status error) {
  if (std::exchange(entry.cancel_sent, true)) return;
  engine_->PostCancel({id, reason, std::move(error)});
  ++cancel_commands_;
}

void Edge::ReleaseNames(RequestId id, const Generation& generation, StreamSink* sink) {
  const auto name = by_client_id_.find(generation.client_id);
  if (name != by_client_id_.end() && name->second == id) by_client_id_.erase(name);
  by_sink_.erase(sink);
}

void Edge::ClientGone(StreamSink* sink, bool deadline_passed) {
  Post([this, sink, deadline_passed] {
    const auto it = by_sink_.find(sink);
    if (it == by_sink_.end()) return;  // closed before, or refused
    const RequestId id = it->second;
    const FinishReason reason =
        deadline_passed ? FinishReason::kDeadline : FinishReason::kCancelled;
    if (pending_.contains(id)) return EndPending(id, StatusOfReason(reason, {}), /*tell=*/false);
    Entry& entry = entries_.at(id);
    ReleaseNames(id, entry.request->generation(), sink);
    entry.request->Detach();
    CancelInEngine(id, entry, reason, {});
  });
}

void Edge::Abort(std::vector<std::string> client_ids, bool all,
                 std::function<void(std::vector<std::string>)> reply,
                 std::shared_ptr<const Account> caller) {
  Post([this, client_ids = std::move(client_ids), all, reply = std::move(reply),
        caller = std::move(caller)]() mutable {
    if (all) {
      client_ids.clear();
      for (const auto& [client_id, id] : by_client_id_) client_ids.push_back(client_id);
    }
    std::vector<std::string> aborted;
    for (std::string& client_id : client_ids) {
      const auto it = by_client_id_.find(client_id);
      if (it == by_client_id_.end()) continue;
      if (!MayAbort(caller.get(), GenerationOf(it->second))) continue;
      const absl::Status status = absl::CancelledError("the request was aborted");
      if (pending_.contains(it->second)) {
        EndPending(it->second, status, /*tell=*/true);
      } else {
        Entry& entry = entries_.at(it->second);
        if (entry.cancel_sent) continue;
        CancelInEngine(it->second, entry, FinishReason::kCancelled, status);
      }
      aborted.push_back(std::move(client_id));
    }
    reply(std::move(aborted));
  });
}

const Generation& Edge::GenerationOf(RequestId id) const {
  const auto pending = pending_.find(id);
  return pending != pending_.end() ? pending->second.generation
                                   : entries_.at(id).request->generation();
}

void Edge::Publish(std::vector<TokenEvent> events) {
  Post([this, events = std::move(events)] { Handle(events); });
}

void Edge::TellToken(const TokenEvent& event, Entry& entry, Clock::time_point now) {
  const ActiveRequest& request = *entry.request;
  if (observers_.empty() || !request.TakesTokens(event.branch)) return;
  TokenTime time;
  const auto branch = static_cast<size_t>(event.branch);
  if (entry.last_token.empty()) {
    time.first_s = SecondsBetween(request.generation().request->arrival, now);
  }
  if (entry.last_token.size() <= branch) entry.last_token.resize(branch + 1);
  Clock::time_point& last = entry.last_token[branch];
  // What is told at the end has no rhythm.
  if (last != Clock::time_point() && !request.generation().told_at_end()) {
    time.gap_s = SecondsBetween(last, now);
  }
  last = now;
  for (EdgeObserver* const observer : observers_) observer->OnToken(time);
}

void Edge::TellEnd(const RequestEnd& end) {
  if (Account* const account = end.generation.account.get(); account != nullptr) {
    account->TakeTokens(end.stats.completion_tokens, Clock::now());
  }
  for (EdgeObserver* const observer : observers_) observer->OnEnd(end);
}

void Edge::Handle(const std::vector<TokenEvent>& events) {
  const Clock::time_point now = Clock::now();
  for (const TokenEvent& event : events) {
    const auto it = entries_.find(event.request);
    CHECK(it != entries_.end(), "event for unknown request {}", event.request);
    Entry& entry = it->second;
    StreamSink* const sink = entry.request->sink();
    if (event.kind == TokenEvent::Kind::kAccepted) {
      entry.queue_timer.reset();
      for (EdgeObserver* const observer : observers_) observer->OnStarted(event.stats);
    }
    if (event.kind == TokenEvent::Kind::kToken) TellToken(event, entry, now);
    if (std::optional<Finish> finish = entry.request->Apply(event)) engine_->PostFinish(*finish);
    if (sink != nullptr && entry.request->closed()) {
      ReleaseNames(event.request, entry.request->generation(), sink);
    } else if (sink != nullptr && sink->buffered_bytes() > max_stream_buffer_bytes_) {
      const absl::Status status =
          Error(absl::StatusCode::kResourceExhausted,
                "the client reads too slowly: {} bytes wait for it (max_stream_buffer_bytes={})",
                sink->buffered_bytes(), max_stream_buffer_bytes_);
      ReleaseNames(event.request, entry.request->generation(), sink);
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

void Edge::Count(const absl::Status& outcome) {
  switch (outcome.code()) {
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
}

void Edge::Finished(RequestId id, Entry& entry) {
  const ActiveRequest& request = *entry.request;
  Count(request.outcome());
  const RequestStats& stats = request.stats();
  TellEnd({request.generation(), stats, request.outcome(), request.reason(), request.accepted(),
           SecondsBetween(request.generation().request->arrival, Clock::now())});
  spdlog::info(
      "request done id={} number={} status={} prompt_tokens={} cached_tokens={} "
      "completion_tokens={} preemptions={} draft_tokens={} accepted_draft_tokens={} "
      "queue_ms={:.1f} prefill_ms={:.1f} decode_ms={:.1f}{}",
      request.generation().client_id, id, absl::StatusCodeToString(request.outcome().code()),
      stats.prompt_tokens, stats.cached_tokens, stats.completion_tokens, stats.preemptions,
      stats.draft_tokens, stats.accepted_draft_tokens, static_cast<double>(stats.queue_us) / 1e3,
      static_cast<double>(stats.prefill_us) / 1e3, static_cast<double>(stats.decode_us) / 1e3,
      request.outcome().ok() ? "" : " error=\"" + Message(request.outcome()) + "\"");
}

void Edge::Drain(Clock::time_point deadline, std::function<void()> drained) {
  const bool is_first = !draining_.exchange(true);
  engine_->Drain(deadline);
  Post([this, is_first, deadline, drained = std::move(drained)]() mutable {
    if (is_first) drained_ = std::move(drained);
    // The engine takes in nothing more.
    num_deferred_ = 0;
    for (auto& [id, pending] : std::exchange(pending_, {})) {
      pending.dropped->store(true);
      Refuse(pending.generation, pending.sink, ShuttingDown());
    }
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
  if (!out_of_time_ && (!entries_.empty() || !pending_.empty() || num_calls_.load() > 0)) return;
  closed_ = true;
  drain_timer_.cancel();
  std::exchange(drained_, nullptr)();
}

}  // namespace quire
