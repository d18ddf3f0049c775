// paged_cache/sha256_cbor.h -- the block hash `sha256_cbor`, the same bytes as vLLM's.
//
//   hash(block i) = SHA-256(CBOR([hash(block i - 1), [token ids], extra keys or null]))
//   hash(block -1) = NONE_HASH = SHA-256(CBOR(seed as text))
//
// CBOR is canonical (RFC 8949, 4.2.1: shortest heads, definite lengths). Only full blocks have a
// hash. The extra keys of a block are, in this order, ["lora", name, path] and, in block 0 only,
// ["cache_salt", salt]; null if there are none. What else divides prefixes (the model's
// fingerprint, the group) divides our index and is not part of these bytes, so that replicas, other
// engines and routers agree on them.
//
// Source: vLLM 0.33, v1/core/kv_cache_utils.py (facts, no code).
// Thread: any.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/types.h"
#include "paged_cache/sha256.h"

namespace quire {

inline constexpr std::string_view kDefaultHashSeed = "vllm-none-hash";

// What else than parent and tokens is hashed into a block. Texts are UTF-8.
struct ExtraKeys {
  struct Lora {
    std::string name;
    std::string path;
  };
  std::optional<Lora> lora;
  std::string cache_salt;  // empty = none
};

Sha256Digest NoneHash(std::string_view seed = kDefaultHashSeed);

// The bytes that are hashed for one block.
std::string EncodeBlockCbor(const Sha256Digest& parent, std::span<const TokenId> tokens,
                            const ExtraKeys& extra);
Sha256Digest HashBlockSha256Cbor(const Sha256Digest& parent, std::span<const TokenId> tokens,
                                 const ExtraKeys& extra);

// The hash as other programs' events carry it: its last 8 bytes, read big-endian. A proto int64
// holds the same bits, signed.
uint64_t ExternalHash(const Sha256Digest& hash);

// The hashes of one sequence's blocks.
class Sha256CborChain {
 public:
  // REQUIRES: block_size > 0.
  Sha256CborChain(std::string_view seed, int32_t block_size, ExtraKeys extra);

  // Appends the hashes of all full blocks of `tokens` that `chain` does not have yet. `tokens` are
  // the sequence's tokens from its start.
  void Extend(std::span<const TokenId> tokens, std::vector<Sha256Digest>& chain) const;

 private:
  Sha256Digest none_hash_;
  size_t block_size_;
  ExtraKeys first_;  // extra keys of block 0
  ExtraKeys later_;  // of all others
};

}  // namespace quire
