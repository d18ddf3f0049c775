// server/http/generation_call.cc -- see generation_call.h.
#include "server/http/generation_call.h"

#include <absl/strings/numbers.h>

#include <ctime>
#include <utility>

#include "server/openai/errors.h"

namespace quire {
namespace {

// Tells the edge of a call from its start to its last byte, so that a drain waits for it.
std::shared_ptr<const void> CallOf(Edge& edge) {
  edge.CallOpened();
  return {nullptr, [&edge](const void*) { edge.Post([&edge] { edge.CallClosed(); }); }};
}

absl::StatusOr<Arrival> ArrivalOf(const HttpRequest& request) {
  Arrival arrival;
  arrival.account = request.caller.account;
  arrival.kv_retention = request.Header("x-kv-retention");
  arrival.priority =
      request.caller.priority.empty() ? request.Header("x-priority") : request.caller.priority;
  arrival.tenant =
      request.caller.tenant.empty() ? request.Header("x-tenant-id") : request.caller.tenant;
  return arrival;
}

}  // namespace

std::shared_ptr<const void> IdsInUse::Take(const std::string& id) {
  {
    const std::lock_guard lock(set_->mutex);
    if (!set_->ids.insert(id).second) return nullptr;
  }
  // Any non-null pointer will do; the deleter is what counts.
  return {static_cast<const void*>(set_.get()), [set = set_, id](const void*) {
            const std::lock_guard lock(set->mutex);
            set->ids.erase(id);
          }};
}

// Edge thread. Alive until OnClosed, or until the edge has handled ClientGone.
class GenerationCall::PromptSink final : public StreamSink,
                                         public std::enable_shared_from_this<PromptSink> {
 public:
  PromptSink(std::shared_ptr<GenerationCall> call, int32_t prompt)
      : call_(std::move(call)), prompt_(prompt) {}

  void KeepAlive() { self_ = shared_from_this(); }
  void Release() { self_.reset(); }

  void OnAccepted(const RequestStats& stats) override {
    Post([stats](GenerationCall& call, int32_t prompt) { call.Accepted(prompt, stats); });
  }
  void OnPromptLogprobs(const std::vector<PromptLogprob>& logprobs) override {
    Post([logprobs](GenerationCall& call, int32_t prompt) {
      call.PromptLogprobs(prompt, logprobs);
    });
  }
  void OnDelta(Delta delta) override {
    const size_t bytes = delta.text.size() + 64 * (1 + delta.logprobs.size());
    posted_bytes_.fetch_add(bytes, std::memory_order_relaxed);
    Post([self = shared_from_this(), bytes, delta = std::move(delta)](GenerationCall& call,
                                                                      int32_t prompt) {
      self->posted_bytes_.fetch_sub(bytes, std::memory_order_relaxed);
      call.Deltas(prompt, delta);
    });
  }
  void OnBranchEnd(const BranchEnd& end, const RequestStats*) override {
    Post([end](GenerationCall& call, int32_t prompt) { call.BranchEnded(prompt, end); });
  }
  void OnClosed(const absl::Status& status, bool accepted, const RequestStats& stats) override {
    Post([status, accepted, stats](GenerationCall& call, int32_t prompt) {
      call.Closed(prompt, status, accepted, stats);
    });
    // The edge still looks at the sink's address, nothing more; but not before it returns.
    call_->door_.edge().Post([self = shared_from_this()] { self->Release(); });
  }
  size_t buffered_bytes() const override {
    if (!call_->call_.stream) return 0;  // bounded when the request was checked
    return posted_bytes_.load(std::memory_order_relaxed) + call_->exchange_->unsent_bytes();
  }

 private:
  template <typename Fn>
  void Post(Fn fn) {
    call_->exchange_->Post(
        [call = call_, prompt = prompt_, fn = std::move(fn)] { fn(*call, prompt); });
  }

  const std::shared_ptr<GenerationCall> call_;
  const int32_t prompt_;
  std::atomic<size_t> posted_bytes_{0};
  std::shared_ptr<PromptSink> self_;  // edge thread, but for its start
};

GenerationCall::GenerationCall(FrontDoor& door, ExchangePtr exchange, OpenAiCall call)
    : door_(door), exchange_(std::move(exchange)), call_(std::move(call)) {}

void GenerationCall::Start(FrontDoor& door, IdsInUse& ids, CallReader reader,
                           ExchangePtr exchange) {
  const HttpRequest& request = exchange->request();
  exchange->Hold(CallOf(door.edge()));
  exchange->Hold(request.caller.hold);
  const auto taken = request.has_client_id ? ids.Take(request.id) : nullptr;
  AnswerInfo info{.id = request.id, .created = std::time(nullptr), .model = &door.model()};
  absl::StatusOr<OpenAiCall> call = reader(request.body, door.model(), std::move(info));
  if (!call.ok()) {
    door.edge().CountRefused(call.status());
    return exchange->Reply(ErrorReply(call.status()));
  }
  if (taken != nullptr) exchange->Hold(taken);
  // One that is in use, or was not given: the engine makes its own.
  const std::string engine_id = taken != nullptr ? request.id : std::string();
  std::shared_ptr<GenerationCall> self(
      new GenerationCall(door, std::move(exchange), *std::move(call)));
  const absl::Status opened = self->Open(engine_id);
  if (!opened.ok()) {
    self->exchange_->Reply(ErrorReply(WithNames(opened, self->call_.names)));
  }
}

absl::Status GenerationCall::Open(const std::string& engine_id) {
  const HttpRequest& request = exchange_->request();
  std::vector<Admitted> admitted;
  for (size_t i = 0; i < call_.requests.size(); ++i) {
    pb::GenerateRequest& one = call_.requests[i];
    if (!engine_id.empty()) {
      one.set_request_id(i == 0 ? engine_id : fmt::format("{}-{}", engine_id, i));
    }
    if (one.kv().cache_salt().empty() && !request.caller.cache_salt.empty()) {
      one.mutable_kv()->set_cache_salt(request.caller.cache_salt);
    }
    ASSIGN_OR_RETURN(Arrival arrival, ArrivalOf(request));
    ASSIGN_OR_RETURN(Admitted next, door_.Admit(one, std::move(arrival), /*unary=*/!call_.stream));
    call_.writer->OnRequest(static_cast<int32_t>(i), next.generation.request);
    admitted.push_back(std::move(next));
  }
  call_.requests.clear();
  exchange_->Post([self = shared_from_this(),
                   all = std::make_shared<std::vector<Admitted>>(std::move(admitted))] {
    self->Begin(std::move(*all));
  });
  return absl::OkStatus();
}

void GenerationCall::Begin(std::vector<Admitted> admitted) {
  if (call_.stream) exchange_->AnnounceStream({});
  for (size_t i = 0; i < admitted.size(); ++i) {
    sinks_.push_back(std::make_shared<PromptSink>(shared_from_this(), static_cast<int32_t>(i)));
    sinks_.back()->KeepAlive();
    door_.Open(std::move(admitted[i]), sinks_.back().get());
  }
  // After the edge knows of them: a client that has left already is told of behind that.
  exchange_->WhenGone([self = shared_from_this()] {
    self->over_ = true;
    self->Leave();
  });
}

// Strand: nobody wants what is still running. The sinks stay until the edge has heard of it.
void GenerationCall::Leave() {
  Edge& edge = door_.edge();
  for (const std::shared_ptr<PromptSink>& sink : sinks_) {
    edge.ClientGone(sink.get(), /*deadline_passed=*/false);
    edge.Post([sink] { sink->Release(); });
  }
  sinks_.clear();
}

void GenerationCall::Send(std::string sse) {
  if (sse.empty()) return;
  sent_ = true;
  exchange_->Write(std::move(sse));
}

void GenerationCall::Accepted(int32_t prompt, const RequestStats& stats) {
  if (over_) return;
  std::string sse;
  call_.writer->OnAccepted(prompt, stats, sse);
  Send(std::move(sse));
}

void GenerationCall::PromptLogprobs(int32_t prompt, const std::vector<PromptLogprob>& logprobs) {
  if (!over_) call_.writer->OnPromptLogprobs(prompt, logprobs);
}

void GenerationCall::Deltas(int32_t prompt, const Delta& delta) {
  if (over_) return;
  std::string sse;
  call_.writer->OnDelta(prompt, delta, sse);
  Send(std::move(sse));
}

void GenerationCall::BranchEnded(int32_t prompt, const BranchEnd& end) {
  if (over_) return;
  std::string sse;
  call_.writer->OnBranchEnd(prompt, end, sse);
  Send(std::move(sse));
}

void GenerationCall::Closed(int32_t prompt, const absl::Status& status, bool accepted,
                            const RequestStats& stats) {
  if (over_) return;
  if (!status.ok()) return Fail(status, accepted);
  call_.writer->OnDone(prompt, stats);
  if (++num_closed_ < sinks_.size()) return;
  over_ = true;
  sinks_.clear();
  std::string last = call_.writer->Finish();
  if (call_.stream) {
    exchange_->Write(std::move(last));
    exchange_->End();
  } else {
    exchange_->Reply({.body = std::move(last)});
  }
}

// One prompt failed: so has the answer, and the others' work is of no use.
void GenerationCall::Fail(const absl::Status& failure, bool accepted) {
  const absl::Status status = WithNames(failure, call_.names);
  over_ = true;
  Leave();
  if (accepted && call_.stream && status.code() == absl::StatusCode::kResourceExhausted) {
    return exchange_->Abort();  // a reader that takes nothing would not take an error either
  }
  if (!sent_) return exchange_->Reply(ErrorReply(status));
  exchange_->Write(call_.writer->Fail(status));
  exchange_->End();
}

}  // namespace quire
