// tests/kv_event_messages_test.cc -- KV events as messages of smg.grpc.common and openengine.v1.
// Hashes are those that vLLM 0.33 has for the same blocks.
#include <gtest/gtest.h>

#include <cstring>

#include "server/events/kv_event_hub.h"
#include "server/openengine/oe_kv_events.h"
#include "server/vllm/vllm_kv_events.h"

namespace quire {
namespace {

namespace oe = ::openengine::v1;
namespace smg = ::smg::grpc::common;
using Kind = CacheEvents::Kind;

PrefixHash HashOf(const std::string& hex) {
  std::string bytes;
  for (size_t i = 0; i < hex.size(); i += 2) {
    bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  }
  PrefixHash hash;
  CHECK(sizeof(hash) == bytes.size(), "{} bytes", sizeof(hash));
  std::memcpy(&hash, bytes.data(), sizeof(hash));
  return hash;
}

// Tokens 0..31 in two blocks of 16 by sha256_cbor with the usual seed.
const char* const kBlock1 = "dc918a88b139e5afe60b88eda27508d4aee16c10fdc354791efea06206ac0749";
const char* const kBlock2 = "c300ec275d7bf08af8fc63e76cdc0086911bbc7091e03c5cf892553bef84ef0c";
constexpr int64_t kBlock1Int = 2233398808101521225;
constexpr int64_t kBlock2Int = -535271689793769716;

KvEventFacts Facts(bool many_groups = false) {
  KvEventFacts facts{.block_size = 16, .groups = {{"full_attention", 0}, {"sliding_window", 64}}};
  facts.many_groups = many_groups;
  return facts;
}

KvEventBatch TwoBlocks() {
  KvEventBatch batch;
  batch.sequence = 7;
  batch.time_ns = 1'500'000'000;
  CacheEvents& events = batch.events;
  events.algorithm = PrefixHashAlgorithm::kSha256Cbor;
  events.hashes = {HashOf(kBlock1), HashOf(kBlock2)};
  for (TokenId t = 0; t < 32; ++t) events.tokens.push_back(t);
  events.events.push_back({.kind = Kind::kStored, .num_blocks = 2});
  return batch;
}

TEST(VllmKvEvents, HashesAreThoseOfVllm) {
  uint64_t next_id = 5;
  const smg::KvEventBatch told = ToVllm(TwoBlocks(), Facts(), next_id);
  EXPECT_EQ(told.sequence_number(), 7u);
  EXPECT_EQ(told.timestamp(), 1.5);
  EXPECT_TRUE(told.has_dp_rank() && told.dp_rank() == 0);
  EXPECT_FALSE(told.has_snapshot());
  ASSERT_EQ(told.events_size(), 1);
  EXPECT_EQ(told.events(0).event_id(), 5u);
  EXPECT_EQ(next_id, 6u);
  const smg::KvBlocksStored& stored = told.events(0).stored();
  EXPECT_FALSE(stored.has_parent_block_hash());
  EXPECT_EQ(stored.tier(), smg::KV_CACHE_TIER_DEVICE);
  EXPECT_EQ(stored.medium(), "GPU");
  EXPECT_FALSE(stored.has_group_idx());
  EXPECT_FALSE(stored.has_cache_salt());
  ASSERT_EQ(stored.blocks_size(), 2);
  EXPECT_EQ(stored.blocks(0).block_hash(), kBlock1Int);
  EXPECT_EQ(stored.blocks(1).block_hash(), kBlock2Int);
  for (int b = 0; b < 2; ++b) {
    EXPECT_EQ(stored.blocks(b).block_size(), 16);
    ASSERT_EQ(stored.blocks(b).token_ids_size(), 16);
    EXPECT_EQ(stored.blocks(b).token_ids(3), static_cast<uint32_t>(16 * b + 3));
    EXPECT_FALSE(stored.blocks(b).has_cache_level());
    EXPECT_EQ(stored.blocks(b).extra_keys_size(), 0);
  }
}

TEST(VllmKvEvents, ParentsSaltsTiersAndGroups) {
  KvEventBatch batch = TwoBlocks();
  CacheEvents& events = batch.events;
  events.salts = {"tenant"};
  CacheEvents::Event second = events.events[0];
  events.events[0].num_blocks = 1;
  events.events[0].salt = 0;
  second.num_blocks = 1;
  second.first_hash = 1;
  second.first_token = 16;
  second.salt = 0;
  second.has_parent = true;
  second.parent = events.hashes[0];
  second.group = 1;
  second.tier = CacheTier::kHost;
  events.events.push_back(second);
  events.events.push_back(
      {.kind = Kind::kRemoved, .tier = CacheTier::kFiles, .group = 1, .num_blocks = 2});
  events.events.push_back({.kind = Kind::kCleared});
  uint64_t next_id = 1;
  const smg::KvEventBatch told = ToVllm(batch, Facts(/*many_groups=*/true), next_id);
  ASSERT_EQ(told.events_size(), 4);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(told.events(i).event_id(), static_cast<uint64_t>(i + 1));
  const smg::KvBlocksStored& first = told.events(0).stored();
  EXPECT_EQ(first.group_idx(), 0u);
  EXPECT_EQ(first.kv_cache_spec_kind(), "full_attention");
  EXPECT_FALSE(first.has_kv_cache_spec_sliding_window());
  EXPECT_EQ(first.cache_salt(), "tenant");
  ASSERT_EQ(first.blocks(0).extra_keys_size(), 1);
  EXPECT_EQ(first.blocks(0).extra_keys(0).text(), "tenant");
  const smg::KvBlocksStored& child = told.events(1).stored();
  EXPECT_EQ(child.parent_block_hash(), kBlock1Int);
  EXPECT_EQ(child.blocks(0).token_ids(0), 16u);
  EXPECT_EQ(child.blocks(0).cache_level(), 1);
  EXPECT_EQ(child.tier(), smg::KV_CACHE_TIER_HOST);
  EXPECT_EQ(child.medium(), "CPU");
  EXPECT_EQ(child.group_idx(), 1u);
  EXPECT_EQ(child.kv_cache_spec_kind(), "sliding_window");
  EXPECT_EQ(child.kv_cache_spec_sliding_window(), 64u);
  // The salt is in the hash of the first block alone, and names the space of all.
  EXPECT_EQ(child.cache_salt(), "tenant");
  EXPECT_EQ(child.blocks(0).extra_keys_size(), 0);
  const smg::KvBlocksRemoved& removed = told.events(2).removed();
  EXPECT_EQ(removed.block_hashes(1), kBlock2Int);
  EXPECT_EQ(removed.tier(), smg::KV_CACHE_TIER_DISK);
  EXPECT_EQ(removed.medium(), "STORAGE");
  EXPECT_EQ(removed.cache_level(), 2);
  EXPECT_EQ(removed.group_idx(), 1u);
  EXPECT_TRUE(told.events(3).has_cleared());
}

TEST(VllmKvEvents, ChunksOfASnapshotCountUpToItsNumber) {
  uint64_t next_id = 1;
  for (uint32_t i = 0; i < 3; ++i) {
    KvEventBatch chunk = TwoBlocks();
    chunk.is_snapshot = true;
    chunk.snapshot_index = i;
    chunk.snapshot_count = 3;
    chunk.snapshot_blocks = 6;
    const smg::KvEventBatch told = ToVllm(chunk, Facts(), next_id);
    EXPECT_EQ(told.sequence_number(), 5 + i);
    EXPECT_EQ(told.snapshot().index(), i);
    EXPECT_EQ(told.snapshot().count(), 3u);
    EXPECT_EQ(told.snapshot().blocks(), 6u);
    EXPECT_EQ(told.snapshot().unknown_before(), 0u);
    EXPECT_EQ(told.events(0).has_cleared(), i == 0);
    EXPECT_EQ(told.events_size(), i == 0 ? 2 : 1);
    for (const smg::KvCacheEvent& event : told.events()) EXPECT_EQ(event.event_id(), 0u);
    EXPECT_EQ(ToOe(chunk, Facts()).batch().sequence_number(), 5 + i);
  }
  EXPECT_EQ(next_id, 1u);
}

TEST(OeKvEvents, HashesAreWholeAndBlocksAChain) {
  KvEventBatch batch = TwoBlocks();
  batch.events.salts = {"tenant"};
  batch.events.events[0].salt = 0;
  batch.events.events.push_back(
      {.kind = Kind::kRemoved, .tier = CacheTier::kHost, .num_blocks = 1});
  const oe::KvEventBatch told = ToOe(batch, Facts()).batch();
  EXPECT_EQ(told.sequence_number(), 7u);
  EXPECT_EQ(told.timestamp_unix_nanos(), 1'500'000'000u);
  ASSERT_EQ(told.events_size(), 2);
  const oe::BlockStored& stored = told.events(0).block_stored();
  ASSERT_EQ(stored.block_hashes_size(), 2);
  const PrefixHash second = HashOf(kBlock2);
  EXPECT_EQ(stored.block_hashes(1).value(),
            std::string(reinterpret_cast<const char*>(&second), sizeof(second)));
  EXPECT_EQ(stored.block_hashes(1).encoding(), "bytes");
  EXPECT_FALSE(stored.has_parent_block_hash());
  EXPECT_EQ(stored.token_ids_size(), 32);
  EXPECT_EQ(stored.token_ids(31), 31u);
  EXPECT_EQ(stored.block_size(), 16u);
  EXPECT_EQ(stored.medium(), oe::STORAGE_MEDIUM_GPU);
  ASSERT_EQ(stored.extra_keys_size(), 2);
  EXPECT_EQ(stored.extra_keys(0).values(0), "tenant");
  EXPECT_EQ(stored.extra_keys(1).values_size(), 0);
  const oe::BlockRemoved& removed = told.events(1).block_removed();
  EXPECT_EQ(removed.block_hashes_size(), 1);
  EXPECT_EQ(removed.medium(), oe::STORAGE_MEDIUM_CPU_PINNED);
}

// Where an indexer can connect, never a wildcard.
TEST(OeKvEvents, SourcesCanBeConnectedTo) {
  ServerOptions options;
  options.kv_events_topic = "t";
  oe::KvEventSource source;
  ASSERT_TRUE(FillZmqSource(options, "tcp://127.0.0.1:5557", "tcp://[::1]:5558", source));
  EXPECT_EQ(source.transport(), "zmq");
  EXPECT_EQ(source.endpoint_addr().host(), "127.0.0.1");
  EXPECT_EQ(source.endpoint_addr().port(), 5557u);
  EXPECT_EQ(source.replay_endpoint(), "tcp://[::1]:5558");
  EXPECT_EQ(source.topic(), "t");
  EXPECT_EQ(source.encoding(), "msgpack");
  EXPECT_EQ(source.buffer_steps(), 10'000u);
  source.Clear();
  if (FillZmqSource(options, "tcp://0.0.0.0:5557", "", source)) {
    EXPECT_NE(source.endpoint_addr().host(), "0.0.0.0");
    EXPECT_FALSE(source.endpoint_addr().host().empty());
    EXPECT_EQ(source.replay_endpoint(), "");
  }
  for (const char* endpoint : {"", "ipc:///tmp/x", "inproc://x", "tcp://", "tcp://h", "tcp://h:",
                               "tcp://h:0", "tcp://h:65536", "tcp://h:99999999999", "tcp://h:5x"}) {
    EXPECT_FALSE(FillZmqSource(options, endpoint, "", source)) << endpoint;
  }
}

}  // namespace
}  // namespace quire
