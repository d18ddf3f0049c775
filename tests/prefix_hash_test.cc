// tests/prefix_hash_test.cc -- the bytes that are hashed are a contract: replicas must agree on
// them.
//
// Expected values: PyPI's xxhash (xxHash 0.8.4), xxh3_128_intdigest(struct.pack("<QQ", lo, hi) +
// struct.pack("<%di" % n, *tokens)), split into low and high 64 bits.
#include "paged_cache/prefix_hash.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <string>

#include "absl/container/flat_hash_set.h"

namespace quire {
namespace {

struct Golden {
  int32_t block_size;
  PrefixHash first;   // tokens 0, 1, 2 ... after no parent
  PrefixHash second;  // tokens 7 i - 3 after `first`
};

constexpr Golden kGolden[] = {
    {2, {0xb6082d1769004801, 0x2f230a11913c6e10}, {0xed21e8772dc43a73, 0x9c2e9cdcdbf1287b}},
    {16, {0xb49a1755bdbc8b2, 0x16d310809c3605d6}, {0x1c2c7054f834a38c, 0xec15c49b58425ff}},
    {128, {0x9594be480581c1cb, 0x2aef5dc433cc341b}, {0x4b476bcefa3ae735, 0xfdac4de8cbd7edf7}},
};

TEST(PrefixHash, IsXxh128OfParentAndTokens) {
  for (const Golden& g : kGolden) {
    std::vector<TokenId> tokens(static_cast<size_t>(g.block_size) * 2);
    for (int32_t i = 0; i < g.block_size; ++i) {
      tokens[static_cast<size_t>(i)] = i;
      tokens[static_cast<size_t>(g.block_size + i)] = 7 * i - 3;
    }
    const std::span<const TokenId> all = tokens;
    const PrefixHash first = HashPage({}, all.first(static_cast<size_t>(g.block_size)));
    EXPECT_EQ(first, g.first) << g.block_size;
    EXPECT_EQ(HashPage(first, all.subspan(static_cast<size_t>(g.block_size))), g.second);

    std::vector<PrefixHash> chain;
    ExtendChain(all.first(tokens.size() - 1), g.block_size, chain);  // one token short of two pages
    EXPECT_EQ(chain, std::vector<PrefixHash>{g.first});
    ExtendChain(all, g.block_size, chain);
    EXPECT_EQ(chain, (std::vector<PrefixHash>{g.first, g.second}));
    ExtendChain(all, g.block_size, chain);  // nothing new
    EXPECT_EQ(chain.size(), 2);
  }
  const TokenId extreme[] = {-1, 2147483647};
  EXPECT_EQ(HashPage({}, extreme), (PrefixHash{0x193aa7226c0654c7, 0x87f1fd89f7c6f357}));
}

TEST(PrefixHash, EveryPartOfTheParentMatters) {
  const TokenId tokens[] = {1, 2, 3, 4};
  absl::flat_hash_set<PrefixHash> seen;
  EXPECT_TRUE(seen.insert(HashPage({}, tokens)).second);
  for (int bit = 0; bit < 64; ++bit) {
    EXPECT_TRUE(seen.insert(HashPage({uint64_t{1} << bit, 0}, tokens)).second);
    EXPECT_TRUE(seen.insert(HashPage({0, uint64_t{1} << bit}, tokens)).second);
    EXPECT_TRUE(
        seen.insert(HashPage({uint64_t{1} << bit, uint64_t{1} << ((bit + 32) % 64)}, tokens))
            .second);
  }
}

// The chain that the cache keeps is the other engines' hash, byte by byte: vectors of vLLM 0.33.
TEST(PrefixHash, Sha256CborChainsHaveTheOtherEnginesBytes) {
  std::vector<TokenId> tokens(40);
  std::iota(tokens.begin(), tokens.end(), 0);
  struct Case {
    const char* seed;
    const char* salt;
    const char* block1;
    const char* block2;
  };
  constexpr Case kCases[] = {
      {"", "", "dc918a88b139e5afe60b88eda27508d4aee16c10fdc354791efea06206ac0749",
       "c300ec275d7bf08af8fc63e76cdc0086911bbc7091e03c5cf892553bef84ef0c"},
      {"0", "", "d830de3d42c00f25a2949b5d12d98642664a44872c1614c5b0147556276afc9c",
       "fedd9e4abebebbe6f6cf96b682f08d316063fe2f22a5c552192dd62904fcccac"},
      {"", "tenant-a", "4e31e1ced73eb044a95997f0109d0ddab3d9145878214f1a0ee37c048b397859",
       "dd153a6b48192c90c7d94ac9bb001d90b8150f328f74b1ea6f85313d4ecba23f"},
      {"0", "tenant-a", "3be36890effbb5e0d90d6506b68f1365539bcf2a82688a430612688636e0959d",
       "dbf6c5153b17752a570472ec341a7288bd20baa787893439ed060feba018cfca"},
  };
  for (const Case& c : kCases) {
    std::vector<PrefixHash> chain;
    PrefixHasher(PrefixHashAlgorithm::kSha256Cbor, c.seed, c.salt).Extend(tokens, 16, chain);
    ASSERT_EQ(chain.size(), 2);
    const auto hex = [](const PrefixHash& h) {
      std::string text;
      for (const uint64_t word : {h.lo, h.hi, h.more_lo, h.more_hi}) {
        for (int byte = 0; byte < 8; ++byte) {
          text += "0123456789abcdef"[word >> (8 * byte + 4) & 15];
          text += "0123456789abcdef"[word >> (8 * byte) & 15];
        }
      }
      return text;
    };
    EXPECT_EQ(hex(chain[0]), c.block1);
    EXPECT_EQ(hex(chain[1]), c.block2);
  }
}

// Without a seed XXH3 chains are what they always were; with one they never meet these.
TEST(PrefixHash, ASeedMovesEveryHash) {
  std::vector<TokenId> tokens(64);
  std::iota(tokens.begin(), tokens.end(), 0);
  std::vector<PrefixHash> plain, same, seeded;
  ExtendChain(tokens, 16, plain);
  PrefixHasher(PrefixHashAlgorithm::kXxh3, "", "salt is in the root").Extend(tokens, 16, same);
  PrefixHasher(PrefixHashAlgorithm::kXxh3, "secret", "").Extend(tokens, 16, seeded);
  EXPECT_EQ(plain, same);
  for (const PrefixHash& h : seeded) EXPECT_EQ(std::count(plain.begin(), plain.end(), h), 0);
}

}  // namespace
}  // namespace quire
