// Canonical XXH3-128 (XXH128) of the bytes  parent.lo | parent.hi | token ids, 32-bit each, all
// little-endian. The parent enters as data, not as a seed: a seed has 64 bits only.
#include "paged_cache/prefix_hash.h"

#include <xxhash.h>

#include <bit>
#include <cstring>

#include "base/status.h"
#include "paged_cache/sha256_cbor.h"

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

namespace {

PrefixHash FromDigest(const Sha256Digest& digest) {
  PrefixHash h;
  static_assert(sizeof(h) == sizeof(digest.bytes));
  std::memcpy(&h, digest.bytes.data(), sizeof(h));
  return h;
}

Sha256Digest ToDigest(const PrefixHash& hash) {
  Sha256Digest digest;
  std::memcpy(digest.bytes.data(), &hash, sizeof(hash));
  return digest;
}

}  // namespace

PrefixHasher::PrefixHasher(PrefixHashAlgorithm algorithm, std::string_view seed,
                           std::string_view cache_salt)
    : algorithm_(algorithm) {
  if (algorithm == PrefixHashAlgorithm::kSha256Cbor) {
    start_ = FromDigest(seed.empty() ? NoneHash() : NoneHash(seed));
    cache_salt_ = cache_salt;
  } else if (!seed.empty()) {
    const XXH128_hash_t h = XXH3_128bits(seed.data(), seed.size());
    start_ = {h.low64, h.high64};
  }
}

PrefixHash PrefixHasher::Next(const PrefixHash* parent, std::span<const TokenId> tokens) const {
  const PrefixHash& before = parent == nullptr ? start_ : *parent;
  if (algorithm_ == PrefixHashAlgorithm::kXxh3) return HashPage(before, tokens);
  ExtraKeys extra;
  if (parent == nullptr) extra.cache_salt = cache_salt_;
  return FromDigest(HashBlockSha256Cbor(ToDigest(before), tokens, extra));
}

void PrefixHasher::Extend(std::span<const TokenId> tokens, int32_t block_size,
                          std::vector<PrefixHash>& chain) const {
  CHECK(block_size > 0, "block_size={}", block_size);
  const size_t size = static_cast<size_t>(block_size);
  for (size_t at = chain.size() * size; at + size <= tokens.size(); at += size) {
    chain.push_back(Next(chain.empty() ? nullptr : &chain.back(), tokens.subspan(at, size)));
  }
}

void ExtendChain(std::span<const TokenId> tokens, int32_t block_size,
                 std::vector<PrefixHash>& chain) {
  PrefixHasher().Extend(tokens, block_size, chain);
}

}  // namespace quire
