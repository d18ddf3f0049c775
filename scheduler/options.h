// scheduler/options.h -- what an operator can set about scheduling. Plain data; what may change
// while serving goes through Scheduler::Update.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "base/types.h"

namespace quire {

enum class PreemptionMode : uint8_t {
  kRecompute,  // pages are given back and their content is computed again
  kSwap,       // what no prefix keeps is saved in the host tier; recompute if that is full
  kAuto,       // whichever took less time lately
};

inline constexpr int32_t kMaxSpeculativeTokens = 64;

// In which order requests are started; see request_queue.h.
enum class SchedulingPolicy : uint8_t {
  kFcfs,
  kPriority,
  kShortestFirst,
  kFair,
  kPrefixAware,
};

struct SchedulerOptions {
  int32_t max_num_seqs = 64;             // branches in the running set
  int32_t max_num_batched_tokens = 512;  // computed per step; at least max_num_seqs
  // Rows of logits per step, which the memory of a step is sized for: one for each branch, more for
  // guesses and prompt logprobs. 0 = max_num_seqs; then a single place leaves no row for a guess.
  int32_t max_logit_rows = 0;
  int32_t max_model_len = 0;           // tokens, prompt + max_tokens; must be set
  int32_t max_queued_requests = 1024;  // accepted and not yet scheduled
  bool enable_prefix_caching = true;   // false: a prefix is shared only inside its request
  // Share of each pool that admitting a request must leave free, so that running sequences can grow
  // before somebody has to be preempted. Ignored while nothing runs.
  double watermark = 0.01;
  PreemptionMode preemption = PreemptionMode::kRecompute;

  SchedulingPolicy policy = SchedulingPolicy::kFcfs;
  // kPriority: waiting so long is worth one level of priority.
  int32_t priority_aging_ms = 10'000;
  // kShortestFirst: a token more (prompt + max_tokens) lets later requests pass that come within so
  // long.
  int32_t shortest_aging_us_per_token = 10'000;
  // kFair: what a token of a prompt counts, one of the output being 1.
  double fair_prompt_weight = 0.5;
  // Most tokens of one prompt in a step, so that several are computed side by side; 0 = no cap.
  int32_t long_prefill_token_threshold = 0;
  // Goal for the time of a step, and so between tokens: prompts are cut into smaller chunks to meet
  // it. 0 = none.
  double target_step_ms = 0;

  // Most guesses per sequence and step; 0 = no speculation, whatever a request asks for. (What a
  // grammar forces is jumped all the same.)
  int32_t num_speculative_tokens = 0;

  // What else than tokens decides a page's content: the model, its compute type and its kernel.
  std::string fingerprint;
  // What of the prompt's length enters the prefix root (length-dependent rope); null = nothing.
  std::function<std::string(int32_t prompt_tokens)> rope_regime;
};

// What can be changed while serving; absent = stays.
struct SchedulerUpdate {
  std::optional<int32_t> max_num_seqs;
  std::optional<int32_t> max_num_batched_tokens;
  std::optional<int32_t> max_queued_requests;
  std::optional<double> watermark;
  std::optional<SchedulingPolicy> policy;
  std::optional<int32_t> long_prefill_token_threshold;
  std::optional<double> target_step_ms;
  std::optional<int32_t> num_speculative_tokens;
};

// ERRORS: kInvalidArgument naming the field, its value and the limit.
absl::Status Validate(const SchedulerOptions& options);

// What a policy is called in options and calls; the names, for messages.
inline constexpr const char* kPolicyNames = "fcfs, priority, shortest_first, fair, prefix_aware";
std::optional<SchedulingPolicy> ParsePolicy(std::string_view name);
const char* Name(SchedulingPolicy policy);

}  // namespace quire
