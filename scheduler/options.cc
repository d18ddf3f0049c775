#include "scheduler/options.h"

#include <utility>

namespace quire {

absl::Status Validate(const SchedulerOptions& o) {
  if (o.max_num_seqs < 1) {
    return InvalidArgument("max_num_seqs={} must be at least 1", o.max_num_seqs);
  }
  // With a smaller budget running sequences would have to take turns, and one step for all is what
  // keeps the time between tokens even.
  if (o.max_num_batched_tokens < o.max_num_seqs) {
    return InvalidArgument(
        "max_num_batched_tokens={} must be at least max_num_seqs={}; raise it or lower "
        "max_num_seqs",
        o.max_num_batched_tokens, o.max_num_seqs);
  }
  if (o.max_logit_rows != 0 && o.max_logit_rows < o.max_num_seqs) {
    return InvalidArgument("max_logit_rows={} must be at least max_num_seqs={} (0 = as many)",
                           o.max_logit_rows, o.max_num_seqs);
  }
  if (o.max_model_len < 2) {
    return InvalidArgument("max_model_len={} must be at least 2 (one token in, one out)",
                           o.max_model_len);
  }
  if (o.max_queued_requests < 1) {
    return InvalidArgument("max_queued_requests={} must be at least 1", o.max_queued_requests);
  }
  if (!(o.watermark >= 0 && o.watermark < 1)) {
    return InvalidArgument("watermark={} must be in [0, 1)", o.watermark);
  }
  if (o.priority_aging_ms < 1) {
    return InvalidArgument("priority_aging_ms={} must be at least 1: waiting would have no bound",
                           o.priority_aging_ms);
  }
  if (o.shortest_aging_us_per_token < 1) {
    return InvalidArgument("shortest_aging_us_per_token={} must be at least 1",
                           o.shortest_aging_us_per_token);
  }
  if (!(o.fair_prompt_weight >= 0 && o.fair_prompt_weight <= 1000)) {
    return InvalidArgument("fair_prompt_weight={} must be in [0, 1000]", o.fair_prompt_weight);
  }
  if (o.long_prefill_token_threshold < 0) {
    return InvalidArgument("long_prefill_token_threshold={} must be at least 0 (0 = no cap)",
                           o.long_prefill_token_threshold);
  }
  if (!(o.target_step_ms >= 0 && o.target_step_ms <= 1e6)) {
    return InvalidArgument("target_step_ms={} must be in [0, 1000000] (0 = none)",
                           o.target_step_ms);
  }
  if (o.num_speculative_tokens < 0 || o.num_speculative_tokens > kMaxSpeculativeTokens) {
    return InvalidArgument("num_speculative_tokens={} must be in [0, {}]", o.num_speculative_tokens,
                           kMaxSpeculativeTokens);
  }
  return absl::OkStatus();
}

namespace {
constexpr std::pair<const char*, SchedulingPolicy> kPolicies[] = {
    {"fcfs", SchedulingPolicy::kFcfs},
    {"priority", SchedulingPolicy::kPriority},
    {"shortest_first", SchedulingPolicy::kShortestFirst},
    {"fair", SchedulingPolicy::kFair},
    {"prefix_aware", SchedulingPolicy::kPrefixAware},
};
}  // namespace

std::optional<SchedulingPolicy> ParsePolicy(std::string_view name) {
  for (const auto& [known, policy] : kPolicies) {
    if (name == known) return policy;
  }
  return std::nullopt;
}

const char* Name(SchedulingPolicy policy) { return kPolicies[static_cast<size_t>(policy)].first; }

}  // namespace quire
