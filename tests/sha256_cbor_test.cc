// tests/sha256_cbor_test.cc -- block hashes that other engines compute, too.
//
// Expected values. SHA-256: the examples of FIPS 180-4's publisher (NIST CSRC, "SHA-256 Example
// Values") and of RFC 6234. Blocks of 16 tokens: printed by vLLM 0.33's own init_none_hash,
// generate_block_hash_extra_keys, hash_block_tokens and sha256_cbor. Chains: Python's hashlib over
// PyPI's cbor2 (reference/sha256_cbor/make_chains.py).
#include "paged_cache/sha256_cbor.h"

#include <gtest/gtest.h>

#include <numeric>

#include "absl/container/flat_hash_set.h"
#include "base/json.h"
#include "base/mapped_file.h"

namespace quire {
namespace {

TEST(Sha256, IsTheStandard) {
  EXPECT_EQ(Sha256("").ToHex(), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(Sha256("abc").ToHex(),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(Sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq").ToHex(),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(Sha256(std::string(1000000, 'a')).ToHex(),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256, HexIsReadBackStrictly) {
  const Sha256Digest digest = Sha256("abc");
  const std::string hex = digest.ToHex();
  EXPECT_EQ(Sha256Digest::FromHex(hex), digest);
  EXPECT_EQ(Sha256Digest::FromHex(hex.substr(1)), std::nullopt);
  EXPECT_EQ(Sha256Digest::FromHex(hex + "0"), std::nullopt);
  for (const char bad : {'A', 'g', '/', ':', '`', ' ', '\0', '\xff'}) {
    std::string text = hex;
    text[17] = bad;
    EXPECT_EQ(Sha256Digest::FromHex(text), std::nullopt) << bad;
  }
}

struct Blocks {
  std::string_view seed;
  std::string_view none, block1, block2;
  std::string_view salted, with_lora, with_both, second_salted;
};

constexpr Blocks kBlocks[] = {
    {"vllm-none-hash", "9bd96a485ad84efdafb72ee48a1d7a69bcead0f8f0433173941b276b9581eef0",
     "dc918a88b139e5afe60b88eda27508d4aee16c10fdc354791efea06206ac0749",
     "c300ec275d7bf08af8fc63e76cdc0086911bbc7091e03c5cf892553bef84ef0c",
     "4e31e1ced73eb044a95997f0109d0ddab3d9145878214f1a0ee37c048b397859",
     "8197107baf430f7cae998e7d0478285e7ffc745b2972fac1fddad421bc54a1d2",
     "8d8b48518146ff73159d761267eaf996f7ae1558994ce0bab95d77f37638191a",
     "dd153a6b48192c90c7d94ac9bb001d90b8150f328f74b1ea6f85313d4ecba23f"},
    {"0", "4e1195df020de59e0d65a33a4279f1183e7ae4e5d980e309f8b55adff2e61c3e",
     "d830de3d42c00f25a2949b5d12d98642664a44872c1614c5b0147556276afc9c",
     "fedd9e4abebebbe6f6cf96b682f08d316063fe2f22a5c552192dd62904fcccac",
     "3be36890effbb5e0d90d6506b68f1365539bcf2a82688a430612688636e0959d",
     "350a4da5e633d110d868f4f306baf2fffff5e45ae028dcedc1c0b29bd9f0d7ea",
     "eaa28f02769df092cd3285b8bdda0fe94ab4ea875283ec354a02ed0e19c9525d",
     "dbf6c5153b17752a570472ec341a7288bd20baa787893439ed060feba018cfca"},
};

TEST(Sha256Cbor, BlocksAreTheOtherEngines) {
  std::vector<TokenId> tokens(32);
  std::iota(tokens.begin(), tokens.end(), 0);
  const std::span<const TokenId> all = tokens;
  const ExtraKeys none;
  const ExtraKeys salt{.lora = {}, .cache_salt = "tenant-a"};
  const ExtraKeys lora{.lora = ExtraKeys::Lora{"sql", "/adapters/sql"}, .cache_salt = {}};
  const ExtraKeys both{.lora = lora.lora, .cache_salt = salt.cache_salt};
  for (const Blocks& want : kBlocks) {
    const Sha256Digest root = NoneHash(want.seed);
    EXPECT_EQ(root.ToHex(), want.none);
    const auto hash = [&](const Sha256Digest& parent, size_t at, const ExtraKeys& extra) {
      return HashBlockSha256Cbor(parent, all.subspan(at, 16), extra);
    };
    const Sha256Digest block1 = hash(root, 0, none);
    EXPECT_EQ(block1.ToHex(), want.block1);
    EXPECT_EQ(hash(block1, 16, none).ToHex(), want.block2);
    EXPECT_EQ(hash(root, 0, salt).ToHex(), want.salted);
    EXPECT_EQ(hash(root, 0, lora).ToHex(), want.with_lora);
    EXPECT_EQ(hash(root, 0, both).ToHex(), want.with_both);

    // The salt is hashed into block 0 only and reaches block 1 through its parent.
    std::vector<Sha256Digest> chain;
    Sha256CborChain(want.seed, 16, salt).Extend(all, chain);
    ASSERT_EQ(chain.size(), 2u);
    EXPECT_EQ(chain[0].ToHex(), want.salted);
    EXPECT_EQ(chain[1].ToHex(), want.second_salted);
  }
  EXPECT_EQ(NoneHash(), NoneHash("vllm-none-hash"));
}

TEST(Sha256Cbor, ExternalHashIsTheLowBitsBigEndian) {
  const Sha256Digest block1 = Sha256Digest::FromHex(kBlocks[0].block1).value();
  const Sha256Digest block2 = Sha256Digest::FromHex(kBlocks[0].block2).value();
  EXPECT_EQ(ExternalHash(block1), 2233398808101521225u);
  EXPECT_EQ(ExternalHash(block2), 17911472383915781900u);
  EXPECT_EQ(static_cast<int64_t>(ExternalHash(block2)), -535271689793769716);  // in a proto
}

TEST(Sha256Cbor, HeadsAreTheShortest) {
  const std::vector<TokenId> tokens = {0, 1, 23, 24, 255, 256, 65535, 65536, 151643};
  std::string hex;
  for (const char c : EncodeBlockCbor(NoneHash(), tokens, {})) {
    hex += fmt::format("{:02x}", static_cast<uint8_t>(c));
  }
  EXPECT_EQ(hex,
            "83"
            "58209bd96a485ad84efdafb72ee48a1d7a69bcead0f8f0433173941b276b9581eef0"
            "89000117181818ff19010019ffff1a000100001a0002505b"
            "f6");
}

ExtraKeys ExtraOf(const Json& chain) {
  ExtraKeys extra;
  if (const Json lora = chain["lora"]; !lora.is_null()) {
    extra.lora.emplace(std::string(lora.at(0).as_string().value()),
                       std::string(lora.at(1).as_string().value()));
  }
  extra.cache_salt = chain["salt"].as_string().value();
  return extra;
}

TEST(Sha256Cbor, ChainsAreThoseOfCbor2AndHashlib) {
  const std::string path = QUIRE_TEST_REFERENCE "/sha256_cbor/chains.json";
  const Json chains = Json::Parse(ReadTextFile(path, 1 << 20).value()).value();
  ASSERT_EQ(chains.size(), 40u);
  for (size_t i = 0; i < chains.size(); ++i) {
    const Json want = chains.at(i);
    std::vector<TokenId> tokens;
    for (size_t t = 0; t < want["tokens"].size(); ++t) {
      tokens.push_back(static_cast<TokenId>(want["tokens"].at(t).as_int().value()));
    }
    const auto block_size = static_cast<int32_t>(want["block_size"].as_int().value());
    const Sha256CborChain hasher(want["seed"].as_string().value(), block_size, ExtraOf(want));

    // Grown token by token, as a sequence is: equal to all at once, and never a hash too early.
    std::vector<Sha256Digest> grown;
    for (size_t n = 0; n <= tokens.size(); ++n) {
      hasher.Extend(std::span(tokens).first(n), grown);
      ASSERT_EQ(grown.size(), n / static_cast<size_t>(block_size));
    }
    ASSERT_EQ(grown.size(), want["hashes"].size());
    for (size_t b = 0; b < grown.size(); ++b) {
      EXPECT_EQ(grown[b].ToHex(), want["hashes"].at(b).as_string().value()) << i << ", " << b;
    }
    const std::string external = fmt::format("{}", ExternalHash(grown.back()));
    EXPECT_EQ(external, want["last_int"].Dump()) << i;
    std::vector<Sha256Digest> whole;
    hasher.Extend(tokens, whole);
    EXPECT_EQ(whole, grown);
  }
}

TEST(Sha256Cbor, EveryPartIsHashed) {
  absl::flat_hash_set<Sha256Digest> seen;
  const std::vector<TokenId> tokens = {1, 2, 3, 4};
  const auto is_new = [&seen](const Sha256Digest& hash) { return seen.insert(hash).second; };
  const Sha256Digest root = NoneHash();
  EXPECT_TRUE(is_new(HashBlockSha256Cbor(root, tokens, {})));
  EXPECT_TRUE(is_new(HashBlockSha256Cbor(NoneHash("0"), tokens, {})));
  EXPECT_TRUE(is_new(HashBlockSha256Cbor(root, std::span(tokens).first(3), {})));
  EXPECT_TRUE(is_new(HashBlockSha256Cbor(root, tokens, {.lora = {}, .cache_salt = "ab"})));
  // Texts do not run into each other.
  using Lora = ExtraKeys::Lora;
  EXPECT_TRUE(
      is_new(HashBlockSha256Cbor(root, tokens, {.lora = Lora{"a", "b"}, .cache_salt = {}})));
  EXPECT_TRUE(
      is_new(HashBlockSha256Cbor(root, tokens, {.lora = Lora{"ab", ""}, .cache_salt = {}})));
  EXPECT_TRUE(
      is_new(HashBlockSha256Cbor(root, tokens, {.lora = Lora{"", "ab"}, .cache_salt = {}})));
  EXPECT_FALSE(is_new(HashBlockSha256Cbor(root, tokens, {.lora = {}, .cache_salt = {}})));
}

}  // namespace
}  // namespace quire
