// paged_cache/cache_events.h -- what of the cache became findable and what ceased to be, for those
// who route requests to where their prefix is (KV events).
//
// CacheEventLog is filled by PrefixIndex and taken once per step; without one nothing is recorded.
// A block is told by the hash of its prefix. Contents of equal hash are counted, so that "stored"
// and "removed" of one (hash, group, tier) alternate, whatever happens to a single page. What a
// bypassing request keeps to itself is not told.
//
// Bounded: when so much has happened since the last Take() that telling all anew is shorter, the
// log is dropped and the next Take() is "cleared" and what is there then.
//
// Thread: engine thread only.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "base/types.h"
#include "paged_cache/cache_layout.h"
#include "paged_cache/prefix_hash.h"

namespace quire {

enum class CacheTier : uint8_t { kPool, kHost, kFiles };

// Flat arrays. Events are in the order in which they happened.
struct CacheEvents {
  enum class Kind : uint8_t { kStored, kRemoved, kCleared };
  struct Event {
    Kind kind = Kind::kCleared;
    CacheTier tier = CacheTier::kPool;
    int32_t group = 0;        // of the layout; of stored and removed ones
    int32_t first_hash = 0;   // hashes[first_hash, first_hash + num_blocks)
    int32_t num_blocks = 0;   // of a stored event: a chain, each the child of the one before
    int32_t first_token = 0;  // stored: tokens[first_token, ... + num_blocks * block size)
    int32_t salt = -1;        // stored: index into salts, -1 = none
    bool has_parent = false;  // stored: false = the first block is the first of its prefix
    PrefixHash parent;
  };
  PrefixHashAlgorithm algorithm = PrefixHashAlgorithm::kXxh3;
  std::vector<Event> events;
  std::vector<PrefixHash> hashes;
  std::vector<TokenId> tokens;
  std::vector<std::string> salts;

  bool empty() const { return events.empty(); }
  int64_t bytes() const;  // of memory, about
};

// A block's hash as events carry it: sha256_cbor's last 8 bytes read big-endian, as other engines
// have it, or xxh3's first 8, little-endian.
uint64_t EventHash(const PrefixHash& hash, PrefixHashAlgorithm algorithm);
// All of it: the 32 bytes of a SHA-256, or 16.
std::string EventHashBytes(const PrefixHash& hash, PrefixHashAlgorithm algorithm);

// The block's name for those outside. xxh3 does not hash the salt, so here it enters; equal on all
// replicas.
PrefixHash SaltedHash(const PrefixHash& hash, PrefixHashAlgorithm algorithm, std::string_view salt);

// Whether pages of the group are told: those that hold keys and values of each of a block's tokens.
bool HasEvents(const CacheGroup& group, int32_t block_size);

class CacheEventLog {
 public:
  // max_blocks: mentions of a block in one Take(), at most.
  CacheEventLog(PrefixHashAlgorithm algorithm, int32_t block_size, size_t max_blocks);

  // Where a block stands.
  struct Block {
    PrefixHash hash;
    PrefixHash parent;  // unused of a first block
    bool has_parent = false;
    int32_t group = 0;
    std::string_view salt;
    std::span<const TokenId> tokens;
  };
  // The content of a block is in a tier from now on, or has left it.
  void Stored(const Block& block, CacheTier tier);
  void Removed(const Block& block, CacheTier tier);
  // Instead of removals of all there is.
  void Cleared();

  // All since the last call.
  CacheEvents Take();
  // Whether Take() would lack something: Restart, tell all that is there as Stored, then Take().
  bool needs_restart() const { return overflowed_; }
  void Restart();

  // Contents that are told as stored now.
  size_t num_stored() const { return counts_.size(); }

 private:
  struct Key {
    PrefixHash hash;
    int32_t group = 0;
    CacheTier tier = CacheTier::kPool;
    friend bool operator==(const Key&, const Key&) = default;
    template <typename H>
    friend H AbslHashValue(H h, const Key& k) {
      return H::combine(std::move(h), k.hash, k.group, k.tier);
    }
  };
  bool MakesRoom();

  const PrefixHashAlgorithm algorithm_;
  const int32_t block_size_;
  const size_t max_blocks_;
  CacheEvents log_;
  absl::flat_hash_map<Key, int32_t> counts_;
  bool overflowed_ = false;
};

}  // namespace quire
