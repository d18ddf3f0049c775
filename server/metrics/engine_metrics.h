// server/metrics/engine_metrics.h -- metrics from what the engine publishes after each step.
//
// Whoever scrapes copies the snapshot; the engine does nothing for it. Any thread; pure.
#pragma once

#include <string>

#include "scheduler/engine.h"
#include "server/metrics/families.h"

namespace quire {

// prefix: "vllm:" or "quire:", of the names that others have, too. legacy: older names as well.
// num_deferred: requests at the edge that the engine doesn't know yet.
void WriteEngine(const EngineSnapshot& snapshot, int32_t num_deferred, const std::string& prefix,
                 bool legacy, Families& out);

// Share of the fullest pool that page tables hold; cached pages count as free.
double CacheUsage(const EngineSnapshot& snapshot);

}  // namespace quire
