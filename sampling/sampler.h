// sampling/sampler.h -- from one row of logits to one token, deterministically.
//
// A sample at a position uses Philox4x32-10 keyed by (seed, branch, position) and nothing else, so
// it never depends on neighbours, preemption or drafts (contract C1).
//
// Thread: any, with a scratch of its own; the executor fans rows out over the kernel pool.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sampling/params.h"

namespace quire {

struct TokenLogprob {
  TokenId token = 0;
  float logprob = 0;
};

// One row to sample. Spans stay valid during the call.
struct SampleRow {
  std::span<const float> logits;  // [vocab_size], float32, as the model gave them
  const SamplingParams* params = nullptr;
  const StopConditions* stop = nullptr;  // for min_tokens
  std::span<const TokenId> prompt;
  std::span<const TokenId> output;  // generated before this position
  uint64_t seed = 0;                // resolved: params->seed or the request's own draw
  int32_t branch = 0;
};

struct Sampled {
  TokenId token = 0;
  float logprob = 0;                // log-softmax of the raw logits; 0 if none was asked for
  std::vector<TokenLogprob> top;    // best first, num_logprobs of them
  std::vector<TokenLogprob> asked;  // of params->logprob_token_ids, in their order
  int32_t rank = 0;  // of the token among all, 1 = the best; 0 if no logprob was asked for
};

// Reused buffers; grows to O(vocab_size).
struct SamplerScratch {
  std::vector<float> logits;
  std::vector<float> values;
  std::vector<TokenId> ids;
  std::vector<TokenId> touched;
  std::vector<int32_t> counts;   // [vocab_size], all 0 between calls
  std::vector<int32_t> borders;  // a failure function
  std::vector<uint32_t> keys;    // of candidates, for selection
  std::vector<double> sums;      // of weights before each block
};

// The uniform of a row is PhiloxUniform(seed, branch, prompt.size() + output.size(), 0) + 2^-25;
// the token is the first kept one, in order of ids, at which the running share of weights exceeds
// it. NaN logits never win; a row of NaNs or with nothing allowed gives the lowest allowed id.
Sampled Sample(const SampleRow& row, SamplerScratch& scratch);

// Uniform in [0, 1) with 24 bits: draw `draw` at (seed, branch, position). The top 24 bits of the
// first word of Philox4x32-10 with counter (position, branch, draw, 0) and key (seed low, seed
// high).
float PhiloxUniform(uint64_t seed, uint32_t branch, uint32_t position, uint32_t draw);

}  // namespace quire
