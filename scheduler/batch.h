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
  // Tokens to sample from the logits after the last known token: 0 = a chunk that ends inside
  // the known tokens; 1 = the next token of seq->branch; n = at the end of a prompt, the first
  // token of branches [0, n) of the request, all from one row.
  int32_t num_samples = 0;
  // The last num_drafts of the computed tokens are guesses: the rows after them are sampled, too,
  // each as if the guesses before it were known. With drafts num_samples is 1.
  int32_t num_drafts = 0;
  // Instead of samples the best num_candidates of the row (beam search); num_samples is 1.
  int32_t num_candidates = 0;
  // Prompt logprobs: for that many positions from first_prompt_logprob on, what the model thought
  // of the token that follows.
  int32_t first_prompt_logprob = 0;
  int32_t num_prompt_logprobs = 0;
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
  int32_t draft = 0;  // guesses that the row comes after: 0 = the row of the last known token
  Sampled sampled;    // of candidates: `top` is filled, `token` is not
};

struct PromptRow {
  int32_t seq_index = 0;
  int32_t position = 0;  // of the token that `logprob` is of, at least 1
  Sampled logprob;
};

// One row per asked sample, ordered by (seq_index, branch, draft); one per asked prompt logprob, by
// (seq_index, position).
struct StepOutput {
  std::vector<SampledRow> rows;
  std::vector<PromptRow> prompt_rows;
  double page_ops_us = 0;  // of the step's time, what ScheduledBatch::copies took
};

}  // namespace quire
