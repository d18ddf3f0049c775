#include "server/scheduling.h"

#include <string_view>

namespace quire {
namespace {

PreemptionMode ParsePreemption(std::string_view name) {
  if (name == "recompute") return PreemptionMode::kRecompute;
  if (name == "swap") return PreemptionMode::kSwap;
  CHECK(name == "auto", "preemption_mode={} was not checked", name);
  return PreemptionMode::kAuto;
}

}  // namespace

SchedulerOptions ToSchedulerOptions(const ServerOptions& o) {
  const std::optional<SchedulingPolicy> policy = ParsePolicy(o.scheduling_policy);
  CHECK(policy.has_value(), "scheduling_policy={} was not checked", o.scheduling_policy);
  return {.max_num_seqs = o.max_num_seqs,
          .max_num_batched_tokens = o.max_num_batched_tokens,
          .max_logit_rows = MaxLogitRows(o),
          .max_queued_requests = o.max_queued_requests,
          .enable_prefix_caching = o.enable_prefix_caching,
          .watermark = o.watermark,
          .preemption = ParsePreemption(o.preemption_mode),
          .policy = *policy,
          .priority_aging_ms = o.priority_aging_ms,
          .shortest_aging_us_per_token = o.shortest_aging_us_per_token,
          .fair_prompt_weight = o.fair_prompt_weight,
          .long_prefill_token_threshold = o.long_prefill_token_threshold,
          .target_step_ms = o.target_itl_ms,
          .num_speculative_tokens = o.num_speculative_tokens};
}

int32_t MaxLogitRows(const ServerOptions& o) { return o.max_num_seqs + o.num_speculative_tokens; }

SpeculationMethod DefaultSpeculation(const ServerOptions& o) {
  if (o.speculation == "none") return SpeculationMethod::kNone;
  if (o.speculation == "ngram") return SpeculationMethod::kNgram;
  if (o.speculation == "suffix") return SpeculationMethod::kSuffix;
  CHECK(o.speculation == "draft", "speculation={} was not checked", o.speculation);
  return SpeculationMethod::kDraft;
}

}  // namespace quire
