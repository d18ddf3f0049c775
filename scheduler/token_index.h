// scheduler/token_index.h -- a text that tells where its n-grams occurred before, in constant time
// per token: what n-gram and suffix lookup are made of.
//
// For a few lengths n (min_match, twice that, ... up to max_match) each position is linked to the
// one before it whose last n tokens fall into the same hash bucket, as in LZ77 compressors. Only
// positions that something follows are linked, so a text's own end is never found in it. Every hit
// is compared with the text before it is given out: a hash collision costs a step, never a wrong
// hit, and the steps of a lookup are bounded, so text that was made to collide gains nothing.
//
// Memory: 4 bytes per token, and 12 to 20 per token and length.
// Thread: engine thread.
// Source: prompt lookup as in transformers' generate (prompt_lookup_num_tokens); hash chains as in
// RFC 1951, section 4.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "base/types.h"
#include "scheduler/sequence.h"

namespace quire {

// The shortest match of 2 is a compromise that was measured with guesses of four tokens: of greedy
// continuations of SmolLM2 (no editing), lengths of 1, 2, 4 guess in 46%, 19%, 6% of steps and 18%,
// 33%, 61% of the guesses are right; of a text with 3% of its tokens changed they bring 3.95, 3.73,
// 3.32 tokens a step.
struct MatchOptions {
  int32_t min_match = 2;        // shortest suffix worth a guess; at least 1
  int32_t max_match = 8;        // longest that is indexed
  int32_t max_compare = 32;     // match lengths beyond it count as equal
  int32_t max_occurrences = 8;  // looked at per length, the most recent first
};

class TokenIndex {
 public:
  // Stands between texts that have nothing to do with each other; matches nothing.
  static constexpr TokenId kSeparator = -1;

  struct Occurrence {
    int32_t next = 0;       // position of the token that follows it
    int32_t match_len = 0;  // tokens before `next` that equal the suffix's, at most max_compare
  };

  // REQUIRES: 1 <= min_match <= max_match <= max_compare, max_occurrences >= 1.
  explicit TokenIndex(const MatchOptions& options = {});

  std::span<const TokenId> tokens() const { return tokens_; }
  size_t size() const { return tokens_.size(); }

  void Append(std::span<const TokenId> tokens);
  // Tokens by which only what is appended next is found: a text's beginning, a separator.
  void AppendContext(std::span<const TokenId> tokens);
  // As if tokens [size, ...) had never been there. REQUIRES: size <= size().
  void Truncate(size_t size);

  // Indexed lengths, ascending.
  std::span<const int32_t> lengths() const { return lengths_; }
  // Appends the most recent occurrences of the last lengths()[level] tokens of `text`, without
  // those that also have the next longer length: longest match first, then most recent first.
  void Find(size_t level, std::span<const TokenId> text, std::vector<Occurrence>& found) const;

  size_t bytes() const;  // that it holds

 private:
  static constexpr int32_t kNone = -1;
  static constexpr int32_t kNotLinked = -2;

  void Reserve(size_t num_tokens);
  void Link(size_t position);
  // Of the hash of the last lengths_[level] tokens before `end`, for every level that fits.
  size_t Buckets(std::span<const TokenId> text, std::span<uint32_t> buckets) const;

  MatchOptions options_;
  std::vector<int32_t> lengths_;
  std::vector<TokenId> tokens_;
  int bucket_bits_ = 0;
  std::vector<int32_t> heads_;  // [level, bucket]: last position linked there, or kNone
  std::vector<int32_t> links_;  // [position, level]: the one before it, kNone or kNotLinked
};

// The own texts of live sequences. A sequence is introduced by its first CatchUp.
class SequenceTexts {
 public:
  explicit SequenceTexts(const MatchOptions& options) : options_(options) {}

  // The index of exactly seq.tokens, whatever became of them since the last call: O(1) for each
  // token that came or went.
  const TokenIndex& CatchUp(const Sequence& seq);
  void Forget(SequenceId seq) { texts_.erase(seq); }
  size_t num_sequences() const { return texts_.size(); }

 private:
  const MatchOptions options_;
  absl::flat_hash_map<SequenceId, TokenIndex> texts_;
};

// Appends up to max_tokens tokens that follow an occurrence in `text`. They may run over its end:
// then they repeat themselves, as a text that has become periodic does.
void Continue(std::span<const TokenId> text, int32_t next, int32_t max_tokens,
              std::vector<TokenId>& continuation);

}  // namespace quire
