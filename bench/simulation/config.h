// bench/simulation/config.h -- one server, or several behind a router, as a simulation sees them.
//
// VisitFields is the only list: flags of `quire simulate`, `--compare` overrides and the report's
// heading come from it. A new option of the scheduler is a member and a visit() line here and, if
// it is not a plain number, a line in SchedulingOf.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"
#include "bench/simulation/fields.h"
#include "scheduler/options.h"

namespace quire {

struct SimulationConfig {
  std::string name;  // in reports: what was changed, "" = nothing
  SchedulerOptions scheduler{.max_model_len = 8192};
  std::string policy = "fcfs";
  std::string preemption_mode = "recompute";
  // The cache: one group of pages for all layers.
  int32_t block_size = 16;
  int32_t num_blocks = 4096;
  int32_t host_blocks = 0;  // of the host tier
  // Servers, each with a cache of its own.
  int32_t replicas = 1;
  std::string routing = "round_robin";
  // What a request must meet to count as good; 0 = anything.
  double ttft_slo_ms = 0;
  double itl_slo_ms = 0;  // of a request's mean

  // visit(FieldInfo, member)
  template <typename Self, typename Visitor>
  static void VisitFields(Self& c, Visitor&& visit) {
    constexpr double kMaxInt = 1 << 30;
    auto& s = c.scheduler;
    visit(FieldInfo{"max_num_seqs", "sequences that run at the same time", 1, 4096},
          s.max_num_seqs);
    visit(FieldInfo{"max_num_batched_tokens", "tokens computed in one step", 1, 1 << 20},
          s.max_num_batched_tokens);
    visit(FieldInfo{"max_model_len", "tokens of one request, output included", 2, kMaxInt},
          s.max_model_len);
    visit(FieldInfo{"max_queued_requests", "that wait; one more is refused", 1, kMaxInt},
          s.max_queued_requests);
    visit(FieldInfo{"enable_prefix_caching", "share equal beginnings of prompts"},
          s.enable_prefix_caching);
    visit(FieldInfo{"watermark", "share of the pool that admission leaves free", 0, 0.99},
          s.watermark);
    visit(FieldInfo{"preemption_mode", "what becomes of a preempted sequence's blocks", 0, 0,
                    "recompute|swap|auto"},
          c.preemption_mode);
    visit(FieldInfo{"policy", "whose request is started next", 0, 0,
                    "fcfs|priority|shortest_first|fair|prefix_aware"},
          c.policy);
    visit(FieldInfo{"priority_aging_ms", "priority: waiting that is worth a level", 1, kMaxInt},
          s.priority_aging_ms);
    visit(FieldInfo{"shortest_aging_us_per_token",
                    "shortest_first: waiting that is worth a token less", 1, kMaxInt},
          s.shortest_aging_us_per_token);
    visit(FieldInfo{"fair_prompt_weight", "fair: what a token of a prompt counts", 0, 1000},
          s.fair_prompt_weight);
    visit(FieldInfo{"long_prefill_token_threshold", "most tokens of a prompt in a step; 0: any", 0,
                    1 << 20},
          s.long_prefill_token_threshold);
    visit(FieldInfo{"target_step_ms", "goal for a step's time; 0: none", 0, 1e9}, s.target_step_ms);
    visit(FieldInfo{"block_size", "tokens per block", 8, 128}, c.block_size);
    visit(FieldInfo{"num_blocks", "blocks of a server's pool", 1, kMaxInt}, c.num_blocks);
    visit(FieldInfo{"host_blocks", "of its host tier", 0, kMaxInt}, c.host_blocks);
    visit(FieldInfo{"replicas", "servers behind a router", 1, 1024}, c.replicas);
    visit(FieldInfo{"routing", "which server a request goes to", 0, 0,
                    "round_robin|least_loaded|prefix_affinity"},
          c.routing);
    visit(FieldInfo{"ttft_slo_ms", "a good request's time to first token; 0: any", 0, 1e9},
          c.ttft_slo_ms);
    visit(FieldInfo{"itl_slo_ms", "a good request's mean time between tokens; 0: any", 0, 1e9},
          c.itl_slo_ms);
  }
};

// What the scheduler is given. ERRORS: kInvalidArgument naming field, value and limit.
absl::StatusOr<SchedulerOptions> SchedulingOf(const SimulationConfig& config);

// `base` with changes "name=value,name=value", which become its name.
// ERRORS: kInvalidArgument naming what is unknown or out of range.
absl::StatusOr<SimulationConfig> Override(const SimulationConfig& base, std::string_view changes);

}  // namespace quire
