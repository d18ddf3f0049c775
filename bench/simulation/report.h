// bench/simulation/report.h -- what a simulated run was like.
//
// Filled by the simulator, event by event; printed by `quire simulate`. Nothing is kept of a
// request that has ended.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>

#include "base/json.h"
#include "bench/simulation/config.h"
#include "bench/simulation/histogram.h"

namespace quire {

// Of all requests, or of a tenant's, or of a priority's.
struct RequestFigures {
  int64_t finished = 0;
  int64_t refused = 0;        // a full queue, or it could never fit
  int64_t good = 0;           // finished within the goals
  int64_t prompt_tokens = 0;  // of finished requests, as all below
  int64_t output_tokens = 0;
  int64_t cached_tokens = 0;  // of prompts, found when first scheduled
  int64_t preemptions = 0;
  Histogram ttft_us, itl_us, queue_us, e2e_us;
};

struct SimulationReport {
  RequestFigures all;
  std::map<std::string, RequestFigures> tenants;  // named ones; "others" beyond kMaxKinds
  std::map<int32_t, RequestFigures> priorities;   // if there are several
  double duration_s = 0;                          // first arrival to last token
  double busy_s = 0;                              // of all servers' steps
  int64_t steps = 0;
  // Tokens computed = needed + recomputed + rejected drafts.
  int64_t computed_tokens = 0;
  int64_t needed_tokens = 0;
  int64_t rejected_drafts = 0;
  int64_t recomputed_tokens() const { return computed_tokens - needed_tokens - rejected_drafts; }
  int64_t preemptions = 0;
  int64_t copies = 0;  // pages copied, saved or loaded
  // Means over the time of steps.
  double pool_used = 0;    // share of blocks in sequences
  double pool_cached = 0;  // share held by nobody, kept for a hit
  double padding = 0;      // share of used blocks' room without a token
  double batch_fill = 0;   // share of max_num_batched_tokens
  double batch_seqs = 0;   // sequences in a step
  std::vector<int64_t> requests_of_replica;
  double wall_s = 0;       // what the simulation took
  double scheduler_s = 0;  // of it, in Schedule and Commit

  static constexpr size_t kMaxKinds = 64;
};

// Side by side.
std::string ReportText(std::span<const SimulationConfig> configs,
                       std::span<const SimulationReport> reports);
// An object; the wall times are left out, so that equal runs give equal text.
void WriteReport(const SimulationConfig& config, const SimulationReport& report, JsonWriter& w);

}  // namespace quire
