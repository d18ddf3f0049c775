#include "scheduler/engine.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <utility>

#include "base/thread_name.h"

namespace quire {
namespace {

constexpr std::chrono::seconds kRestBeforeAudit{1};

int64_t MicrosecondsBetween(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration_cast<std::chrono::microseconds>(to - from).count();
}

// The least i with value <= 2^i, at most `last`.
size_t BucketOf(int64_t value, size_t last) {
  if (value <= 1) return 0;
  return std::min(last, static_cast<size_t>(std::bit_width(static_cast<uint64_t>(value - 1))));
}

}  // namespace

void StepTimes::Add(int64_t us) {
  ++counts[BucketOf(us, kNumStepTimeBuckets)];
  sum_us += us;
}

Engine::Engine(Scheduler& scheduler, Executor& executor, Publish publish, OnFatal on_fatal)
    : scheduler_(scheduler),
      executor_(executor),
      publish_(std::move(publish)),
      on_fatal_(std::move(on_fatal)),
      max_queued_(scheduler.options().max_queued_requests),
      inbox_(static_cast<size_t>(scheduler.options().max_queued_requests)) {}

Engine::~Engine() {
  if (!thread_.joinable()) return;
  Drain(Clock::time_point::min());
  Join();
}

void Engine::Start() {
  CHECK(!thread_.joinable() && !closed_, "an engine is started once");
  accepting_ = true;
  thread_ = std::thread([this] {
    SetThreadName("quire-engine");
    Loop();
  });
}

bool Engine::TryEnter() {
  int32_t entered = entered_.load(std::memory_order_relaxed);
  do {
    if (entered >= max_queued_.load(std::memory_order_relaxed) || !accepting()) return false;
  } while (!entered_.compare_exchange_weak(entered, entered + 1, std::memory_order_relaxed));
  return true;
}

void Engine::Leave() { entered_.fetch_sub(1, std::memory_order_relaxed); }

bool Engine::Post(Submit submit) {
  const std::lock_guard lock(post_mutex_);
  if (!accepting()) return false;
  inbox_.ForcePush(std::move(submit));
  return true;
}

void Engine::PostCancel(Cancel cancel) { ForcePost(std::move(cancel)); }
void Engine::PostFinish(Finish finish) { ForcePost(finish); }
bool Engine::PostAdminCall(AdminCall call) { return ForcePost(std::move(call)); }

bool Engine::ForcePost(Command command) {
  const std::lock_guard lock(post_mutex_);
  if (closed_) return false;
  inbox_.ForcePush(std::move(command));
  return true;
}

void Engine::Drain(Clock::time_point deadline) {
  const std::lock_guard lock(post_mutex_);
  accepting_ = false;
  drain_.requested = true;
  drain_.deadline = std::min(drain_.deadline, deadline);
  if (!closed_) inbox_.ForcePush(AdminCall{[](Scheduler&) {}});  // wakes an idle engine
}

void Engine::Join() {
  if (thread_.joinable()) thread_.join();
}

EngineSnapshot Engine::snapshot() const {
  const std::lock_guard lock(snapshot_mutex_);
  return snapshot_;
}

Engine::DrainRequest Engine::drain_request() const {
  const std::lock_guard lock(post_mutex_);
  return drain_;
}

void Engine::Loop() {
  absl::Status fatal;
  while (fatal.ok()) {
    // Read before the inbox is: what was posted before a drain is seen by the step that sees the
    // drain, so an idle engine may end.
    const DrainRequest drain = drain_request();
    fatal = Step(drain);
    if (drain.requested && scheduler_.idle()) break;
  }
  Close(fatal);
}

// A request's life, one line per stage.
absl::Status Engine::Step(const DrainRequest& drain) {
  absl::Status fatal;
  // Sleeps only without requests, as long as there is one Schedule finds work; or while paused, up
  // to the next deadline. Wakes once for an audit after a second of rest: it takes milliseconds
  // with a large pool, so not between one request and the next.
  if (drain.requested) scheduler_.SetPaused(false);
  const bool rests = scheduler_.idle() || scheduler_.paused();
  Clock::time_point wake = audited_ ? Clock::time_point::max() : Clock::now() + kRestBeforeAudit;
  wake = std::min({wake, scheduler_.next_deadline(), drain.deadline});
  inbox_.Drain(commands_, /*wait=*/rests && !(drain.requested && scheduler_.idle()), {}, wake);
  if (commands_.empty() && rests && !audited_) Audit();
  for (Command& command : commands_) scheduler_.Apply(std::move(command), events_);
  commands_.clear();
  max_queued_.store(scheduler_.options().max_queued_requests, std::memory_order_relaxed);
  if (drain.requested && Clock::now() >= drain.deadline) {
    scheduler_.EndAll(FinishReason::kCancelled,
                      absl::UnavailableError("the server is shutting down; retry elsewhere"),
                      events_);
  }
  const Clock::time_point begin = Clock::now();
  const ScheduledBatch batch = scheduler_.Schedule(events_);
  if (!batch.empty()) {
    const Clock::time_point scheduled = Clock::now();
    const absl::StatusOr<StepOutput> output = executor_.Run(batch);
    const Clock::time_point computed = Clock::now();
    if (output.ok()) {
      scheduler_.Commit(batch, *output, events_);
    } else {
      scheduler_.Fail(batch, output.status(), events_);
      if (output.status().code() == absl::StatusCode::kUnavailable) {
        fatal = output.status();
        scheduler_.EndAll(FinishReason::kError, fatal, events_);
      }
    }
    ++steps_.tokens[BucketOf(batch.num_tokens, StepStats::kNumTokenBuckets)];
    steps_.sum_tokens += batch.num_tokens;
    steps_.schedule.Add(MicrosecondsBetween(begin, scheduled));
    steps_.run.Add(MicrosecondsBetween(scheduled, computed));
    steps_.commit.Add(MicrosecondsBetween(computed, Clock::now()));
  }
  if (!batch.empty() || !events_.empty()) audited_ = false;
  PublishEvents();
#ifdef QUIRE_DEBUG_CHECKS
  // An audit looks at every page, so with many of them only one step in some is audited.
  if (++steps_since_audit_ >= StepsPerAudit(scheduler_.blocks())) Audit();
#endif
  return fatal;
}

void Engine::Audit() {
  const absl::Status sound = scheduler_.Audit();
  CHECK(sound.ok(), "{}", Message(sound));
  audited_ = true;
  steps_since_audit_ = 0;
}

int64_t StepsPerAudit(const BlockManager& blocks) {
  constexpr int64_t kPagesPerStep = 20'000;
  int64_t pages = 0;
  for (const PagePool& pool : blocks.pools()) pages += pool.num_usable();
  for (const PagePool& pool : blocks.host_pools()) pages += pool.num_usable();
  return std::max<int64_t>(1, (pages + kPagesPerStep - 1) / kPagesPerStep);
}

void Engine::UpdateSnapshot() {
  EngineSnapshot next;
  next.scheduler = scheduler_.stats();
  const BlockManager& blocks = std::as_const(scheduler_).blocks();
  for (size_t i = 0; i < blocks.pools().size(); ++i) {
    const PagePool& pool = blocks.pools()[i];
    PoolSnapshot& out = next.pools.emplace_back();
    out.num_usable = pool.num_usable();
    out.num_used = pool.num_active();
    out.num_cached = pool.num_cached();
    out.num_free = pool.num_blank();
    out.num_retiring = pool.num_to_retire();
    out.num_pinned = blocks.pinned_pages(i);
    out.num_shared = pool.num_shared();
    out.num_refs = pool.num_refs();
    out.stats = pool.stats();
    if (blocks.host_pools().empty()) continue;
    const PagePool& host = blocks.host_pools()[i];
    out.num_host = host.num_usable();
    out.num_swapped = host.num_active();
    out.num_host_cached = host.num_cached();
    out.host_stats = host.stats();
  }
  next.cache = blocks.stats();
  next.steps = steps_;
  next.drafts = scheduler_.draft_stats();
  next.num_prefix_roots = static_cast<int64_t>(blocks.num_roots());
  next.num_prefix_nodes = static_cast<int64_t>(blocks.num_prefix_nodes());
  next.num_pins = static_cast<int64_t>(blocks.num_pins());
  const int64_t left = next.scheduler.left_queue;
  entered_.fetch_sub(static_cast<int32_t>(left - std::exchange(places_returned_, left)),
                     std::memory_order_relaxed);
  const std::lock_guard lock(snapshot_mutex_);
  std::swap(snapshot_, next);
}

// Also without a step: after cancels alone the gauges must fall, too.
void Engine::PublishEvents() {
  UpdateSnapshot();
  if (on_cache_events_ != nullptr) {
    CacheEvents cache = scheduler_.blocks().TakeEvents();
    if (!cache.empty()) on_cache_events_(std::move(cache));
  }
  if (!events_.empty()) publish_(events_);
  events_.clear();
}

void Engine::Close(const absl::Status& fatal) {
  {
    const std::lock_guard lock(post_mutex_);
    accepting_ = false;
    closed_ = true;
  }
  // After a drain there are at most late cancels and admin calls; after a lost device there may be
  // requests, too.
  inbox_.Drain(commands_, /*wait=*/false, {});
  for (Command& command : commands_) scheduler_.Apply(std::move(command), events_);
  commands_.clear();
  scheduler_.EndAll(FinishReason::kError, fatal, events_);
  PublishEvents();
  if (!fatal.ok() && on_fatal_ != nullptr) on_fatal_(fatal);
}

}  // namespace quire
