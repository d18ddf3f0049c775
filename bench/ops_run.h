// bench/ops_run.h -- a workload through scheduler and model in this process, on this thread: what
// `quire bench ops` profiles. No network, no tokenizer, no other thread but the kernels'.
#pragma once

#include "base/status.h"
#include "bench/workloads.h"
#include "kernels/profile/op_profile.h"
#include "models/runtime.h"

namespace quire {

struct OpsRunOptions {
  int32_t max_num_seqs = 64;
  int32_t max_num_batched_tokens = 512;
};

// All prompts at once, greedy, no ends but max_tokens. The profile also gets what the scheduler
// takes between steps. ERRORS: those of a request that is refused or fails.
absl::StatusOr<LatencySummary> RunOps(const Workload& workload, const OpsRunOptions& options,
                                      ModelRuntime& runtime, kernels::OpProfile* profile);

}  // namespace quire
