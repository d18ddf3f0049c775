// bench/simulation/simulator.h -- the real Scheduler and BlockManager on a virtual clock.
//
// Called by `quire simulate`, the check against real runs and tests; one thread. Events are
// arrivals and ends of steps, in order of time. A server works as the engine does: what has arrived
// by the end of a step is submitted, the next step is planned at that very moment and takes what
// the cost model says; an idle server starts with the first arrival. Planning and committing take
// no virtual time beyond what the model's fixed part holds. The same trace, configuration and cost
// give the same report.
#pragma once

#include "base/status.h"
#include "bench/simulation/config.h"
#include "bench/simulation/report.h"
#include "bench/simulation/step_cost.h"
#include "bench/simulation/trace.h"

namespace quire {

// ERRORS: kInvalidArgument of the configuration; what the trace reports.
absl::StatusOr<SimulationReport> Simulate(const SimulationConfig& config, const StepCostModel& cost,
                                          TraceSource& trace);

}  // namespace quire
