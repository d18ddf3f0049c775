// models/plan/plan_layout.h -- a model's cache as the daemon would lay it out in pages: groups and
// pools of paged_cache/cache_layout.h, from sizes alone. So a plan and a running daemon count
// blocks by the same code.
#pragma once

#include "models/plan/plan.h"
#include "paged_cache/cache_layout.h"

namespace quire {

// The encoder's tokens are taken to be as many as the sequence's own. ERRORS: those of
// MakeCacheLayout (block_size, tokens_per_entry).
absl::StatusOr<CacheLayout> PlanLayout(const ModelShape& shape, const KvFormat& kv,
                                       int64_t block_size);

}  // namespace quire
