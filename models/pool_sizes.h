// models/pool_sizes.h -- how many pages each pool gets, and how long a sequence they can hold
// (contract C4: num_blocks counts the main pool, the others follow the model's ratio).
//
// Pure functions of a layout and of the mix that the pools are to serve: max_num_seqs sequences of
// equal length, as long as the main pool allows, or one of max_model_len tokens if that needs more.
// Pages per sequence are MaxPages of paged_cache/cache_policy.h, by which requests are admitted.
#pragma once

#include <cstdint>
#include <vector>

#include "paged_cache/cache_layout.h"

namespace quire {

struct PoolMix {
  int32_t max_model_len = 1;
  int32_t max_num_seqs = 1;
  int32_t max_step_tokens = 1;  // computed in one step, of all sequences together
};

// The pool that num_blocks counts: the first that holds caches which grow with the sequence; pool 0
// if none grows.
int32_t MainPool(const CacheLayout& layout);

// Pages of each pool that one sequence of `num_tokens` tokens holds at most at once, if a step
// computes up to `step_tokens` of them.
std::vector<int32_t> PagesOfSequence(const CacheLayout& layout, int32_t num_tokens,
                                     int32_t step_tokens);

// Pages of each pool when the main one has `main_blocks`; never falls as main_blocks grows.
std::vector<int32_t> PoolPages(const CacheLayout& layout, const PoolMix& mix, int32_t main_blocks);

int64_t BytesOfPools(const CacheLayout& layout, const std::vector<int32_t>& pages);

// Most blocks of the main pool with which all pools together take at most `bytes`; 0 if none do.
int32_t MainBlocksIn(const CacheLayout& layout, const PoolMix& mix, int64_t bytes);

// Longest sequence, up to mix.max_model_len, that pools of `pages` pages can hold alone; 0 if none.
int32_t LongestInPools(const CacheLayout& layout, const PoolMix& mix,
                       const std::vector<int32_t>& pages);

}  // namespace quire
