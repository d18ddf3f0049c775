#include "models/memory_profile.h"

#include <fmt/format.h>

namespace quire {

int64_t ReserveBytes(int64_t num_threads, int64_t vocab_size) {
  return (int64_t{64} << 20) + num_threads * vocab_size * 16;
}

std::string MemoryProfile::ToString() const {
  const auto mib = [](int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); };
  std::string s;
  s += fmt::format("memory limit     {:>10.1f} MiB  ({})\n", mib(limit), limit_source);
  s += fmt::format("available        {:>10.1f} MiB  (others' use taken off)\n", mib(available));
  s += fmt::format("budget           {:>10.1f} MiB\n", mib(budget));
  s += fmt::format("- weights        {:>10.1f} MiB\n", mib(weights));
  s += fmt::format("- activations    {:>10.1f} MiB  (worst-case step)\n", mib(activation_peak));
  s += fmt::format("- reserve        {:>10.1f} MiB\n", mib(reserve));
  s += fmt::format(
      "= kv pool        {:>10.1f} MiB  ({} blocks of {} tokens, {:.1f} KiB each, {} B/token; by "
      "{})",
      mib(kv_pool), num_blocks, block_size, static_cast<double>(block_bytes) / 1024,
      bytes_per_token, rule);
  for (size_t i = 0; pools.size() > 1 && i < pools.size(); ++i) {
    s += fmt::format("\n  pool {}         {:>10.1f} MiB  ({} blocks, {:.1f} KiB each)", i,
                     mib(pools[i].num_blocks * pools[i].block_bytes), pools[i].num_blocks,
                     static_cast<double>(pools[i].block_bytes) / 1024);
  }
  return s;
}

}  // namespace quire
