// sampling/rejection.h -- accept a guess by the ratio of two distributions instead of by equality
// with the target's own sample. An option, marked not exact: outputs have the target's
// distribution, but not the tokens that the same seed gives without guesses (contract C1).
//
// The rule: a guess d, drawn from the proposer's distribution q, is accepted with probability
// min(1, p(d) / q(d)); if it is not, the token is drawn from max(0, p - q), normalised. What comes
// out has the distribution p, and a guess is accepted with probability sum of min(p, q).
//
// q must be what d was drawn from, after the proposer's own filters. A guess that was not drawn (a
// lookup, a draft model's favourite) has all of q on itself, whatever the model thought of it: then
// p(d) decides, and the residual is p without d. For such guesses the rule accepts no more often
// than the exact check does, so it only pays for proposers that draw.
//
// The uniforms are draws 1 and 2 of the position; draw 0 is the sampler's, and may be what d was
// drawn with. Pure; thread: any, with a scratch of its own.
// Source: arXiv:2211.17192, theorem in appendix A.1; arXiv:2302.01318.
#pragma once

#include <cstdint>
#include <span>

#include "sampling/sampler.h"

namespace quire {

// A distribution: weights in proportion to probabilities, of those tokens that have any.
struct TokenWeights {
  std::span<const TokenId> ids;    // [n], ascending, at least one
  std::span<const float> weights;  // [n], not negative, not all 0
};

// What Sample draws from for this row: after edits, temperature and filters; one token if greedy.
// Lives in `scratch` until its next use.
TokenWeights DistributionOf(const SampleRow& row, SamplerScratch& scratch);

struct DraftVerdict {
  bool accepted = false;
  TokenId token = 0;  // the guess, or what comes in its place
};

// REQUIRES: proposal gives the guess a positive weight.
DraftVerdict VerifyDraft(const TokenWeights& target, const TokenWeights& proposal, TokenId guess,
                         uint64_t seed, int32_t branch, uint32_t position);

// Of a guess that was not drawn.
DraftVerdict VerifyPointDraft(const TokenWeights& target, TokenId guess, uint64_t seed,
                              int32_t branch, uint32_t position);

}  // namespace quire
