#include "server/admin/cache_actions.h"

#include <spdlog/spdlog.h>

namespace quire {
namespace {

int64_t NumBlank(const BlockManager& blocks) {
  int64_t blank = 0;
  for (const PagePool& pool : blocks.pools()) blank += pool.num_blank();
  for (const PagePool& pool : blocks.host_pools()) blank += pool.num_blank();
  return blank;
}

}  // namespace

FlushCounts FlushPrefixes(Scheduler& scheduler, const std::optional<std::string>& cache_salt) {
  const BlockManager& blocks = scheduler.blocks();
  const auto nodes = [&] {
    int64_t count = 0;
    blocks.index().ForEach([&](NodeId) { ++count; });
    return count;
  };
  FlushCounts counts{nodes(), -NumBlank(blocks), static_cast<int64_t>(blocks.num_pins())};
  scheduler.FlushPrefixes(cache_salt);
  counts.nodes -= nodes();
  counts.emptied_blocks += NumBlank(blocks);
  counts.ended_pins -= static_cast<int64_t>(blocks.num_pins());
  return counts;
}

absl::Status ResizePools(Scheduler& scheduler, const CacheControl& control, const PoolMix& mix,
                         int32_t num_blocks) {
  if (control.resize == nullptr) {
    return absl::UnimplementedError("num_blocks can't be changed while this model is served");
  }
  const BlockManager& blocks = scheduler.blocks();
  const std::vector<int32_t> wanted = PoolPages(blocks.layout(), mix, num_blocks);
  std::vector<int32_t> before;
  for (const PagePool& pool : blocks.pools()) before.push_back(pool.num_usable());
  absl::Status status;
  size_t changed = 0;
  for (; changed < wanted.size() && status.ok(); ++changed) {
    status = control.resize(scheduler, changed, wanted[changed]);
  }
  if (status.ok()) return status;
  // The last one was refused; those before it get their old sizes back, which they had room for.
  for (size_t i = 0; i + 1 < changed; ++i) {
    const absl::Status back = control.resize(scheduler, i, before[i]);
    if (!back.ok()) spdlog::error("pool {} stays at {} blocks: {}", i, wanted[i], Message(back));
  }
  if (wanted.size() == 1) return status;
  return Annotate(status, fmt::format("pool {} of num_blocks={}", changed - 1, num_blocks));
}

}  // namespace quire
