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
  // What a grammar allows: bit i % 32 of word i / 32 is token i's, as in XGrammar's bit masks; ids
  // beyond the words are banned. Empty = all allowed.
  std::span<const int32_t> allowed_mask;
};

struct Sampled {
  TokenId token = 0;
  float logprob = 0;                // log-softmax of the raw logits; 0 if none was asked for
  std::vector<TokenLogprob> top;    // best first, num_logprobs of them
  std::vector<TokenLogprob> asked;  // of params->logprob_token_ids, in their order
  // Of the token among all by its raw logit, 1 = the best; of equals the lower ids come first, as
  // in `top`. 0 if no logprob was asked for.
  int32_t rank = 0;
};

// Reused buffers; grows to O(vocab_size).
struct SamplerScratch {
  std::vector<float> logits;
  std::vector<float> values;
  std::vector<float> logprobs;  // of the raw logits
  std::vector<TokenLogprob> top;
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
// With num_logprobs >= 0 or any logprob_token_ids (num_logprobs -1 then counts as 0), logprob, top,
// asked and rank are filled, too.
Sampled Sample(const SampleRow& row, SamplerScratch& scratch);

// As Sample, for a token that was chosen in another way.
Sampled SampleKnown(const SampleRow& row, TokenId token);

// For beam search: the k best tokens, in `sampled.top`; fewer if fewer are allowed. A token's value
// is its log-softmax (summed in double, then float32) after the edits of processors.h, which are
// applied to log-probabilities, as transformers does when it searches; no temperature, no filters.
// Ties go to the lower id; banned tokens and NaN are left out. The rest of `sampled` stays.
void Candidates(const SampleRow& row, size_t k, SamplerScratch& scratch, Sampled& sampled);

// What the model thought of a known token: fills token, logprob, rank and the k best in `top`, all
// of the raw logits. `logits`: [vocab_size]. REQUIRES: 0 <= token < vocab_size.
void ScoreToken(std::span<const float> logits, TokenId token, size_t k, Sampled& sampled);

// Uniform in [0, 1) with 24 bits: draw `draw` at (seed, branch, position). The top 24 bits of the
// first word of Philox4x32-10 with counter (position, branch, draw, 0) and key (seed low, seed
// high).
float PhiloxUniform(uint64_t seed, uint32_t branch, uint32_t position, uint32_t draw);

}  // namespace quire
