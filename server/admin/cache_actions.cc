#include "server/admin/cache_actions.h"

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

}  // namespace quire
