// sampling/processors.h -- what sampling parameters do to a row of logits: two tables, applied from
// top to bottom. Edits change single logits; filters drop tokens.
//
// Called by sampler.cc; pure but for the scratch; thread: any with a scratch of its own.
// Order, as in transformers' generate: logit_bias, frequency and presence penalty, repetition
// penalty, no_repeat_ngram_size, bad_words, min_tokens, allowed_token_ids, a grammar's mask; then
// temperature, top_k, top_p, min_p, typical_p. top_n_sigma comes before the other filters: its
// deviation is that of the whole row. Greedy rows get the edits only.
#pragma once

#include <span>

#include "sampling/sampler.h"

namespace quire {

// The row after all edits: in scratch.logits, or row.logits itself if no edit is asked for.
std::span<const float> EditLogits(const SampleRow& row, SamplerScratch& scratch);

// The tokens that may be drawn: scratch.ids ascending, scratch.values their weights relative to the
// best token's (float32, not normalised; the best has 1).
// REQUIRES: a logit above -infinity; params not greedy.
void FilterTokens(std::span<const float> logits, const SamplingParams& params,
                  SamplerScratch& scratch);

// For rows without any usable logit: the lowest id that no edit bans. If all are banned, the lowest
// that the grammar's mask allows; without a mask the lowest of allowed_token_ids; or 0.
TokenId LowestAllowed(const SampleRow& row, SamplerScratch& scratch);

}  // namespace quire
