#include "bench/ops_run.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>

#include "scheduler/scheduler.h"

namespace quire {

absl::StatusOr<LatencySummary> RunOps(const Workload& workload, const OpsRunOptions& options,
                                      ModelRuntime& runtime, kernels::OpProfile* profile) {
  SchedulerOptions scheduling;
  scheduling.max_num_seqs = options.max_num_seqs;
  scheduling.max_num_batched_tokens = options.max_num_batched_tokens;
  scheduling.max_model_len = runtime.max_model_len();
  scheduling.max_queued_requests = static_cast<int32_t>(workload.prompts.size());
  RETURN_IF_ERROR(Validate(scheduling));
  Scheduler scheduler(scheduling, runtime.block_manager());
  std::vector<TokenEvent> events;
  std::vector<RequestTrace> traces;
  const Clock::time_point start = Clock::now();
  const auto now = [start] {
    return std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - start).count();
  };
  for (const std::vector<TokenId>& prompt : workload.prompts) {
    auto request = std::make_shared<Request>();
    request->id = traces.size();
    request->prompt = prompt;
    request->sampling.temperature = 0;
    request->stop.max_tokens = workload.max_tokens;
    request->arrival = Clock::now();
    traces.push_back({.sent_us = now(), .prompt_tokens = static_cast<int32_t>(prompt.size())});
    scheduler.Apply(Submit{std::move(request)}, events);
  }
  absl::Status failed;
  const auto take_events = [&] {
    for (const TokenEvent& event : events) {
      if (event.kind == TokenEvent::Kind::kToken) {
        traces[static_cast<size_t>(event.request)].token_us.push_back(now());
      }
      if (!event.error.ok()) failed = event.error;
    }
    events.clear();
  };
  take_events();  // of requests that are refused at once
  runtime.set_profile(profile);
  while (failed.ok() && !scheduler.idle()) {
    BeginOp(profile, kernels::Op::kSchedule);
    const ScheduledBatch batch = scheduler.Schedule(events);
    if (!batch.empty()) {
      const absl::StatusOr<StepOutput> output = runtime.executor().Run(batch);
      BeginOp(profile, kernels::Op::kSchedule);
      if (output.ok()) {
        scheduler.Commit(batch, *output, events);
      } else {
        failed = output.status();
        scheduler.Fail(batch, failed, events);
      }
    }
    take_events();
  }
  if (profile != nullptr) profile->Pause();
  runtime.set_profile(nullptr);
  RETURN_IF_ERROR(failed);
  return Summarize(traces);
}

}  // namespace quire
