// Canonical XXH3-128 (XXH128) of the bytes  parent.lo | parent.hi | token ids, 32-bit each, all
// little-endian. The parent enters as data, not as a seed: a seed has 64 bits only.
#include "paged_cache/prefix_hash.h"

#include <xxhash.h>

#include <bit>
#include <cstring>

#include "base/status.h"

namespace quire {

static_assert(std::endian::native == std::endian::little, "hashes are defined over little-endian");

PrefixHash HashPage(const PrefixHash& parent, std::span<const TokenId> tokens) {
  constexpr size_t kMaxTokens = 128;  // the widest block size
  CHECK(tokens.size() <= kMaxTokens, "{} tokens in a page", tokens.size());
  unsigned char bytes[2 * sizeof(uint64_t) + kMaxTokens * sizeof(TokenId)];
  std::memcpy(bytes, &parent.lo, sizeof(uint64_t));
  std::memcpy(bytes + sizeof(uint64_t), &parent.hi, sizeof(uint64_t));
  std::memcpy(bytes + 2 * sizeof(uint64_t), tokens.data(), tokens.size_bytes());
  const XXH128_hash_t h = XXH3_128bits(bytes, 2 * sizeof(uint64_t) + tokens.size_bytes());
  return {h.low64, h.high64};
}

void ExtendChain(std::span<const TokenId> tokens, int32_t block_size,
                 std::vector<PrefixHash>& chain) {
  CHECK(block_size > 0, "block_size={}", block_size);
  const size_t size = static_cast<size_t>(block_size);
  for (size_t at = chain.size() * size; at + size <= tokens.size(); at += size) {
    chain.push_back(
        HashPage(chain.empty() ? PrefixHash{} : chain.back(), tokens.subspan(at, size)));
  }
}

}  // namespace quire
