// models/model.h -- what the executor runs: one step of one model.
#pragma once

#include <span>

#include "base/arena.h"
#include "base/status.h"
#include "models/forward_batch.h"
#include "paged_cache/cache_layout.h"
#include "paged_cache/page_storage.h"

namespace quire {

struct ForwardOutput {
  std::span<const float> logits;  // [logit_rows.size(), vocab_size], in the arena
};

class Model {
 public:
  virtual ~Model() = default;
  virtual const CacheLayout& cache_layout() const = 0;
  virtual int32_t vocab_size() const = 0;
  // Bytes of packed weights.
  virtual size_t weight_bytes() const = 0;

  // Writes keys and values through the write tables and returns logits for batch.logit_rows. Takes
  // its activations from `arena`, whose peak is what the memory profile reports; with a dry arena
  // nothing is computed or written and the logits are null.
  // ERRORS: kInternal if a kernel fails.
  virtual absl::StatusOr<ForwardOutput> Forward(const ForwardBatch& batch, PageStorage& storage,
                                                Arena& arena) = 0;
};

}  // namespace quire
