#include "bench/simulation/simulator.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "bench/simulation/fake_model.h"
#include "bench/simulation/router.h"
#include "scheduler/scheduler.h"

namespace quire {
namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
// A century, so that no sum of times overflows; a step is never longer than the third of it.
constexpr int64_t kLongestNs = int64_t{3'000'000'000} * 1'000'000'000;

// What is to be known of a request until it ends.
struct Live {
  int64_t arrival_ns = 0;
  int64_t first_ns = -1;  // tokens
  int64_t last_ns = 0;
  RequestFigures* tenant = nullptr;
  RequestFigures* priority = nullptr;
};

CacheLayout Layout(const SimulationConfig& config) {
  CacheLayout layout;
  layout.block_size = config.block_size;
  layout.groups.push_back({.group = {.page_size = config.block_size}});
  layout.pools.push_back({.page_bytes = 64});
  return layout;
}

// One server: scheduler, cache and the step in progress.
struct Server {
  Server(const SimulationConfig& config, const SchedulerOptions& options, const CacheLayout& layout,
         Scheduler::Now now) {
    pools.emplace_back(config.num_blocks, config.block_size);
    if (config.host_blocks > 0) host_pools.emplace_back(config.host_blocks, config.block_size);
    blocks = std::make_unique<BlockManager>(
        layout, pools, BlockManagerOptions{.max_step_tokens = options.max_num_batched_tokens},
        host_pools);
    scheduler = std::make_unique<Scheduler>(options, *blocks, std::move(now));
  }
  std::vector<PagePool> pools, host_pools;
  std::unique_ptr<BlockManager> blocks;
  std::unique_ptr<Scheduler> scheduler;
  std::vector<Submit> inbox;
  ScheduledBatch batch;
  StepOutput output;
  int64_t step_start_ns = 0;
  int64_t step_end_ns = kNever;  // kNever: idle
};

class Simulation {
 public:
  Simulation(const SimulationConfig& config, const SchedulerOptions& options,
             const StepCostModel& cost)
      : config_(config),
        cost_(cost),
        layout_(Layout(config)),
        router_(config.routing, static_cast<size_t>(config.replicas)) {
    for (int32_t i = 0; i < config.replicas; ++i) {
      servers_.push_back(
          std::make_unique<Server>(config, options, layout_, [this] { return TimeOf(now_ns_); }));
    }
    loads_.resize(servers_.size());
    report_.requests_of_replica.resize(servers_.size());
  }

  absl::StatusOr<SimulationReport> Run(TraceSource& trace) {
    const Clock::time_point start = Clock::now();
    TraceRequest next;
    ASSIGN_OR_RETURN(bool more, trace.Next(next));
    const int64_t first_ns = more ? next.arrival_us * 1000 : 0;
    for (;;) {
      const int64_t arrival_ns = more ? next.arrival_us * 1000 : kNever;
      size_t first = 0;  // to end its step
      for (size_t i = 1; i < servers_.size(); ++i) {
        if (servers_[i]->step_end_ns < servers_[first]->step_end_ns) first = i;
      }
      const int64_t end_ns = servers_[first]->step_end_ns;
      if (arrival_ns == kNever && end_ns == kNever) break;
      if (std::min(arrival_ns, end_ns) > kLongestNs) {
        return InvalidArgument(
            "{} requests have not ended after a century; lower the cost of a step or raise the "
            "rate",
            live_.size());
      }
      if (arrival_ns <= end_ns) {
        now_ns_ = arrival_ns;
        Arrive(next);
        ASSIGN_OR_RETURN(more, trace.Next(next));
      } else {
        now_ns_ = end_ns;
        EndStep(first);
      }
    }
    Finish(first_ns);
    report_.wall_s = std::chrono::duration<double>(Clock::now() - start).count();
    return std::move(report_);
  }

 private:
  static Clock::time_point TimeOf(int64_t ns) {
    // Not at the clock's zero, which means "not yet" to the scheduler.
    return Clock::time_point{} + std::chrono::hours(1) +
           std::chrono::duration_cast<Clock::duration>(std::chrono::nanoseconds(ns));
  }

  void Arrive(const TraceRequest& traced) {
    const size_t i = router_.Route(traced, loads_);
    ++loads_[i];
    ++report_.requests_of_replica[i];
    auto request = std::make_shared<Request>();
    request->id = ++last_id_;
    request->prompt = PromptTokens(traced);
    request->sampling.temperature = 0;
    request->stop.max_tokens = traced.output_tokens;
    request->seed = traced.answer;
    request->priority = traced.priority;
    request->tenant = traced.tenant;
    request->arrival = TimeOf(now_ns_);
    Live& live = live_[request->id];
    live.arrival_ns = now_ns_;
    live.priority =
        FiguresOf(report_.priorities, traced.priority, std::numeric_limits<int32_t>::min());
    if (!traced.tenant.empty()) {
      live.tenant = FiguresOf(report_.tenants, traced.tenant, std::string("others"));
    }
    servers_[i]->inbox.push_back({std::move(request)});
    if (servers_[i]->step_end_ns == kNever) StartStep(i);
  }

  template <typename Key>
  static RequestFigures* FiguresOf(std::map<Key, RequestFigures>& kinds, const Key& key,
                                   const Key& others) {
    const bool full = kinds.size() >= SimulationReport::kMaxKinds && kinds.count(key) == 0;
    return &kinds[full ? others : key];
  }

  void StartStep(size_t i) {
    Server& s = *servers_[i];
    for (Submit& submit : s.inbox) s.scheduler->Apply(std::move(submit), events_);
    s.inbox.clear();
    const Clock::time_point start = Clock::now();
    s.batch = s.scheduler->Schedule(events_);
    scheduling_ += Clock::now() - start;
    Count(i);
    if (s.batch.empty()) {
      s.step_end_ns = kNever;
      return;
    }
    s.output = *model_.Run(s.batch);
    const double us = cost_.StepUs(ShapeOf(s.batch));
    s.step_start_ns = now_ns_;
    const double ns = std::min(us * 1e3, static_cast<double>(kLongestNs) / 3);
    s.step_end_ns = now_ns_ + std::max<int64_t>(1, std::llround(ns));
    Watch(s);
  }

  void EndStep(size_t i) {
    Server& s = *servers_[i];
    const Clock::time_point start = Clock::now();
    s.scheduler->Commit(s.batch, s.output, events_);
    scheduling_ += Clock::now() - start;
    Count(i);
    StartStep(i);
  }

  // Shares, weighted by the time of the step that begins.
  void Watch(const Server& s) {
    const double seconds = static_cast<double>(s.step_end_ns - s.step_start_ns) / 1e9;
    const PagePool& pool = s.pools[0];
    const double usable = pool.num_usable();
    int64_t empty_slots = 0;
    for (const ScheduledSeq& seq : s.batch.seqs) {
      const int32_t end = seq.first_pos + seq.num_tokens;
      empty_slots += (config_.block_size - end % config_.block_size) % config_.block_size;
    }
    report_.busy_s += seconds;
    report_.pool_used += seconds * pool.num_active() / usable;
    report_.pool_cached += seconds * pool.num_cached() / usable;
    if (pool.num_active() > 0) {
      report_.padding += seconds * static_cast<double>(empty_slots) /
                         (static_cast<double>(pool.num_active()) * config_.block_size);
    }
    report_.batch_fill +=
        seconds * s.batch.num_tokens / s.scheduler->options().max_num_batched_tokens;
    report_.batch_seqs += seconds * static_cast<double>(s.batch.seqs.size());
    report_.copies += static_cast<int64_t>(s.batch.copies.size());
  }

  void Count(size_t i) {
    for (const TokenEvent& event : events_) {
      const auto it = live_.find(event.request);
      CHECK(it != live_.end(), "event of request {}, which has ended", event.request);
      Live& live = it->second;
      RequestFigures* const figures[] = {&report_.all, live.priority, live.tenant};
      if (event.kind == TokenEvent::Kind::kAccepted) {
        for (RequestFigures* f : figures) {
          if (f != nullptr) f->queue_us.Add(event.stats.queue_us);
        }
      } else if (event.kind == TokenEvent::Kind::kToken) {
        const bool is_first = live.first_ns < 0;
        const int64_t us = (now_ns_ - (is_first ? live.arrival_ns : live.last_ns)) / 1000;
        for (RequestFigures* f : figures) {
          if (f != nullptr) (is_first ? f->ttft_us : f->itl_us).Add(us);
        }
        if (is_first) live.first_ns = now_ns_;
        live.last_ns = now_ns_;
      }
      if (!event.request_done) continue;
      for (RequestFigures* f : figures) {
        if (f != nullptr) CountEnd(event, live, *f);
      }
      if (event.finish != FinishReason::kError) {
        const RequestStats& stats = event.stats;
        report_.needed_tokens +=
            stats.prompt_tokens - stats.cached_tokens + stats.completion_tokens - 1;
        report_.rejected_drafts += stats.draft_tokens - stats.accepted_draft_tokens;
      }
      --loads_[i];
      last_end_ns_ = now_ns_;
      live_.erase(it);
    }
    events_.clear();
  }

  void CountEnd(const TokenEvent& event, const Live& live, RequestFigures& f) const {
    if (event.finish == FinishReason::kError) {
      ++f.refused;
      return;
    }
    const RequestStats& stats = event.stats;
    ++f.finished;
    f.prompt_tokens += stats.prompt_tokens;
    f.output_tokens += stats.completion_tokens;
    f.cached_tokens += stats.cached_tokens;
    f.preemptions += stats.preemptions;
    f.e2e_us.Add((live.last_ns - live.arrival_ns) / 1000);
    const double ttft_ms = static_cast<double>(live.first_ns - live.arrival_ns) / 1e6;
    const double itl_ms = static_cast<double>(live.last_ns - live.first_ns) / 1e6 /
                          std::max(1, stats.completion_tokens - 1);
    f.good += (config_.ttft_slo_ms == 0 || ttft_ms <= config_.ttft_slo_ms) &&
              (config_.itl_slo_ms == 0 || itl_ms <= config_.itl_slo_ms);
  }

  void Finish(int64_t first_ns) {
    CHECK(live_.empty(), "{} requests have not ended", live_.size());
    SimulationReport& r = report_;
    r.duration_s = static_cast<double>(last_end_ns_ - first_ns) / 1e9;
    for (const std::unique_ptr<Server>& s : servers_) {
      const SchedulerStats stats = s->scheduler->stats();
      r.steps += stats.steps;
      r.computed_tokens += stats.scheduled_tokens;
      r.preemptions += stats.preemptions;
    }
    const double busy = std::max(r.busy_s, 1e-9);
    for (double* share : {&r.pool_used, &r.pool_cached, &r.padding, &r.batch_fill, &r.batch_seqs}) {
      *share /= busy;
    }
    r.scheduler_s = std::chrono::duration<double>(scheduling_).count();
  }

  const SimulationConfig& config_;
  const StepCostModel& cost_;
  const CacheLayout layout_;
  Router router_;
  FakeModel model_;
  std::vector<std::unique_ptr<Server>> servers_;
  std::vector<int64_t> loads_;  // of servers: requests that have not ended
  absl::flat_hash_map<RequestId, Live> live_;
  std::vector<TokenEvent> events_;  // of the call before; empty between events of the simulation
  SimulationReport report_;
  RequestId last_id_ = 0;
  int64_t now_ns_ = 0;
  int64_t last_end_ns_ = 0;
  Clock::duration scheduling_{};
};

}  // namespace

absl::StatusOr<SimulationReport> Simulate(const SimulationConfig& config, const StepCostModel& cost,
                                          TraceSource& trace) {
  ASSIGN_OR_RETURN(const SchedulerOptions options, SchedulingOf(config));
  return Simulation(config, options, cost).Run(trace);
}

}  // namespace quire
