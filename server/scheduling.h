// server/scheduling.h -- the daemon's options as the scheduler has them. Pure functions.
#pragma once

#include "sampling/params.h"
#include "scheduler/options.h"
#include "server/options.h"

namespace quire {

// All but what the model decides: max_model_len, fingerprint, rope_regime.
// REQUIRES: Validate(options) is OK.
SchedulerOptions ToSchedulerOptions(const ServerOptions& options);

// Rows of logits in a step: a full house and one sequence's guesses beside it.
int32_t MaxLogitRows(const ServerOptions& options);

// Of requests that don't say.
SpeculationMethod DefaultSpeculation(const ServerOptions& options);

}  // namespace quire
