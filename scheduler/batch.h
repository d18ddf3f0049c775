// scheduler/batch.h -- one step: what the scheduler asks the executor for, and what it gets back.
#pragma once

#include <cstdint>
#include <vector>

#include "paged_cache/block_manager.h"
#include "sampling/sampler.h"

namespace quire {

struct Sequence;

struct ScheduledSeq {
  const Sequence* seq = nullptr;  // stays valid and unchanged until Commit
  int32_t first_pos = 0;          // computes seq->tokens[first_pos, first_pos + num_tokens)
  int32_t num_tokens = 0;
  // Tokens to sample from the logits after the last computed token: 0 = a chunk that ends inside
  // the known tokens; 1 = the next token of seq->branch; n = at the end of a prompt, the first
  // token of branches [0, n) of the request, all from one row.
  int32_t num_samples = 0;
};

// Copies run before anything is written in this step.
struct ScheduledBatch {
  std::vector<ScheduledSeq> seqs;
  std::vector<PageCopy> copies;
  int32_t num_tokens = 0;  // sum over seqs
  bool empty() const { return seqs.empty(); }
};

struct SampledRow {
  int32_t seq_index = 0;  // into ScheduledBatch::seqs
  int32_t branch = 0;
  Sampled sampled;
};

// One row per asked sample, ordered by (seq_index, branch).
struct StepOutput {
  std::vector<SampledRow> rows;
};

}  // namespace quire
