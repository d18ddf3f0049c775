// paged_cache/prefix_hash.h -- parent-chained page hashes (contract C2).
#pragma once

#include <compare>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/types.h"

namespace quire {

// 128-bit XXH3 over (parent hash, token ids), or all 256 bits of a SHA-256. Equal hashes are a
// hint, never a proof: a hit also compares tokens, root and parent page.
struct PrefixHash {
  uint64_t lo = 0;
  uint64_t hi = 0;
  // SHA-256 only: its last 16 bytes; `lo` and `hi` are the first. Little-endian words.
  uint64_t more_lo = 0;
  uint64_t more_hi = 0;
  friend auto operator<=>(const PrefixHash&, const PrefixHash&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const PrefixHash& p) {
    return H::combine(std::move(h), p.lo, p.hi, p.more_lo, p.more_hi);
  }
};

PrefixHash HashPage(const PrefixHash& parent, std::span<const TokenId> tokens);

enum class PrefixHashAlgorithm : uint8_t {
  kXxh3,        // fast; equal on all replicas
  kSha256Cbor,  // the bytes that other engines and their routers hash, see sha256_cbor.h
};

// How a sequence's chain begins and goes on. All sequences of one root have the same.
class PrefixHasher {
 public:
  // XXH3 from no parent: the default of everything.
  PrefixHasher() = default;
  // `seed`: empty = the algorithm's own; else chains of other seeds never meet ours. `cache_salt`
  // is part of the bytes of sha256_cbor only: XXH3 chains are told apart by their roots.
  PrefixHasher(PrefixHashAlgorithm algorithm, std::string_view seed, std::string_view cache_salt);

  PrefixHash Next(const PrefixHash* parent, std::span<const TokenId> tokens) const;
  // Appends the hashes of all full blocks of `tokens` that `chain` does not have yet.
  void Extend(std::span<const TokenId> tokens, int32_t block_size,
              std::vector<PrefixHash>& chain) const;

 private:
  PrefixHashAlgorithm algorithm_ = PrefixHashAlgorithm::kXxh3;
  PrefixHash start_;  // the parent of a first block
  std::string cache_salt_;
};

// Appends the hashes of all full pages of `tokens` that `chain` does not have yet.
void ExtendChain(std::span<const TokenId> tokens, int32_t block_size,
                 std::vector<PrefixHash>& chain);

}  // namespace quire
