// bench/context_cost.h -- what one more token costs with the cache, by how much is in it, and what
// computing everything again would cost.
//
// Called by context_bench and its test, on one thread; nobody else uses the runtime meanwhile.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "bench/statistics.h"
#include "models/runtime.h"

namespace quire {

struct ContextCostOptions {
  std::vector<int32_t> contexts;     // tokens in the cache, ascending
  int32_t recompute_tokens = 512;    // of the prompt that is computed without a cache; 0: none
  int32_t rounds = 10;               // over all contexts, so that a disturbance spreads
  int32_t steps = 8;                 // tokens, at each context in each round
  int32_t max_batched_tokens = 512;  // of a step, as the runtime was loaded
};

struct ContextCost {
  int32_t context = 0;
  std::vector<double> step_us;  // of each step that adds one token
  // Of steps with the operations' clock on: attention of all layers, what of keys and values it
  // can't do without, and the step's logits' row.
  std::vector<double> attention_us;
  double kv_bytes = 0;
};

struct ContextCosts {
  std::vector<ContextCost> contexts;
  std::vector<double> recompute_us;  // one for each round
};

// Each context has a sequence of its own in the cache, computed before.
// ERRORS: kInvalidArgument naming a context beyond the model's length; kResourceExhausted if the
// pool has no room; the executor's.
absl::StatusOr<ContextCosts> MeasureContexts(ModelRuntime& runtime,
                                             const ContextCostOptions& options);

// How time grows with the context, and whether reading keys and values explains it.
struct ContextFit {
  Line step_us, attention_us;  // over tokens, by medians
  double kv_bytes_per_token = 0;
  double slope_gb_s = 0;      // kv_bytes_per_token / slope of a step
  double attention_gb_s = 0;  // ... of its attention
};
// REQUIRES: two contexts.
ContextFit FitContexts(const ContextCosts& costs);

}  // namespace quire
