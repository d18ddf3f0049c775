// server/vllm/vllm_kv_events.cc -- see vllm_kv_events.h.
#include "server/vllm/vllm_kv_events.h"

#include <optional>

#include "server/grpc/kv_event_streams.h"

namespace quire {
namespace {

namespace smg = ::smg::grpc::common;

smg::KvCacheTier TierOf(CacheTier tier) {
  switch (tier) {
    case CacheTier::kPool:
      return smg::KV_CACHE_TIER_DEVICE;
    case CacheTier::kHost:
      return smg::KV_CACHE_TIER_HOST;
    case CacheTier::kFiles:
      return smg::KV_CACHE_TIER_DISK;
  }
  return smg::KV_CACHE_TIER_UNSPECIFIED;
}

// What readers know that are older than tiers: 1 host, 2 disk, and nothing for the device.
std::optional<int32_t> LevelOf(CacheTier tier) {
  if (tier == CacheTier::kPool) return std::nullopt;
  return tier == CacheTier::kHost ? 1 : 2;
}

template <typename Told>
void SetPlace(const CacheEvents::Event& e, const KvEventFacts& facts, Told& out) {
  out.set_tier(TierOf(e.tier));
  const std::string_view medium = MediumOf(e.tier);
  out.set_medium(medium.data(), medium.size());
  if (facts.many_groups) out.set_group_idx(static_cast<uint32_t>(e.group));
}

void FillStored(const CacheEvents& events, const CacheEvents::Event& e, const KvEventFacts& facts,
                smg::KvBlocksStored& out) {
  SetPlace(e, facts, out);
  if (e.has_parent) {
    out.set_parent_block_hash(static_cast<int64_t>(EventHash(e.parent, events.algorithm)));
  }
  if (facts.many_groups) {
    const KvEventGroup& group = facts.groups[static_cast<size_t>(e.group)];
    out.set_kv_cache_spec_kind(group.spec_kind.data(), group.spec_kind.size());
    if (group.window > 0) {
      out.set_kv_cache_spec_sliding_window(static_cast<uint32_t>(group.window));
    }
  }
  const std::optional<int32_t> level = LevelOf(e.tier);
  const TokenId* tokens = events.tokens.data() + e.first_token;
  for (int32_t i = 0; i < e.num_blocks; ++i) {
    smg::KvBlock& block = *out.add_blocks();
    const PrefixHash& hash = events.hashes[static_cast<size_t>(e.first_hash + i)];
    block.set_block_hash(static_cast<int64_t>(EventHash(hash, events.algorithm)));
    block.mutable_token_ids()->Add(tokens, tokens + facts.block_size);
    tokens += facts.block_size;
    block.set_block_size(facts.block_size);
    if (level.has_value()) block.set_cache_level(*level);
  }
  if (e.salt < 0) return;
  const std::string& salt = events.salts[static_cast<size_t>(e.salt)];
  out.set_cache_salt(salt);
  // A salt enters the hash of a prompt's first block.
  if (!e.has_parent) out.mutable_blocks(0)->add_extra_keys()->set_text(salt);
}

void FillRemoved(const CacheEvents& events, const CacheEvents::Event& e, const KvEventFacts& facts,
                 smg::KvBlocksRemoved& out) {
  SetPlace(e, facts, out);
  const std::optional<int32_t> level = LevelOf(e.tier);
  if (level.has_value()) out.set_cache_level(*level);
  for (int32_t i = 0; i < e.num_blocks; ++i) {
    const PrefixHash& hash = events.hashes[static_cast<size_t>(e.first_hash + i)];
    out.add_block_hashes(static_cast<int64_t>(EventHash(hash, events.algorithm)));
  }
}

}  // namespace

smg::KvEventBatch ToVllm(const KvEventBatch& batch, const KvEventFacts& facts,
                         uint64_t& next_event_id) {
  smg::KvEventBatch out;
  out.set_sequence_number(ToldSequence(batch));
  out.set_timestamp(static_cast<double>(batch.time_ns) / 1e9);
  out.set_dp_rank(0);
  if (batch.is_snapshot) {
    smg::KvSnapshotChunk& chunk = *out.mutable_snapshot();
    chunk.set_index(batch.snapshot_index);
    chunk.set_count(batch.snapshot_count);
    chunk.set_blocks(batch.snapshot_blocks);
  }
  if (BeginsAnew(batch)) out.add_events()->mutable_cleared();
  for (const CacheEvents::Event& e : batch.events.events) {
    smg::KvCacheEvent& event = *out.add_events();
    if (!batch.is_snapshot) event.set_event_id(next_event_id++);
    switch (e.kind) {
      case CacheEvents::Kind::kStored:
        FillStored(batch.events, e, facts, *event.mutable_stored());
        break;
      case CacheEvents::Kind::kRemoved:
        FillRemoved(batch.events, e, facts, *event.mutable_removed());
        break;
      case CacheEvents::Kind::kCleared:
        event.mutable_cleared();
    }
  }
  return out;
}

}  // namespace quire
