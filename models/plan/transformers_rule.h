// models/plan/transformers_rule.h -- how many blocks transformers' continuous batching would take,
// to compare with what Quire takes from the same memory.
//
// Source: PagedAttentionMemoryHandler of transformers 5.16.1
// (generation/continuous_batching/cache.py). With M batch tokens and N token slots its footprint is
//     m M + n N + c M N + c M^2
// for each of two peaks: the logits of all M rows, or attention reading the whole cache. Pure.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "models/plan/cache_shape.h"

namespace quire {

struct TransformersInputs {
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  int64_t hidden_dim = 0;
  int64_t vocab_size = 0;
  int64_t element_bytes = 2;     // of activations and of the cache
  int64_t available_memory = 0;  // 0.9 of what is free once the weights are there
  int64_t block_size = 256;
  int64_t num_groups = 1;  // of layers, all of group_size
  int64_t group_size = 1;
  int64_t num_masks = 0;  // 0 with flash attention; else 1, or 2 with windows
  bool async_batching = false;
  bool logprobs = false;
  int64_t max_blocks_per_request = 0;
  int64_t max_batch_tokens = 0;  // M; 0: to be found
  int64_t num_blocks = 0;        // 0: to be found
};

struct TransformersPlan {
  int64_t max_batch_tokens = 0;
  int64_t num_blocks = 0;
  int64_t footprint = 0;  // bytes, the larger of both peaks
};

// ERRORS: kResourceExhausted if the footprint exceeds the memory, or nothing fits.
absl::StatusOr<TransformersPlan> PlanByTransformers(const TransformersInputs& inputs);

// The model's part of the inputs. ERRORS: kUnimplemented naming the kind of cache: only full and
// sliding layers with equal heads are paged there.
absl::StatusOr<TransformersInputs> TransformersInputsOf(const ModelShape& shape);

}  // namespace quire
