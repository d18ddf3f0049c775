// bench/simulation/fake_model.h -- an Executor without a model: it says what a trace wants said.
//
// Called by the simulator between Schedule and Commit. The token at an output's index i is the i-th
// of the text that Request::seed names, so a later prompt can hold it; its logprob is 0.
#pragma once

#include "base/status.h"
#include "bench/simulation/trace.h"
#include "scheduler/executor.h"

namespace quire {

class FakeModel final : public Executor {
 public:
  // Never fails.
  absl::StatusOr<StepOutput> Run(const ScheduledBatch& batch) override;
};

}  // namespace quire
