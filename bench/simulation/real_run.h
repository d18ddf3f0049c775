// bench/simulation/real_run.h -- a trace through the real Engine, in real time: what a simulation
// of it is checked against.
//
// Called by `quire simulate --check` on a thread that only posts requests when their time has come;
// the engine's own thread tells when tokens came. No network and no tokenizer: what is compared is
// scheduling and steps.
#pragma once

#include <vector>

#include "base/status.h"
#include "bench/simulation/config.h"
#include "bench/simulation/step_cost.h"
#include "bench/simulation/trace.h"
#include "bench/workloads.h"
#include "models/runtime.h"

namespace quire {

struct RealRun {
  std::vector<RequestTrace> traces;  // in the order of arrivals
  std::vector<MeasuredStep> steps;   // each step's shape and what it took
};

// The scheduler gets the options of `config`; the pool is the runtime's. ERRORS: of the trace and
// the configuration; kInternal: a request failed.
absl::StatusOr<RealRun> RunForReal(const SimulationConfig& config, ModelRuntime& runtime,
                                   TraceSource& trace);

}  // namespace quire
