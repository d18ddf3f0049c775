// tests/prefix_hash_test.cc -- the bytes that are hashed are a contract: replicas must agree on
// them.
//
// Expected values: PyPI's xxhash (xxHash 0.8.4), xxh3_128_intdigest(struct.pack("<QQ", lo, hi) +
// struct.pack("<%di" % n, *tokens)), split into low and high 64 bits.
#include "paged_cache/prefix_hash.h"

#include <gtest/gtest.h>

#include <numeric>

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

}  // namespace
}  // namespace quire
