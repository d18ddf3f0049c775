// tests/kv_event_encoding_test.cc -- KV events in msgpack, byte for byte.
//
// Expected payloads: written by msgspec with the event classes of vLLM 0.33 (map encoding), and by
// Python's msgpack for what those classes say in arrays.
#include "server/events/kv_event_encoding.h"

#include <gtest/gtest.h>

#include <numeric>

#include "server/events/msgpack_writer.h"

namespace quire {
namespace {

std::string Hex(const std::string& bytes) {
  std::string hex;
  for (const char c : bytes) hex += fmt::format("{:02x}", static_cast<unsigned char>(c));
  return hex;
}

// Block 1 of tokens 0..15 under sha256_cbor: dc91...0749.
PrefixHash Block1() {
  const std::string hex = "dc918a88b139e5afe60b88eda27508d4aee16c10fdc354791efea06206ac0749";
  PrefixHash hash;
  auto* const bytes = reinterpret_cast<unsigned char*>(&hash);
  for (size_t i = 0; i < sizeof(hash); ++i) {
    bytes[i] = static_cast<unsigned char>(std::stoi(hex.substr(2 * i, 2), nullptr, 16));
  }
  return hash;
}

KvEventBatch Batch(CacheEvents::Kind kind, CacheTier tier = CacheTier::kPool) {
  KvEventBatch batch{.time_ns = 1'500'000'000};
  batch.events.algorithm = PrefixHashAlgorithm::kSha256Cbor;
  CacheEvents::Event event{.kind = kind, .tier = tier};
  if (kind != CacheEvents::Kind::kCleared) {
    event.num_blocks = 1;
    batch.events.hashes = {Block1()};
  }
  if (kind == CacheEvents::Kind::kStored) {
    batch.events.tokens.resize(16);
    std::iota(batch.events.tokens.begin(), batch.events.tokens.end(), 0);
  }
  batch.events.events = {event};
  return batch;
}

KvEventFacts OneGroup() { return {.block_size = 16, .groups = {{"full_attention", 0}}}; }
KvEventFacts TwoGroups() {
  return {.block_size = 16,
          .groups = {{"full_attention", 0}, {"sliding_window", 512}},
          .many_groups = true};
}
constexpr KvEventFormat kMap{};
constexpr KvEventFormat kArray{.encoding = KvEventEncoding::kArray};

TEST(KvEventEncoding, MapsAreThoseOfVllm) {
  EXPECT_EQ(
      Hex(EncodeKvEvents(Batch(CacheEvents::Kind::kStored), OneGroup(), kMap)),
      "93cb3ff800000000000091de0008a474797065ab426c6f636b53746f726564ac626c6f636b5f6861736865739"
      "1cf1efea06206ac0749b1706172656e745f626c6f636b5f68617368c0a9746f6b656e5f696473dc001000010"
      "2030405060708090a0b0c0d0e0faa626c6f636b5f73697a6510a76c6f72615f6964c0a66d656469756da34750"
      "55a96c6f72615f6e616d65c000");
  EXPECT_EQ(Hex(EncodeKvEvents(Batch(CacheEvents::Kind::kRemoved), OneGroup(), kMap)),
            "93cb3ff80000000000009183a474797065ac426c6f636b52656d6f766564ac626c6f636b5f686173686573"
            "91cf1efea06206ac0749a66d656469756da347505500");
  EXPECT_EQ(Hex(EncodeKvEvents(Batch(CacheEvents::Kind::kCleared), OneGroup(), kMap)),
            "93cb3ff80000000000009181a474797065b0416c6c426c6f636b73436c656172656400");
}

TEST(KvEventEncoding, ArraysHaveTheSameFieldsByTheirPlaces) {
  // msgpack.packb([1.5, [["BlockStored", [0x1efea06206ac0749], None, list(range(16)), 16, None,
  //                       "GPU", None]], 0])
  EXPECT_EQ(
      Hex(EncodeKvEvents(Batch(CacheEvents::Kind::kStored), OneGroup(), kArray)),
      "93cb3ff80000000000009198ab426c6f636b53746f72656491cf1efea06206ac0749c0dc001000010203040"
      "5060708090a0b0c0d0e0f10c0a3475055c000");
  EXPECT_EQ(
      Hex(EncodeKvEvents(Batch(CacheEvents::Kind::kRemoved, CacheTier::kHost), OneGroup(), kArray)),
      "93cb3ff80000000000009193ac426c6f636b52656d6f76656491cf1efea06206ac0749a343505500");
  EXPECT_EQ(Hex(EncodeKvEvents(Batch(CacheEvents::Kind::kCleared), OneGroup(), kArray)),
            "93cb3ff80000000000009191b0416c6c426c6f636b73436c656172656400");
}

TEST(KvEventEncoding, HashesCanBeAllTheirBytes) {
  const std::string payload =
      Hex(EncodeKvEvents(Batch(CacheEvents::Kind::kRemoved, CacheTier::kFiles), OneGroup(),
                         {.encoding = KvEventEncoding::kArray, .int_hashes = false}));
  EXPECT_EQ(
      payload,
      "93cb3ff80000000000009193ac426c6f636b52656d6f76656491c420dc918a88b139e5afe60b88eda27508d"
      "4aee16c10fdc354791efea06206ac0749a753544f5241474500");
}

TEST(KvEventEncoding, SaltsAreExtraKeysOfTheFirstBlock) {
  KvEventBatch batch = Batch(CacheEvents::Kind::kStored);
  batch.events.salts = {"tenant-a"};
  batch.events.events[0].salt = 0;
  const std::string first = Hex(EncodeKvEvents(batch, OneGroup(), kMap));
  // de0009 ..., "extra_keys": [["tenant-a"]], 0
  EXPECT_NE(first.find("91de0009"), std::string::npos);
  EXPECT_TRUE(first.ends_with("aa65787472615f6b6579739191a874656e616e742d6100")) << first;
  EXPECT_TRUE(
      Hex(EncodeKvEvents(batch, OneGroup(), kArray)).ends_with("c09191a874656e616e742d6100"));
  batch.events.events[0].has_parent = true;  // later blocks have it through their parent
  batch.events.events[0].parent = Block1();
  EXPECT_EQ(Hex(EncodeKvEvents(batch, OneGroup(), kMap)).find("6578747261"), std::string::npos);
}

TEST(KvEventEncoding, SeveralGroupsSayWhichTheyAre) {
  KvEventBatch batch = Batch(CacheEvents::Kind::kStored);
  batch.events.events[0].group = 1;
  // "group_idx": 1, "kv_cache_spec_kind": "sliding_window", "kv_cache_spec_sliding_window": 512
  EXPECT_TRUE(Hex(EncodeKvEvents(batch, TwoGroups(), kMap))
                  .ends_with("a967726f75705f69647801b26b765f63616368655f737065635f6b696e64"
                             "ae736c6964696e675f77696e646f77"
                             "bc6b765f63616368655f737065635f736c6964696e675f77696e646f77cd020000"));
  // ..., extra_keys nil, 1, "sliding_window", 512
  EXPECT_TRUE(Hex(EncodeKvEvents(batch, TwoGroups(), kArray))
                  .ends_with("c0c001ae736c6964696e675f77696e646f77cd020000"));
  batch.events.events[0].group = 0;
  EXPECT_TRUE(Hex(EncodeKvEvents(batch, TwoGroups(), kArray))
                  .ends_with("c0c000ae66756c6c5f617474656e74696f6e00"));
  batch = Batch(CacheEvents::Kind::kRemoved);
  batch.events.events[0].group = 1;
  EXPECT_TRUE(Hex(EncodeKvEvents(batch, TwoGroups(), kArray)).ends_with("a34750550100"));
}

// The borders between forms, by the specification.
TEST(MsgpackWriter, TakesTheShortestForm) {
  const auto uint = [](uint64_t v) {
    MsgpackWriter w;
    w.Uint(v);
    return Hex(w.Take());
  };
  EXPECT_EQ(uint(127), "7f");
  EXPECT_EQ(uint(128), "cc80");
  EXPECT_EQ(uint(255), "ccff");
  EXPECT_EQ(uint(256), "cd0100");
  EXPECT_EQ(uint(65535), "cdffff");
  EXPECT_EQ(uint(65536), "ce00010000");
  EXPECT_EQ(uint(0xffffffff), "ceffffffff");
  EXPECT_EQ(uint(0x100000000), "cf0000000100000000");
  const auto string = [](size_t n) {
    MsgpackWriter w;
    w.String(std::string(n, 'a'));
    return Hex(w.Take()).substr(0, 10);
  };
  EXPECT_EQ(string(31).substr(0, 2), "bf");
  EXPECT_EQ(string(32).substr(0, 4), "d920");
  EXPECT_EQ(string(256).substr(0, 6), "da0100");
  EXPECT_EQ(string(65536), "db00010000");
  MsgpackWriter w;
  w.Array(15);
  w.Array(16);
  w.Array(65536);
  w.Binary("");
  w.Nil();
  w.Double(2);
  EXPECT_EQ(Hex(w.Take()), "9fdc0010dd00010000c400c0cb4000000000000000");
}

}  // namespace
}  // namespace quire
