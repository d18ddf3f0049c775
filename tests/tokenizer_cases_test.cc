// The parts of a tokenizer one by one, against tests/reference/tokenizers/extra.json (made by
// PyPI's `tokenizers`, see make_extra.py there): pieces of each pre-tokenizer, normalizers, added
// tokens with every flag, texts of ill-formed bytes. (HARD-CASES F01, F02, F07, F10, E05, E08.)
#include <gtest/gtest.h>

#include "base/json.h"
#include "base/mapped_file.h"
#include "tokenizer/byte_level.h"
#include "tokenizer/detokenizer.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/unicode.h"

namespace quire {
namespace {

Json ReadJson(const std::string& path) {
  absl::StatusOr<std::string> text =
      ReadTextFile(std::string(QUIRE_TEST_REFERENCE) + "/tokenizers/" + path, 64 << 20);
  CHECK(text.ok(), "{}", Message(text.status()));
  absl::StatusOr<Json> json = Json::Parse(*text);
  CHECK(json.ok(), "{}", Message(json.status()));
  return *json;
}

std::string Text(const Json& value) { return std::string(value.as_string().value()); }

std::vector<TokenId> Ids(const Json& array) {
  std::vector<TokenId> ids;
  for (size_t i = 0; i < array.size(); ++i) {
    ids.push_back(static_cast<TokenId>(array.at(i).as_int().value()));
  }
  return ids;
}

TEST(TokenizerCases, Pieces) {
  const Json groups = ReadJson("extra.json")["pieces"];
  int num_texts = 0;
  for (size_t g = 0; g < groups.size(); ++g) {
    const Json group = groups.at(g);
    const absl::StatusOr<PreTokenizer> pre = PreTokenizer::FromJson(group["pre_tokenizer"]);
    const absl::StatusOr<Normalizer> normalizer = Normalizer::FromJson(group["normalizer"]);
    ASSERT_TRUE(pre.ok()) << Message(pre.status());
    ASSERT_TRUE(normalizer.ok()) << Message(normalizer.status());
    const Json cases = group["cases"];
    for (size_t i = 0; i < cases.size(); ++i) {
      ++num_texts;
      const std::string text = Text(cases.at(i).at(0));
      PieceList list;
      list.text = normalizer->Run(text).value();
      list.at_text_start = true;
      ASSERT_TRUE(pre->Run(list).ok());
      std::vector<std::string> pieces;
      for (const Span& piece : list.pieces) {
        const std::string bytes = list.text.substr(piece.begin, piece.end - piece.begin);
        pieces.push_back(pre->bytes_are_symbols() ? MapBytes(bytes) : bytes);
      }
      std::vector<std::string> expected;
      for (size_t p = 0; p < cases.at(i).at(1).size(); ++p) {
        // Text that is empty has no piece here and one empty "piece" in a normalizer's case.
        if (std::string piece = Text(cases.at(i).at(1).at(p)); !piece.empty()) {
          expected.push_back(std::move(piece));
        }
      }
      EXPECT_EQ(pieces, expected) << Text(group["name"]) << " " << group["pre_tokenizer"].Dump()
                                  << group["normalizer"].Dump() << "\ntext "
                                  << cases.at(i).at(0).Dump();
    }
  }
  EXPECT_GT(num_texts, 2500);
}

// The file of `base` with other added tokens.
std::string WithAddedTokens(const std::string& base, const Json& added_tokens) {
  const Json file = ReadJson(base + "/tokenizer.json");
  JsonWriter w;
  w.BeginObject();
  file.ForEach([&](std::string_view key, const Json& value) {
    w.Key(key);
    w.Raw(key == "added_tokens" ? added_tokens.Dump() : value.Dump());
  });
  w.EndObject();
  return w.text();
}

TEST(TokenizerCases, AddedTokens) {
  const Json groups = ReadJson("extra.json")["added"];
  ASSERT_EQ(groups.size(), 40u);
  for (size_t g = 0; g < groups.size(); ++g) {
    const Json group = groups.at(g);
    const auto tokenizer =
        Tokenizer::FromJson(WithAddedTokens(Text(group["base"]), group["added_tokens"]));
    ASSERT_TRUE(tokenizer.ok()) << Message(tokenizer.status());
    const Json cases = group["cases"];
    for (size_t i = 0; i < cases.size(); ++i) {
      const std::string text = Text(cases.at(i).at(0));
      EXPECT_EQ((*tokenizer)->Encode(text, false).value(), Ids(cases.at(i).at(1)))
          << Text(group["base"]) << " text '" << text << "' "
          << group["added_tokens"].at(group["added_tokens"].size() - 1).Dump();
    }
  }
}

TEST(TokenizerCases, IllFormedBytes) {
  const Json groups = ReadJson("extra.json")["decoded"];
  for (size_t g = 0; g < groups.size(); ++g) {
    const Json group = groups.at(g);
    const auto tokenizer = Tokenizer::FromDirectory(std::string(QUIRE_TEST_REFERENCE) +
                                                    "/tokenizers/" + Text(group["base"]));
    ASSERT_TRUE(tokenizer.ok()) << Message(tokenizer.status());
    const Json cases = group["cases"];
    ASSERT_GT(cases.size(), 90u);
    for (size_t i = 0; i < cases.size(); ++i) {
      const std::vector<TokenId> ids = Ids(cases.at(i).at(0));
      const std::string where = Text(group["base"]) + " " + cases.at(i).at(0).Dump();
      for (const bool skip : {true, false}) {
        const std::string expected = Text(cases.at(i).at(skip ? 1 : 2));
        EXPECT_EQ((*tokenizer)->Decode(ids, skip), expected) << where;
        Detokenizer detokenizer(**tokenizer, skip);
        std::string joined;
        for (const TokenId id : ids) {
          const std::string text = detokenizer.Push(id);
          EXPECT_EQ(FindInvalidUtf8(text), std::nullopt) << where;
          joined += text;
        }
        joined += detokenizer.Flush();
        EXPECT_EQ(joined, expected) << where;
      }
    }
  }
}

// What is behind ill-formed bytes comes at once, and ill-formed bytes themselves within 3 tokens.
TEST(TokenizerCases, IllFormedBytesDoNotStall) {
  const auto tokenizer =
      Tokenizer::FromDirectory(std::string(QUIRE_TEST_REFERENCE) + "/tokenizers/gpt2");
  ASSERT_TRUE(tokenizer.ok());
  const auto id_of = [&](uint8_t byte) {
    return *(*tokenizer)->Find(MapBytes(std::string(1, static_cast<char>(byte))));
  };
  for (const std::vector<uint8_t>& run :
       std::vector<std::vector<uint8_t>>{{0x80, 0x80, 0x80},
                                         {0xC3},
                                         {0xF0, 0x9F},
                                         {0xFF, 0xFE},
                                         {0xED, 0xA0, 0x80},
                                         {0xF4, 0x90, 0x80, 0x80}}) {
    Detokenizer detokenizer(**tokenizer, true);
    std::string shown;
    for (const uint8_t byte : run) shown += detokenizer.Push(id_of(byte));
    shown += detokenizer.Push(id_of('A'));
    EXPECT_EQ(shown.back(), 'A');
    EXPECT_EQ(detokenizer.Push(id_of('b')), "b");
    EXPECT_EQ(detokenizer.Flush(), "");
  }
  Detokenizer detokenizer(**tokenizer, true);
  std::string shown;
  for (int i = 0; i < 1000; ++i) shown += detokenizer.Push(id_of(0x80));
  EXPECT_EQ(shown.size(), 1000 * kReplacementChar.size());
}

// A run of <0xXX> tokens that goes wrong keeps the characters that were shown before; from the
// first bad byte on, each byte of the run is one U+FFFD.
TEST(TokenizerCases, ByteFallbackRuns) {
  const auto tokenizer =
      Tokenizer::FromDirectory(std::string(QUIRE_TEST_REFERENCE) + "/tokenizers/gemma");
  ASSERT_TRUE(tokenizer.ok());
  const auto ids = [&](const std::vector<int>& bytes) {
    std::vector<TokenId> out;
    for (const int b : bytes) out.push_back(*(*tokenizer)->Find(fmt::format("<0x{:02X}>", b)));
    return out;
  };
  EXPECT_EQ((*tokenizer)->Decode(ids({0xE4, 0xBD, 0xA0, 0x0A, 0x80, 0x41}), true),
            "\u4F60\n\uFFFD\uFFFD");
  Detokenizer detokenizer(**tokenizer, true);
  std::vector<std::string> shown;
  for (const TokenId id : ids({0xF0, 0x9F, 0x98, 0x80, 0x41}))
    shown.push_back(detokenizer.Push(id));
  EXPECT_EQ(shown, std::vector<std::string>({"", "", "", "\U0001F600", "A"}));
}

// E05: an answer that ends within a character ends in one U+FFFD, streamed or not, and the raw
// bytes of each token are still to be had.
TEST(TokenizerCases, EndsWithinACharacter) {
  const auto tokenizer =
      Tokenizer::FromDirectory(std::string(QUIRE_TEST_REFERENCE) + "/tokenizers/gpt2");
  ASSERT_TRUE(tokenizer.ok());
  const std::string emoji = "\U0001F680";
  const std::vector<TokenId> ids = (*tokenizer)->Encode(emoji, false).value();
  ASSERT_GE(ids.size(), 2u);
  std::string bytes;
  for (const TokenId id : ids) bytes += (*tokenizer)->TokenBytes(id);
  EXPECT_EQ(bytes, emoji);
  for (size_t n = 1; n < ids.size(); ++n) {
    const std::vector<TokenId> cut(ids.begin(), ids.begin() + static_cast<ptrdiff_t>(n));
    EXPECT_EQ((*tokenizer)->Decode(cut, true), kReplacementChar);
    Detokenizer detokenizer(**tokenizer, true);
    for (const TokenId id : cut) EXPECT_EQ(detokenizer.Push(id), "");
    EXPECT_EQ(detokenizer.Flush(), kReplacementChar);
  }
}

}  // namespace
}  // namespace quire
