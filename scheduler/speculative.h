// scheduler/speculative.h -- guesses at what a sequence goes on with ("drafts"), made before a step
// and checked by it.
//
// A step, as the scheduler runs it:
//   DraftControl::Plan       how many guesses are worth computing, for each decoding sequence
//   Proposer::Propose        the guesses
//   the executor             computes all of them, samples after each as if it were known
//   Scheduler::Commit        keeps the guesses that equal the samples, plus one token
//   Proposer::OnTokens, DraftControl::OnVerified
// A guess only decides which rows are computed early, never what comes out (contract C1): a wrong
// one costs time, and no proposer can make an output wrong. It can leak, though: how fast a request
// is served tells whether somebody's guesses were right. So what is learnt from one tenant's text
// may only be proposed to the same tenant (suffix_proposer.h).
//
// Heads that draft from the target's hidden states (MTP layers, EAGLE, DFlash) are Proposers, too:
// the executor keeps the rows that the head's layers ask for in the step, `features` points at
// them, and OnTokens tells which of them became history. Such a head lives in models/, where the
// layout of a row is known; to the scheduler a row is opaque. A head that shares the target's cache
// gets a group of its own in the cache layout, so its pages are grown, forked and truncated with
// the sequence's and it keeps no tables.
//
// Thread: engine thread, between steps.
// Source: Leviathan, Kalman, Matias, "Fast Inference from Transformers via Speculative Decoding",
// arXiv:2211.17192; trees: arXiv:2305.09781.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/types.h"
#include "scheduler/sequence.h"

namespace quire {

// Tokens that may follow a sequence's last known token, in order.
struct DraftChain {
  std::vector<TokenId> tokens;
};

// One sequence that is about to compute its last known token.
struct DraftRequest {
  const Sequence* seq = nullptr;  // seq->tokens are all known: no guesses among them
  int32_t max_tokens = 0;         // per chain
  int32_t max_chains = 1;
  // Hidden states of the tokens that became known with the last step, as the target left them:
  // [num_feature_rows, bytes of a row], the last row of the last computed token. Empty unless the
  // executor was told to keep them; valid during Propose.
  std::span<const std::byte> features;
  int32_t num_feature_rows = 0;

  // Out; whatever was there is replaced. At most max_chains chains of 1 to max_tokens tokens, best
  // first, no two with the same first token. Empty: no guess.
  std::vector<DraftChain> chains;
};

class Proposer {
 public:
  virtual ~Proposer() = default;
  virtual std::string_view name() const = 0;  // as in SpeculationMethod: "ngram", "suffix", "draft"

  // Fills requests[i].chains. The requests are those of one step, so a draft model computes them
  // as one batch; no sequence is in it twice. Sequences need no introduction: a proposer catches up
  // with seq->tokens, whatever has been appended, cut or preempted since it saw them last.
  virtual void Propose(std::span<DraftRequest> requests) = 0;

  // `fresh`, the last tokens of seq.tokens, became known (a prompt is not told). Only for
  // sequences whose request this proposer serves or may learn from; told or not, what Propose
  // gives is a right answer, but a proposer that learns from outputs learns only what it is told.
  virtual void OnTokens(const Sequence& /*seq*/, std::span<const TokenId> /*fresh*/) {}

  // Known tokens of `seq`, the last one not counted, that a guess now would first have to compute.
  virtual int32_t NumBehind(const Sequence& /*seq*/) const { return 0; }

  // What was learnt of others' texts is forgotten: of all (null), or of one cache_salt.
  virtual void Flush(const std::string* /*cache_salt*/) {}

  // The sequence is gone: whatever is kept for it is freed. Ids that were never seen are ignored.
  virtual void OnEnd(SequenceId /*seq*/) {}
};

}  // namespace quire
