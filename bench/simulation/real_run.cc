#include "bench/simulation/real_run.h"

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "scheduler/engine.h"

namespace quire {
namespace {

// What the engine's thread tells, for the thread that posts.
class Observer {
 public:
  explicit Observer(Clock::time_point start) : start_(start) {}

  int64_t Now() const {
    return std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - start_).count();
  }
  void Add(int64_t sent_us, int32_t prompt_tokens) {
    const std::lock_guard lock(mutex_);
    traces_.push_back({.sent_us = sent_us, .prompt_tokens = prompt_tokens});
    ++open_;
  }
  void OnEvents(std::span<const TokenEvent> events) {
    const int64_t now = Now();
    const std::lock_guard lock(mutex_);
    for (const TokenEvent& event : events) {
      if (event.kind == TokenEvent::Kind::kToken) traces_[event.request].token_us.push_back(now);
      if (!event.error.ok()) error_ = event.error;
      if (event.request_done) --open_;
    }
    if (open_ == 0) ended_.notify_all();
  }
  absl::StatusOr<std::vector<RequestTrace>> Wait() {
    std::unique_lock lock(mutex_);
    ended_.wait(lock, [this] { return open_ == 0; });
    if (!error_.ok()) return error_;
    return std::move(traces_);
  }

 private:
  const Clock::time_point start_;
  std::mutex mutex_;
  std::condition_variable ended_;
  std::vector<RequestTrace> traces_;  // [request id]
  int64_t open_ = 0;
  absl::Status error_;
};

// Engine thread. The time from one step's end to the next one's start is the scheduler's.
class TimedExecutor final : public Executor {
 public:
  explicit TimedExecutor(Executor& executor) : executor_(executor) {}
  absl::StatusOr<StepOutput> Run(const ScheduledBatch& batch) override {
    const Clock::time_point start = Clock::now();
    absl::StatusOr<StepOutput> output = executor_.Run(batch);
    const double us = std::chrono::duration<double, std::micro>(Clock::now() - start).count();
    steps_.push_back({.shape = ShapeOf(batch), .us = us});
    return output;
  }
  // After the engine's end.
  std::vector<MeasuredStep> TakeSteps() { return std::move(steps_); }

 private:
  Executor& executor_;
  std::vector<MeasuredStep> steps_;
};

}  // namespace

absl::StatusOr<RealRun> RunForReal(const SimulationConfig& config, ModelRuntime& runtime,
                                   TraceSource& trace) {
  ASSIGN_OR_RETURN(const SchedulerOptions options, SchedulingOf(config));
  const auto vocab_size = static_cast<int32_t>(runtime.config().vocab_size);
  const TokenRange range{.first = 0, .count = vocab_size};
  Scheduler scheduler(options, runtime.block_manager());
  const Clock::time_point start = Clock::now();
  Observer observer(start);
  TimedExecutor executor(runtime.executor());
  Engine engine(scheduler, executor,
                [&](std::span<const TokenEvent> events) { observer.OnEvents(events); });
  engine.Start();
  TraceRequest next;
  RequestId id = 0;
  for (;;) {
    ASSIGN_OR_RETURN(const bool more, trace.Next(next));
    if (!more) break;
    auto request = std::make_shared<Request>();
    request->id = id++;
    request->prompt = PromptTokens(next, range);
    request->sampling.temperature = 0;
    request->stop.max_tokens = next.output_tokens;
    request->seed = next.answer;
    request->priority = next.priority;
    request->tenant = next.tenant;
    std::this_thread::sleep_until(start + std::chrono::microseconds(next.arrival_us));
    request->arrival = Clock::now();
    if (!engine.TryEnter()) {
      return Error(absl::StatusCode::kResourceExhausted,
                   "max_queued_requests={} are waiting; lower the rate",
                   config.scheduler.max_queued_requests);
    }
    // From the time that was planned: a late wake-up counts, as for a client.
    observer.Add(next.arrival_us, static_cast<int32_t>(request->prompt.size()));
    if (!engine.Post({std::move(request)})) {
      return absl::UnavailableError("the engine has ended, the device is lost");
    }
  }
  RealRun run;
  ASSIGN_OR_RETURN(run.traces, observer.Wait());
  engine.Drain(Clock::time_point::min());
  engine.Join();
  run.steps = executor.TakeSteps();
  return run;
}

}  // namespace quire
