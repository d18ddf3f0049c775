#include "models/memory_profile.h"

#include <fmt/format.h>

#include <algorithm>

namespace quire {

int64_t ReserveBytes(int64_t num_threads, int64_t vocab_size) {
  return (int64_t{64} << 20) + num_threads * vocab_size * 16;
}

void ApplyMemory(const MemoryInfo& before, const MemoryInfo& after, int64_t weights,
                 double memory_utilization, MemoryProfile& p) {
  const MemoryInfo& tighter = before.limit < after.limit ? before : after;
  p.limit = std::max<int64_t>(tighter.limit, 0);
  p.limit_source = tighter.limit_source;
  p.weights = weights;
  // This process already holds its weights: they count as weights, not as somebody else's use.
  const int64_t now = after.available + weights;
  const bool grew = before.available < now;  // somebody gave memory back meanwhile
  p.available = std::clamp<int64_t>(grew ? before.available : now, 0, p.limit);
  p.available_source = grew ? before.available_source : after.available_source;
  p.others = std::max(before.others, after.others);
  p.budget = std::min(static_cast<int64_t>(static_cast<double>(p.limit) * memory_utilization),
                      p.available);
}

void ApplyActivations(const Arena& dry, MemoryProfile& p) {
  p.activation_peak = static_cast<int64_t>(dry.peak());
  p.activation_parts.clear();
  for (const Arena::Part& part : dry.PeakParts()) {
    p.activation_parts.push_back({std::string(part.what), static_cast<int64_t>(part.bytes)});
  }
}

std::string MemoryProfile::ToString() const {
  const auto mib = [](int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); };
  std::string s;
  s += fmt::format("memory limit     {:>10.1f} MiB  ({})\n", mib(limit), limit_source);
  s += fmt::format("used by others   {:>10.1f} MiB\n", mib(others));
  s += fmt::format("available        {:>10.1f} MiB  ({})\n", mib(available), available_source);
  s += fmt::format("budget           {:>10.1f} MiB\n", mib(budget));
  s += fmt::format("- weights        {:>10.1f} MiB\n", mib(weights));
  std::string parts;
  for (const ActivationPart& part : activation_parts) {
    parts += fmt::format("{} {} {:.1f}", parts.empty() ? ":" : ",", part.what, mib(part.bytes));
  }
  s += fmt::format("- activations    {:>10.1f} MiB  (worst-case step{})\n", mib(activation_peak),
                   parts);
  s += fmt::format("- reserve        {:>10.1f} MiB\n", mib(reserve));
  if (host_cache > 0) s += fmt::format("- host cache     {:>10.1f} MiB\n", mib(host_cache));
  if (draft_model > 0) s += fmt::format("- draft model    {:>10.1f} MiB\n", mib(draft_model));
  s += fmt::format(
      "= kv pool        {:>10.1f} MiB  ({} blocks of {} tokens, {:.1f} KiB each, {} B/token; by "
      "{})",
      mib(kv_pool), num_blocks, block_size, static_cast<double>(block_bytes) / 1024,
      bytes_per_token, rule);
  if (prefault > 0) {
    s += fmt::format("\n  ready ahead    {:>10.1f} MiB  ({})", mib(can_prefault ? prefault : 0),
                     can_prefault ? "made ready in the background before it is used"
                                  : "this kernel has no MADV_POPULATE_WRITE, which Linux 5.14 has");
  }
  for (size_t i = 0; pools.size() > 1 && i < pools.size(); ++i) {
    s += fmt::format("\n  pool {}         {:>10.1f} MiB  ({} blocks, {:.1f} KiB each)", i,
                     mib(pools[i].num_blocks * pools[i].block_bytes), pools[i].num_blocks,
                     static_cast<double>(pools[i].block_bytes) / 1024);
  }
  return s;
}

}  // namespace quire
