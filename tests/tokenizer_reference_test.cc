// Ids, tokens, texts and streams of every case that PyPI's `tokenizers` wrote into
// tests/reference/tokenizers. (HARD-CASES F02, F07, E01, E10.)
#include <gtest/gtest.h>

#include "base/json.h"
#include "base/mapped_file.h"
#include "tokenizer/detokenizer.h"
#include "tokenizer/tokenizer.h"

namespace quire {
namespace {

constexpr size_t kMaxBytes = 64 << 20;

std::string ReadReference(const std::string& path) {
  absl::StatusOr<std::string> text =
      ReadTextFile(std::string(QUIRE_TEST_REFERENCE) + "/" + path, kMaxBytes);
  CHECK(text.ok(), "{}", Message(text.status()));
  return *std::move(text);
}

std::vector<TokenId> Ids(const Json& array) {
  std::vector<TokenId> ids;
  for (size_t i = 0; i < array.size(); ++i) {
    ids.push_back(static_cast<TokenId>(array.at(i).as_int().value()));
  }
  return ids;
}

std::string Text(const Json& value) { return std::string(value.as_string().value()); }

std::string Trim(const std::string& text) {
  const size_t begin = text.find_first_not_of(" \n");
  return text.substr(begin, text.find_last_not_of(" \n") + 1 - begin);
}

class TokenizerReference : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const std::string name = GetParam();
    absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer =
        Tokenizer::FromDirectory(std::string(QUIRE_TEST_REFERENCE) + "/tokenizers/" + name);
    ASSERT_TRUE(tokenizer.ok()) << Message(tokenizer.status());
    tokenizer_ = *std::move(tokenizer);
    absl::StatusOr<Json> doc = Json::Parse(ReadReference("tokenizers/" + name + "/cases.json"));
    ASSERT_TRUE(doc.ok()) << Message(doc.status());
    doc_ = *doc;
    ASSERT_GT(doc_["cases"].size(), 200u);
  }

  std::unique_ptr<Tokenizer> tokenizer_;
  Json doc_;
};

TEST_P(TokenizerReference, Encodes) {
  EXPECT_EQ(tokenizer_->vocab_size(), doc_["vocab_size"].as_int());
  const Json cases = doc_["cases"];
  for (size_t i = 0; i < cases.size(); ++i) {
    const Json c = cases.at(i);
    const std::string text = Text(c["text"]);
    const absl::StatusOr<std::vector<TokenId>> ids = tokenizer_->Encode(text, false);
    ASSERT_TRUE(ids.ok()) << Message(ids.status());
    EXPECT_EQ(*ids, Ids(c["ids"])) << "case " << i << ": " << text;
    const absl::StatusOr<std::vector<TokenId>> with_special = tokenizer_->Encode(text, true);
    ASSERT_TRUE(with_special.ok());
    EXPECT_EQ(*with_special, Ids(c["ids_special"])) << "case " << i << ": " << text;
    const std::vector<TokenId> expected = Ids(c["ids"]);
    for (size_t t = 0; t < expected.size(); ++t) {
      std::string token = Text(c["tokens"].at(t));
      // The reference shows a special token with the white space that it swallowed.
      if (tokenizer_->IsSpecial(expected[t])) token = Trim(token);
      EXPECT_EQ(tokenizer_->TokenText(expected[t]), token) << "case " << i;
    }
  }
}

TEST_P(TokenizerReference, Decodes) {
  const Json cases = doc_["cases"];
  for (size_t i = 0; i < cases.size(); ++i) {
    const Json c = cases.at(i);
    const std::vector<TokenId> ids = Ids(c["ids_special"]);
    EXPECT_EQ(tokenizer_->Decode(ids, true), Text(c["decoded"])) << "case " << i;
    EXPECT_EQ(tokenizer_->Decode(ids, false), Text(c["decoded_keep"])) << "case " << i;
  }
}

// Joined, a stream is the decoded text. Token by token it shows at least as much as the reference,
// which holds text back while it ends in U+FFFD, even one that was in the text.
TEST_P(TokenizerReference, Streams) {
  const Json cases = doc_["cases"];
  for (size_t i = 0; i < cases.size(); ++i) {
    const Json c = cases.at(i);
    const std::vector<TokenId> ids = Ids(c["ids_special"]);
    for (const bool skip : {true, false}) {
      const Json stream = c[skip ? "stream" : "stream_keep"];
      Detokenizer detokenizer(*tokenizer_, skip);
      std::string shown;
      std::string reference;
      for (size_t t = 0; t < ids.size(); ++t) {
        shown += detokenizer.Push(ids[t]);
        if (stream.is_null()) continue;
        reference += stream.at(t).as_string().value_or("");
        EXPECT_EQ(shown.substr(0, reference.size()), reference) << "case " << i << " token " << t;
      }
      shown += detokenizer.Flush();
      EXPECT_EQ(shown, Text(c[skip ? "decoded" : "decoded_keep"])) << "case " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, TokenizerReference,
                         testing::Values("gpt2", "llama3", "qwen2", "deepseek_v3", "o200k",
                                         "digits_bytelevel", "llama2", "llama2_metaspace", "gemma"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace quire
