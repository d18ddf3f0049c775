// scheduler/ngram_proposer.h -- guesses that a sequence repeats itself ("prompt lookup"): good for
// editing, quoting, code, and loops.
//
// The longest suffix of the sequence that occurs earlier in it is found, at its most recent
// occurrence, and what follows there is proposed. Further chains are what follows the next best
// occurrences, by match length, then by recency. Match lengths are told apart as TokenIndex does:
// among the max_occurrences most recent occurrences of each indexed length, from the longest down.
//
// Kept per sequence: an index of its tokens, freed by OnEnd. Preempted sequences keep it, as they
// keep their tokens. Cost: O(1) per new token plus O(tokens proposed).
// Thread: engine thread.
#pragma once

#include <vector>

#include "scheduler/speculative.h"
#include "scheduler/token_index.h"

namespace quire {

class NgramProposer : public Proposer {
 public:
  explicit NgramProposer(const MatchOptions& options = {}) : texts_(options) {}

  std::string_view name() const override { return "ngram"; }
  void Propose(std::span<DraftRequest> requests) override;
  void OnEnd(SequenceId seq) override { texts_.Forget(seq); }

  size_t num_sequences() const { return texts_.num_sequences(); }  // with an index

 private:
  SequenceTexts texts_;
  std::vector<TokenIndex::Occurrence> found_;
};

}  // namespace quire
