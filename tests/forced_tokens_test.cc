// Forced text as tokens: the border to what is there already, and that no guess says anything else.
#include "sampling/forced_tokens.h"

#include <gtest/gtest.h>

#include "tests/grammar_harness.h"
#include "tokenizer/tokenizer.h"

namespace quire {
namespace {

const char* const kTokenizers[] = {"deepseek_v3", "digits_bytelevel", "gemma",  "gpt2",
                                   "llama2",      "llama2_metaspace", "llama3", "o200k",
                                   "qwen2"};

TokenText TextOf(const Tokenizer& tokenizer) {
  return {.encode =
              [&tokenizer](std::string_view text) {
                auto ids = tokenizer.Encode(text, /*add_special_tokens=*/false);
                return ids.ok() ? *std::move(ids) : std::vector<TokenId>();
              },
          .bytes =
              [&tokenizer](TokenId id) {
                return tokenizer.IsSpecial(id) ? std::string_view() : tokenizer.TokenBytes(id);
              }};
}

// Cut anywhere between two tokens of a text, the rest of it as forced text gives the rest of the
// tokens: the canonical ones, as the whole text's encoding has them.
TEST(ForcedTokens, GiveBackTheCanonicalTokens) {
  const std::vector<std::string> texts = {
      R"({"name": "Alice", "description": "of the place", "values": [1, 22, 333]})",
      "the quick brown fox says hello to everyone in the world", "Grüße aus 日本語, schöner Tag"};
  for (const char* name : kTokenizers) {
    auto tokenizer =
        Tokenizer::FromDirectory(std::string(QUIRE_TEST_REFERENCE) + "/tokenizers/" + name);
    ASSERT_TRUE(tokenizer.ok());
    const TokenText tokens = TextOf(**tokenizer);
    int exact = 0;
    int cuts = 0;
    for (const std::string& text : texts) {
      const std::vector<TokenId> ids = tokens.encode(text);
      for (size_t cut = 1; cut < ids.size(); ++cut) {
        std::string forced;
        for (size_t i = cut; i < ids.size(); ++i) forced += tokens.bytes(ids[i]);
        const std::vector<TokenId> got =
            ForcedTokens(forced, std::span(ids).first(cut), 1000, tokens);
        std::string said;
        for (const TokenId id : got) said += tokens.bytes(id);
        EXPECT_EQ(forced.substr(0, said.size()), said) << name;
        ++cuts;
        if (got == std::vector<TokenId>(ids.begin() + static_cast<int64_t>(cut), ids.end())) {
          ++exact;
        }
      }
    }
    // Not all: within a character no guess is made.
    EXPECT_GT(cuts, 40) << name;
    EXPECT_GE(exact * 100, cuts * 85) << name << ": " << exact << " of " << cuts;
  }
}

// A vocabulary in which the forced text's first characters join the last token of the output.
TEST(ForcedTokens, ATokenThatIsThereIsNotTakenBack) {
  // Greedy by length: 0 `{"`, 1 `{"name`, 2 `name`, 3 `":`, 4 ` `, 5 `na`, 6 `me`.
  const std::vector<std::string> bytes = {"{\"", "{\"name", "name", "\":", " ", "na", "me"};
  TokenText tokens;
  tokens.bytes = [&](TokenId id) { return std::string_view(bytes[static_cast<size_t>(id)]); };
  tokens.encode = [&](std::string_view text) {
    std::vector<TokenId> ids;
    while (!text.empty()) {
      TokenId best = -1;
      for (TokenId id = 0; id < 7; ++id) {
        const std::string& token = bytes[static_cast<size_t>(id)];
        if (text.substr(0, token.size()) != token) continue;
        if (best < 0 || token.size() > bytes[static_cast<size_t>(best)].size()) best = id;
      }
      if (best < 0) return std::vector<TokenId>();
      ids.push_back(best);
      text.remove_prefix(bytes[static_cast<size_t>(best)].size());
    }
    return ids;
  };
  const std::vector<TokenId> output = {0};
  // Encoded with the output the text would be {1, 3, 4}: token 1 spans the border.
  EXPECT_EQ(ForcedTokens("name\": ", output, 10, tokens), (std::vector<TokenId>{2, 3, 4}));
  EXPECT_EQ(ForcedTokens("name\": ", output, 2, tokens), (std::vector<TokenId>{2, 3}));
  EXPECT_EQ(ForcedTokens("name\": ", {}, 10, tokens), (std::vector<TokenId>{2, 3, 4}));
  EXPECT_TRUE(ForcedTokens("", output, 10, tokens).empty());
  EXPECT_TRUE(ForcedTokens("name", output, 0, tokens).empty());
  EXPECT_TRUE(ForcedTokens("?", output, 10, tokens).empty()) << "what can't be encoded";
}

TEST(ForcedTokens, HalfCharactersAreLeftAlone) {
  auto tokenizer = Tokenizer::FromDirectory(std::string(QUIRE_TEST_REFERENCE) + "/tokenizers/gpt2");
  ASSERT_TRUE(tokenizer.ok());
  const TokenText tokens = TextOf(**tokenizer);
  const std::string text = "ab\xe6\x97\xa5";
  for (size_t length = 3; length < text.size(); ++length) {
    std::string said;
    for (const TokenId id : ForcedTokens(text.substr(0, length), {}, 10, tokens)) {
      said += tokens.bytes(id);
    }
    EXPECT_EQ(said, "ab");
  }
  EXPECT_TRUE(ForcedTokens("\x97\xa5 x", {}, 10, tokens).empty());
}

}  // namespace
}  // namespace quire
