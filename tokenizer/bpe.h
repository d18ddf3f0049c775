// tokenizer/bpe.h -- byte-pair encoding of one piece.
//
// Merges are taken in order of rank, leftmost first, by a heap over a linked list of symbols: about
// n log n in the length of the piece, however the piece looks. Results are those of the BPE model
// of PyPI's `tokenizers`. Immutable after load, any thread; scratch memory is the caller's.
//
// Source: Sennrich et al. 2016 (arXiv:1508.07909), section 3.2.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "base/status.h"
#include "base/types.h"
#include "tokenizer/vocabulary.h"

namespace quire {

struct BpeOptions {
  bool ignore_merges = false;  // a piece that is a token as it stands is not taken apart
  bool byte_fallback = false;  // unknown characters become <0xXX> tokens where all of them exist
  bool fuse_unk = false;       // a run of unknown characters is one unknown token
  std::optional<TokenId> unk;  // without it unknown characters vanish
};

// Memory that a caller keeps from piece to piece.
struct BpeScratch {
  struct Symbol {
    TokenId id;
    int32_t prev;
    int32_t next;
  };
  struct Candidate {
    int32_t rank;
    int32_t pos;
    TokenId merged;
  };
  std::vector<Symbol> symbols;
  std::vector<Candidate> heap;
  int64_t num_candidates = 0;  // ever pushed: the measure of work
};

class Bpe {
 public:
  // Merges in order of rank. ERRORS: kInvalidArgument for a merge whose parts or whose result are
  // not in the vocabulary. REQUIRES: the vocabulary outlives the model.
  static absl::StatusOr<Bpe> Create(
      const Vocabulary* vocabulary,
      const std::vector<std::pair<std::string_view, std::string_view>>& merges, BpeOptions options);

  // Appends the ids of `piece`, whose bytes are the symbols (the last pre-tokenizer is ByteLevel).
  void EncodeBytes(std::string_view piece, BpeScratch& scratch, std::vector<TokenId>& out) const;
  // The same where the characters of `piece` are the symbols. REQUIRES: well-formed UTF-8.
  void EncodeChars(std::string_view piece, BpeScratch& scratch, std::vector<TokenId>& out) const;

 private:
  struct Merge {
    int32_t rank;
    TokenId merged;
  };
  static uint64_t Pair(TokenId left, TokenId right) {
    return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
  }
  void PushCandidate(BpeScratch& scratch, int32_t left) const;
  void MergeAll(BpeScratch& scratch, std::vector<TokenId>& out) const;

  const Vocabulary* vocabulary_ = nullptr;
  BpeOptions options_;
  absl::flat_hash_map<uint64_t, Merge> merges_;
  std::array<TokenId, 256> byte_symbols_{};     // -1: the byte has no token
  std::array<TokenId, 256> fallback_tokens_{};  // <0xXX>; -1: none
};

}  // namespace quire
