// bench/simulation/measure_steps.h -- what steps take on this machine: a grid of batch shapes
// through a real executor.
//
// Called by `quire simulate --fit` and `--check`, on one thread; nobody else uses the runtime
// meanwhile. Contexts are not computed: a sequence is given pages with other content, as a step's
// time depends on shapes and memory only. Each shape has pages of its own, all written before.
#pragma once

#include <vector>

#include "base/status.h"
#include "bench/simulation/step_cost.h"
#include "models/runtime.h"

namespace quire {

struct MeasureOptions {
  int32_t max_num_seqs = 64;
  int32_t max_num_batched_tokens = 512;
  int32_t max_context = 4096;  // tokens
  int32_t repeats = 5;         // of each shape; the mean counts, as it does in a real run
};

// The shapes that fit the options and the pool, from decodes of one sequence to chunks of 512
// tokens beside 48 decodes. Rounds over all shapes follow each other, so that a disturbance of the
// machine spreads over them. ERRORS: the executor's.
absl::StatusOr<std::vector<MeasuredStep>> MeasureSteps(ModelRuntime& runtime,
                                                       const MeasureOptions& options);

}  // namespace quire
