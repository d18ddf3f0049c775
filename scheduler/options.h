// scheduler/options.h -- what an operator can set about scheduling. Plain data; read once at start.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/status.h"
#include "base/types.h"

namespace quire {

enum class PreemptionMode : uint8_t {
  kRecompute,  // pages are given back and their content is computed again
  kSwap,       // what no prefix keeps is saved in the host tier; recompute if that is full
};

struct SchedulerOptions {
  int32_t max_num_seqs = 64;             // branches in the running set
  int32_t max_num_batched_tokens = 512;  // computed per step; at least max_num_seqs
  int32_t max_model_len = 0;             // tokens, prompt + max_tokens; must be set
  int32_t max_queued_requests = 1024;    // accepted and not yet scheduled
  bool enable_prefix_caching = true;     // false: a prefix is shared only inside its request
  // Share of each pool that admitting a request must leave free, so that running sequences can grow
  // before somebody has to be preempted. Ignored while nothing runs.
  double watermark = 0.01;
  PreemptionMode preemption = PreemptionMode::kRecompute;

  // What else than tokens decides a page's content: the model, its compute type and its kernel.
  std::string fingerprint;
  // What of the prompt's length enters the prefix root (length-dependent rope); null = nothing.
  std::function<std::string(int32_t prompt_tokens)> rope_regime;
};

// ERRORS: kInvalidArgument naming the field, its value and the limit.
absl::Status Validate(const SchedulerOptions& options);

}  // namespace quire
