// scheduler/executor.h -- runs a batch. The scheduler never sees a model; tests put a fake here.
#pragma once

#include "base/status.h"
#include "scheduler/batch.h"

namespace quire {

class Executor {
 public:
  virtual ~Executor() = default;
  // Engine thread. ERRORS: kInternal: this batch's requests fail, the daemon goes on; its page
  // operations have run all the same, as others count on what they moved. kUnavailable: the device
  // is lost, all requests fail and the daemon exits.
  virtual absl::StatusOr<StepOutput> Run(const ScheduledBatch& batch) = 0;
};

}  // namespace quire
