// bench/scheduler_load.h -- the real scheduler and cache under a steady load, without a model: so
// many sequences run, so many requests wait. For scheduler_bench.cc and tests/scheduler_work_test.
//
// A step is Schedule, Fill (rows of made-up tokens), Commit; who measures does so around the calls.
// Everything is a function of the options: requests by their ids, ends by the executor, time stands
// still unless `clock` is given.
//
// What the waiting ones wait for:
//   places  max_num_seqs are running and go on. The queue is asked nothing.
//   pages   there are places, but not the pages: the next one is tried in vain in each step.
//   turn    `ends` sequences of each step end, and as many requests begin; Refill() submits others.
//           All prompts begin with one of kPrefixes shared texts, so what begins has only its last
//           kOwnTokens to kOwnTokens + kBlockSize tokens to compute; `cold`: all of them.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "scheduler/scheduler.h"

namespace quire {

enum class WaitFor : uint8_t { kPlaces, kPages, kTurn };

struct SchedulerLoadOptions {
  SchedulingPolicy policy = SchedulingPolicy::kFcfs;
  WaitFor wait_for = WaitFor::kTurn;
  int32_t running = 256;
  int32_t context = 2048;  // tokens of a prompt; about
  int32_t waiting = 10'000;
  int32_t tenants = 1000;
  int32_t ends = 2;      // of running sequences in each step, with kTurn
  bool cold = false;     // prompts have nothing in common
  int32_t steps = 300;   // for which there are pages
  Scheduler::Now clock;  // null: stands still
};

class SchedulerLoad {
 public:
  static constexpr int32_t kBlockSize = 16;
  static constexpr int32_t kOwnTokens = 32;
  static constexpr int32_t kPrefixes = 8;
  // Prompts of those further back in the queue are short, and their outputs longer by as much: they
  // are not reached, and memory is finite.
  static constexpr int32_t kLongPrompts = 4000;
  static constexpr TokenId kEnd = 7;

  explicit SchedulerLoad(const SchedulerLoadOptions& load) : load_(load) {
    CHECK(load.context >= kOwnTokens + 2 * kBlockSize, "context of {} tokens", load.context);
    total_tokens_ = load.context + 2 * kBlockSize + load.steps + 64;
    layout_.block_size = kBlockSize;
    layout_.groups = {{.group = {.page_size = kBlockSize}}};
    layout_.pools = {{64}};
    const int32_t of_one = (total_tokens_ + kBlockSize - 1) / kBlockSize + 1;
    const bool for_pages = load.wait_for == WaitFor::kPages;
    pools_.emplace_back((load.running + 8) * of_one, kBlockSize);
    blocks_ = std::make_unique<BlockManager>(layout_, pools_,
                                             BlockManagerOptions{.max_step_tokens = 8192});
    SchedulerOptions options;
    options.policy = load.policy;
    options.max_model_len = total_tokens_;
    options.max_num_seqs = for_pages ? 2 * load.running : load.running;
    options.max_num_batched_tokens = 8192;
    options.max_queued_requests = load.running + load.waiting + 16;
    const Scheduler::Now frozen = [] { return Clock::time_point{} + std::chrono::hours(1); };
    now_ = load.clock ? load.clock : frozen;
    scheduler_ = std::make_unique<Scheduler>(options, *blocks_, now_);
    for (int32_t p = 0; p < kPrefixes; ++p) {
      std::vector<TokenId>& prefix = prefixes_.emplace_back();
      for (int32_t i = 0; i < load.context; ++i) prefix.push_back(Token(-p - 1, i));
    }
    for (int32_t i = 0; i < load.running; ++i) SubmitOne(1);
    while (!AllRun()) Step();
    if (for_pages) {
      // All that is left now is kept free for those that run.
      const PagePool& pool = pools_[0];
      SchedulerUpdate update;
      update.watermark = static_cast<double>(pool.num_available()) / pool.num_usable();
      const absl::Status updated = scheduler_->Update(update);
      CHECK(updated.ok(), "{}", updated.ToString());
    }
    Refill();
    ends_ = load.wait_for == WaitFor::kTurn ? load.ends : 0;
  }

  // Submits until `waiting` requests wait.
  void Refill() {
    while (scheduler_->stats().queued_requests < load_.waiting) {
      SubmitOne(next_id_ % 4 != 0 ? 1 : 0);
    }
    events_.clear();
  }
  void Schedule() { batch_ = scheduler_->Schedule(events_); }
  void Fill() {
    output_.rows.clear();
    const size_t num = batch_.seqs.size();
    for (size_t i = 0; i < num; ++i) {
      const ScheduledSeq& s = batch_.seqs[i];
      if (s.num_samples == 0) continue;
      CHECK(s.num_samples == 1 && s.num_drafts == 0, "{} samples", s.num_samples);
      output_.rows.push_back({.seq_index = static_cast<int32_t>(i)});
      output_.rows.back().sampled.token =
          Token(static_cast<int64_t>(s.seq->id), s.seq->num_tokens());
    }
    // Spread over the order.
    for (int32_t k = 0; k < ends_ && num > 0; ++k) {
      const size_t row = (static_cast<size_t>(steps_) * 97 + static_cast<size_t>(k) * 131) % num;
      output_.rows[row].sampled.token = kEnd;
    }
    ++steps_;
  }
  void Commit() {
    scheduler_->Commit(batch_, output_, events_);
    events_.clear();
  }
  void Step() {
    Schedule();
    Fill();
    Commit();
  }

  const ScheduledBatch& batch() const { return batch_; }
  Scheduler& scheduler() { return *scheduler_; }

 private:
  static TokenId Token(int64_t text, int32_t at) {
    uint64_t h = static_cast<uint64_t>(text) * 0x9e3779b97f4a7c15ull + static_cast<uint64_t>(at);
    h ^= h >> 31;
    h *= 0xff51afd7ed558ccdull;
    return static_cast<TokenId>(8 + (h >> 33) % 40'000);
  }
  bool AllRun() const {
    const SchedulerStats s = scheduler_->stats();
    return s.running_seqs == load_.running && s.generated_tokens >= load_.running &&
           batch_.num_tokens == load_.running;
  }
  void SubmitOne(int32_t priority) {
    auto request = std::make_shared<Request>();
    const auto id = static_cast<int64_t>(next_id_++);
    request->id = static_cast<RequestId>(id);
    const bool is_short = id > load_.running + kLongPrompts && !refilled_;
    // Blocks of different sequences become full in different steps.
    const int32_t prompt = is_short ? 64 : load_.context + static_cast<int32_t>(id) % kBlockSize;
    if (!is_short && !load_.cold) {
      const std::vector<TokenId>& prefix = prefixes_[static_cast<size_t>(id % kPrefixes)];
      request->prompt.assign(prefix.begin(), prefix.end() - kOwnTokens);
    }
    for (int32_t i = 0; static_cast<int32_t>(request->prompt.size()) < prompt; ++i) {
      request->prompt.push_back(Token(id, i));
    }
    request->stop.max_tokens = total_tokens_ - prompt;
    request->stop.eos_token_ids = {kEnd};
    request->sampling.temperature = 0;
    request->priority = priority;
    request->tenant = "tenant " + std::to_string(id % load_.tenants);
    request->deadline = now_() + std::chrono::hours(24) + std::chrono::microseconds(id);
    scheduler_->Apply(Submit{std::move(request)}, events_);
    for (const TokenEvent& e : events_) CHECK(e.error.ok(), "{}", e.error.ToString());
    refilled_ = refilled_ || id >= load_.running + load_.waiting;
  }

  const SchedulerLoadOptions load_;
  int32_t total_tokens_ = 0;
  CacheLayout layout_;
  std::vector<PagePool> pools_;
  std::unique_ptr<BlockManager> blocks_;
  Scheduler::Now now_;
  std::unique_ptr<Scheduler> scheduler_;
  std::vector<std::vector<TokenId>> prefixes_;
  std::vector<TokenEvent> events_;
  ScheduledBatch batch_;
  StepOutput output_;
  RequestId next_id_ = 1;
  bool refilled_ = false;
  int32_t ends_ = 0;
  int64_t steps_ = 0;
};

}  // namespace quire
