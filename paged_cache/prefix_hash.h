// paged_cache/prefix_hash.h -- parent-chained page hashes (contract C2).
#pragma once

#include <compare>
#include <cstdint>
#include <span>
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

// Appends the hashes of all full pages of `tokens` that `chain` does not have yet.
void ExtendChain(std::span<const TokenId> tokens, int32_t block_size,
                 std::vector<PrefixHash>& chain);

}  // namespace quire
