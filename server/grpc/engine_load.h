// server/grpc/engine_load.h -- how busy the engine is, in the words of those who route requests.
// Read from the engine's snapshot; any thread.
#pragma once

#include <cstdint>

#include "paged_cache/cache_layout.h"
#include "scheduler/engine.h"

namespace quire {

struct EngineLoad {
  int32_t running_requests = 0;
  int32_t waiting_requests = 0;
  int64_t total_blocks = 0;  // of the main pool, whose blocks hold block_size tokens each
  int64_t used_blocks = 0;
  int32_t block_size = 0;
  int64_t prompt_tokens = 0;  // since start, of requests that began to run
  int64_t cached_tokens = 0;  // of them, found in the cache

  double usage() const {
    return total_blocks > 0 ? static_cast<double>(used_blocks) / static_cast<double>(total_blocks)
                            : 0;
  }
  double hit_rate() const {
    return prompt_tokens > 0
               ? static_cast<double>(cached_tokens) / static_cast<double>(prompt_tokens)
               : 0;
  }
};

EngineLoad LoadOf(const EngineSnapshot& snapshot, const CacheLayout& layout);

}  // namespace quire
