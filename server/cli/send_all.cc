#include "server/cli/send_all.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <utility>

#include "clients/cpp/generation_client.h"

namespace quire {
namespace {

namespace pb = ::quire::v1;
using SteadyClock = std::chrono::steady_clock;

class Sender {
 public:
  Sender(pb::Generation::Stub& stub, const std::vector<pb::GenerateRequest>& requests)
      : stub_(stub), requests_(requests) {}

  RunTotals Execute(int32_t concurrency) {
    totals_.traces.resize(requests_.size());
    start_ = SteadyClock::now();
    const size_t first = std::min(requests_.size(), static_cast<size_t>(std::max(1, concurrency)));
    num_open_ = first;
    next_ = first;
    for (size_t i = 0; i < first; ++i) (new Call(*this, i))->Start();
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return num_open_ == 0; });
    return std::move(totals_);
  }

 private:
  class Call final : public grpc::ClientReadReactor<pb::GenerateEvent> {
   public:
    Call(Sender& sender, size_t index) : sender_(sender), index_(index) {}
    void Start() {
      const pb::GenerateRequest& request = sender_.requests_[index_];
      trace().prompt_tokens = request.token_ids().ids_size();
      trace().sent_us = sender_.Now();
      sender_.stub_.async()->Generate(&context_, &request, this);
      StartRead(&event_);
      StartCall();
    }
    void OnReadDone(bool ok) override {
      if (!ok) return;  // OnDone follows
      ++events_;
      for (int i = 0; i < event_.delta().token_ids_size(); ++i) {
        trace().token_us.push_back(sender_.Now());
      }
      if (event_.has_usage()) usage_ = event_.usage();
      StartRead(&event_);
    }
    void OnDone(const grpc::Status& status) override {
      sender_.Done(status, usage_, events_);
      delete this;
    }

   private:
    // Only this call's reactions touch it until Done.
    RequestTrace& trace() { return sender_.totals_.traces[index_]; }

    Sender& sender_;
    const size_t index_;
    grpc::ClientContext context_;
    pb::GenerateEvent event_;
    pb::Usage usage_;
    uint64_t events_ = 0;
  };

  int64_t Now() const {
    return std::chrono::duration_cast<std::chrono::microseconds>(SteadyClock::now() - start_)
        .count();
  }

  void Done(const grpc::Status& status, const pb::Usage& usage, uint64_t events) {
    size_t next = SIZE_MAX;
    {
      const std::lock_guard lock(mutex_);
      if (!status.ok() && totals_.error.empty()) {
        totals_.error = ToStatus(status).ToString();
      }
      totals_.output_tokens += usage.completion_tokens();
      totals_.cached_tokens += usage.cached_tokens();
      totals_.preemptions += usage.preemptions();
      totals_.events += events;
      if (next_ < requests_.size() && totals_.error.empty()) {
        next = next_++;
      } else if (--num_open_ == 0) {
        changed_.notify_all();
      }
    }
    if (next != SIZE_MAX) (new Call(*this, next))->Start();
  }

  pb::Generation::Stub& stub_;
  const std::vector<pb::GenerateRequest>& requests_;
  SteadyClock::time_point start_;
  std::mutex mutex_;
  std::condition_variable changed_;
  size_t num_open_ = 0;  // guarded by mutex_, as are the next two
  size_t next_ = 0;
  RunTotals totals_;  // .traces[i] belongs to call i until it is done
};

}  // namespace

RunTotals SendAll(pb::Generation::Stub& stub, const std::vector<pb::GenerateRequest>& requests,
                  int32_t concurrency) {
  return Sender(stub, requests).Execute(concurrency);
}

}  // namespace quire
