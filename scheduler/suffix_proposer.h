// scheduler/suffix_proposer.h -- guesses from what the server has generated before, and from the
// sequence's own text: good for agents, retries, and many requests that look alike.
//
// The longest suffix of the sequence that occurs in its own text or in earlier outputs of its scope
// is found; the occurrences with that match length vote on what follows, token by token: the most
// frequent continuation of those that agree with the chain so far, of equals the one that comes
// first (own text before outputs, then the most recent). Chains that begin differently follow by
// votes, then from shorter matches. Only the max_occurrences most recent occurrences of each
// indexed length count, in each text that is searched.
//
// Privacy: outputs are kept by scope, which is the pair of tenant and cache_salt, compared exactly.
// A guess can't change an output, but a right one is quick, so text of one scope is never proposed
// in another: else timing would tell whether others generated the same. A request with
// bypass_prefix_cache neither feeds nor reads a scope; its own text still serves it.
//
// Memory: at most max_tokens tokens of outputs in all scopes together. A scope that needs room
// takes it from the one least recently used, and at last from its own older half. An output becomes
// findable in blocks of kBlockTokens and at its end.
//
// Thread: engine thread. Cost: O(1) per new token, O(max_occurrences * tokens proposed) per guess.
// Source: SuffixDecoding, arXiv:2411.04975 (there: suffix trees with counts).
#pragma once

#include <list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "scheduler/speculative.h"
#include "scheduler/token_index.h"

namespace quire {

struct SuffixOptions {
  MatchOptions match{.max_occurrences = 16};
  int32_t max_tokens = 1 << 20;  // of outputs kept, at least 2 * kBlockTokens
};

class SuffixProposer : public Proposer {
 public:
  static constexpr int32_t kBlockTokens = 256;
  // What a scope costs beside its tokens, so that many tiny scopes are bounded, too.
  static constexpr int32_t kScopeTokens = 64;

  explicit SuffixProposer(const SuffixOptions& options = {});

  std::string_view name() const override { return "suffix"; }
  void Propose(std::span<DraftRequest> requests) override;
  void OnTokens(const Sequence& seq, std::span<const TokenId> fresh) override;
  void OnEnd(SequenceId seq) override;

  // Forgets the outputs of one salt, whatever the tenant, or all; what live sequences have not
  // handed in yet is theirs and stays. Goes with flushes of the prefix cache.
  void Flush(const std::string* cache_salt) override;

  size_t num_scopes() const { return scopes_.size(); }
  int64_t num_tokens() const { return num_tokens_; }  // kept, as counted against max_tokens
  size_t num_sequences() const { return texts_.num_sequences() + live_.size(); }

 private:
  using ScopeKey = std::pair<std::string, std::string>;  // tenant, cache_salt
  struct Scope {
    ScopeKey key;
    // Outputs with separators between; `older` is full and goes when `recent` is.
    std::unique_ptr<TokenIndex> recent, older;
    std::list<Scope*>::iterator by_use;
    int64_t num_tokens() const;
  };
  // Of a live sequence: the output that its scope has not got yet, with some tokens before it.
  struct Live {
    ScopeKey scope;
    std::vector<TokenId> pending;
    size_t num_context = 0;  // of pending, tokens that are known to the scope or the prompt's
  };
  struct Vote {
    const TokenIndex* index = nullptr;
    bool own = false;
    TokenIndex::Occurrence at;
    bool agrees = true;
  };

  Scope* Find(const Sequence& seq);
  void HandIn(Live& live);
  void MakeRoom(Scope& scope, int32_t num_tokens);
  void Drop(Scope& scope);
  void AddChains(std::span<Vote> votes, DraftRequest& request) const;

  const SuffixOptions options_;
  SequenceTexts texts_;
  absl::flat_hash_map<SequenceId, Live> live_;
  absl::flat_hash_map<ScopeKey, std::unique_ptr<Scope>> scopes_;
  std::list<Scope*> by_use_;  // least recently used first
  int64_t num_tokens_ = 0;
  std::vector<Vote> votes_;
  std::vector<TokenIndex::Occurrence> found_;
};

}  // namespace quire
