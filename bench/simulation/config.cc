#include "bench/simulation/config.h"

namespace quire {

absl::StatusOr<SchedulerOptions> SchedulingOf(const SimulationConfig& config) {
  SchedulerOptions options = config.scheduler;
  options.preemption = config.preemption_mode == "swap"   ? PreemptionMode::kSwap
                       : config.preemption_mode == "auto" ? PreemptionMode::kAuto
                                                          : PreemptionMode::kRecompute;
  const std::optional<SchedulingPolicy> policy = ParsePolicy(config.policy);
  if (!policy) return InvalidArgument("policy={} must be one of {}", config.policy, kPolicyNames);
  options.policy = *policy;
  options.fingerprint = "simulation";
  RETURN_IF_ERROR(Validate(options));
  if (config.block_size != 8 && config.block_size != 16 && config.block_size != 32 &&
      config.block_size != 64 && config.block_size != 128) {
    return InvalidArgument("block_size={} must be 8, 16, 32, 64 or 128", config.block_size);
  }
  return options;
}

absl::StatusOr<SimulationConfig> Override(const SimulationConfig& base, std::string_view changes) {
  SimulationConfig config = base;
  config.name = std::string(changes);
  while (!changes.empty()) {
    const size_t comma = changes.find(',');
    const std::string_view change = changes.substr(0, comma);
    changes = comma == std::string_view::npos ? "" : changes.substr(comma + 1);
    const size_t equals = change.find('=');
    if (equals == std::string_view::npos) {
      return InvalidArgument("compare={} must be name=value[,name=value]", change);
    }
    const absl::Status set = SetField(config, change.substr(0, equals), change.substr(equals + 1));
    if (!set.ok()) return InvalidArgument("compare: {}", Message(set));
  }
  return config;
}

}  // namespace quire
