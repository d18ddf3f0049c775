#include "paged_cache/cache_events.h"

#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/status.h"
#include "paged_cache/sha256_cbor.h"

namespace quire {

int64_t CacheEvents::bytes() const {
  size_t sum = sizeof(CacheEvents) + events.capacity() * sizeof(Event) +
               hashes.capacity() * sizeof(PrefixHash) + tokens.capacity() * sizeof(TokenId);
  for (const std::string& salt : salts) sum += sizeof(salt) + salt.capacity();
  return static_cast<int64_t>(sum);
}

uint64_t EventHash(const PrefixHash& hash, PrefixHashAlgorithm algorithm) {
  if (algorithm == PrefixHashAlgorithm::kXxh3) return hash.lo;
  Sha256Digest digest;
  std::memcpy(digest.bytes.data(), &hash, sizeof(hash));
  return ExternalHash(digest);
}

std::string EventHashBytes(const PrefixHash& hash, PrefixHashAlgorithm algorithm) {
  const size_t size = algorithm == PrefixHashAlgorithm::kXxh3 ? 2 * sizeof(uint64_t) : sizeof(hash);
  std::string bytes(size, '\0');
  std::memcpy(bytes.data(), &hash, size);
  return bytes;
}

PrefixHash SaltedHash(const PrefixHash& hash, PrefixHashAlgorithm algorithm,
                      std::string_view salt) {
  if (algorithm != PrefixHashAlgorithm::kXxh3 || salt.empty()) return hash;
  const std::string bytes = EventHashBytes(hash, algorithm).append(salt);
  const XXH128_hash_t h = XXH3_128bits(bytes.data(), bytes.size());
  return {h.low64, h.high64};
}

bool HasEvents(const CacheGroup& group, int32_t block_size) {
  return group.page_size == block_size &&
         (group.kind == CacheKind::kFull || group.kind == CacheKind::kLatent ||
          group.kind == CacheKind::kSlidingWindow || group.kind == CacheKind::kChunkedLocal);
}

CacheEventLog::CacheEventLog(PrefixHashAlgorithm algorithm, int32_t block_size, size_t max_blocks)
    : algorithm_(algorithm), block_size_(block_size), max_blocks_(max_blocks) {
  log_.algorithm = algorithm;
}

// Telling all anew takes counts_.size() mentions.
bool CacheEventLog::MakesRoom() {
  if (overflowed_) return false;
  if (log_.hashes.size() < std::max(max_blocks_, 2 * counts_.size())) return true;
  overflowed_ = true;
  log_ = {.algorithm = algorithm_};
  return false;
}

void CacheEventLog::Stored(const Block& block, CacheTier tier) {
  if (!MakesRoom()) return;
  const PrefixHash hash = SaltedHash(block.hash, algorithm_, block.salt);
  if (counts_[Key{hash, block.group, tier}]++ > 0) return;
  const PrefixHash parent =
      block.has_parent ? SaltedHash(block.parent, algorithm_, block.salt) : PrefixHash{};
  DCHECK(std::ssize(block.tokens) == block_size_, "{} tokens in a block", block.tokens.size());
  // A chain goes on in the same event. Its hashes and tokens lie at the arrays' ends.
  const bool goes_on = !log_.events.empty() &&
                       log_.events.back().kind == CacheEvents::Kind::kStored &&
                       log_.events.back().tier == tier && log_.events.back().group == block.group &&
                       block.has_parent && log_.hashes.back() == parent;
  if (!goes_on) {
    CacheEvents::Event event{.kind = CacheEvents::Kind::kStored,
                             .tier = tier,
                             .group = block.group,
                             .first_hash = static_cast<int32_t>(log_.hashes.size()),
                             .first_token = static_cast<int32_t>(log_.tokens.size()),
                             .has_parent = block.has_parent,
                             .parent = parent};
    if (!block.salt.empty()) {
      if (log_.salts.empty() || log_.salts.back() != block.salt) {
        log_.salts.emplace_back(block.salt);
      }
      event.salt = static_cast<int32_t>(log_.salts.size()) - 1;
    }
    log_.events.push_back(event);
  }
  ++log_.events.back().num_blocks;
  log_.hashes.push_back(hash);
  log_.tokens.insert(log_.tokens.end(), block.tokens.begin(), block.tokens.end());
}

void CacheEventLog::Removed(const Block& block, CacheTier tier) {
  if (!MakesRoom()) return;
  const PrefixHash hash = SaltedHash(block.hash, algorithm_, block.salt);
  const auto it = counts_.find(Key{hash, block.group, tier});
  CHECK(it != counts_.end(), "a block of group {} in tier {} was removed, but never stored",
        block.group, static_cast<int>(tier));
  if (--it->second > 0) return;
  counts_.erase(it);
  const bool goes_on = !log_.events.empty() &&
                       log_.events.back().kind == CacheEvents::Kind::kRemoved &&
                       log_.events.back().tier == tier && log_.events.back().group == block.group;
  if (!goes_on) {
    log_.events.push_back({.kind = CacheEvents::Kind::kRemoved,
                           .tier = tier,
                           .group = block.group,
                           .first_hash = static_cast<int32_t>(log_.hashes.size())});
  }
  ++log_.events.back().num_blocks;
  log_.hashes.push_back(hash);
}

void CacheEventLog::Cleared() {
  if (overflowed_) return;
  counts_.clear();
  log_ = {.algorithm = algorithm_};  // what was told before does not matter any more
  log_.events.push_back({.kind = CacheEvents::Kind::kCleared});
}

CacheEvents CacheEventLog::Take() {
  CHECK(!overflowed_, "Take() without Restart()");
  return std::exchange(log_, {.algorithm = algorithm_});
}

void CacheEventLog::Restart() {
  overflowed_ = false;
  Cleared();
}

}  // namespace quire
