// models/forward_batch.h -- one step as flat arrays: what crosses from the executor to the model.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/types.h"
#include "kernels/attention.h"

namespace quire {

struct ForwardBatch {
  int32_t num_tokens = 0;
  std::span<const TokenId> token_ids;     // [num_tokens]
  std::span<const int32_t> positions;     // [num_tokens]
  std::span<const int32_t> rope_lengths;  // [num_tokens]: max(prompt length, position + 1)
  std::span<const int32_t> logit_rows;  // [num_rows] token rows whose logits are wanted, ascending
  std::span<const kernels::AttentionMetadata> groups;  // one per cache group
};

}  // namespace quire
