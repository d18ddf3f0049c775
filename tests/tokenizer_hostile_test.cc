// Texts and files that are meant to hurt: bounded work, clear refusals, no crash.
// (HARD-CASES F04, F05, F10, F11, M19.)
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <thread>

#include "base/json.h"
#include "base/mapped_file.h"
#include "tokenizer/byte_level.h"
#include "tokenizer/detokenizer.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/unicode.h"

namespace quire {
namespace {

using Code = absl::StatusCode;

std::string ReadReference(const std::string& path) {
  absl::StatusOr<std::string> text =
      ReadTextFile(std::string(QUIRE_TEST_REFERENCE) + "/tokenizers/" + path, 64 << 20);
  CHECK(text.ok(), "{}", Message(text.status()));
  return *std::move(text);
}

std::unique_ptr<Tokenizer> Reference(const std::string& name) {
  auto tokenizer =
      Tokenizer::FromDirectory(std::string(QUIRE_TEST_REFERENCE) + "/tokenizers/" + name);
  CHECK(tokenizer.ok(), "{}", Message(tokenizer.status()));
  return *std::move(tokenizer);
}

std::string Repeat(std::string_view unit, size_t bytes) {
  std::string out;
  while (out.size() < bytes) out += unit;
  return out;
}

// A byte-level file with tokens for a, b, ab, abab and the given parts.
std::string SmallFile(const std::string& pre_tokenizer, const std::string& more = "",
                      const std::string& model_more = "", const std::string& vocab_more = "",
                      const std::string& merges = R"("a b", ["ab", "ab"])") {
  return R"({"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2, "abab": 3)" + vocab_more +
         R"(}, "merges": [)" + merges + "]" + model_more + R"(}, "pre_tokenizer": )" +
         pre_tokenizer + R"(, "decoder": {"type": "ByteLevel"})" + more + "}";
}

constexpr char kByteLevel[] =
    R"({"type": "ByteLevel", "add_prefix_space": false, "use_regex": true})";

std::string LoadError(const std::string& json, const std::string& config = "") {
  const auto tokenizer = Tokenizer::FromJson(json, config);
  EXPECT_EQ(tokenizer.status().code(), Code::kInvalidArgument) << json.substr(0, 300);
  return tokenizer.ok() ? "" : Message(tokenizer.status());
}

#define EXPECT_CONTAINS(text, part) \
  EXPECT_NE((text).find(part), std::string::npos) << "the text is: " << (text)

// F04: candidate merges, the measure of work, grow with the length and not with its square.
TEST(TokenizerHostile, MergesAreNotQuadratic) {
  const auto tokenizer = Reference("gpt2");
  std::mt19937 rng(1);
  std::string letters;
  for (int i = 0; i < 200'000; ++i) letters += static_cast<char>('a' + rng() % 26);
  for (const std::string& text : {std::string(200'000, '_'), std::string(200'000, 'a'), letters}) {
    EncodeStats half;
    EncodeStats whole;
    ASSERT_TRUE(tokenizer->Encode(text.substr(0, 100'000), false, &half).ok());
    const auto ids = tokenizer->Encode(text, false, &whole);
    ASSERT_TRUE(ids.ok());
    EXPECT_EQ(whole.num_pieces, 1);
    EXPECT_LE(whole.num_merge_candidates, 4 * static_cast<int64_t>(text.size()));
    EXPECT_LE(whole.num_merge_candidates, half.num_merge_candidates * 5 / 2 + 100);
    EXPECT_EQ(tokenizer->Decode(*ids, false), text);
  }
}

// The heap gives what a scan for the best pair would: the definition of BPE, done the slow way.
TEST(TokenizerHostile, MergesEqualTheDefinition) {
  const auto file = Json::Parse(ReadReference("gpt2/tokenizer.json"));
  ASSERT_TRUE(file.ok());
  std::map<std::pair<std::string, std::string>, size_t> ranks;
  const Json merges = (*file)["model"]["merges"];
  for (size_t i = 0; i < merges.size(); ++i) {
    ranks[{std::string(*merges.at(i).at(0).as_string()),
           std::string(*merges.at(i).at(1).as_string())}] = i;
  }
  const auto tokenizer = Reference("gpt2");
  std::mt19937 rng(2);
  for (int round = 0; round < 300; ++round) {
    std::string text;
    for (int i = 0; i < 40; ++i) text += "etaoinshr"[rng() % 9];
    std::vector<std::string> parts;
    for (const char c : text) parts.emplace_back(1, c);
    for (;;) {
      size_t best = SIZE_MAX;
      size_t at = 0;
      for (size_t i = 0; i + 1 < parts.size(); ++i) {
        const auto it = ranks.find({parts[i], parts[i + 1]});
        if (it == ranks.end() || it->second >= best) continue;
        best = it->second;
        at = i;
      }
      if (best == SIZE_MAX) break;
      parts[at] += parts[at + 1];
      parts.erase(parts.begin() + static_cast<ptrdiff_t>(at) + 1);
    }
    std::vector<TokenId> expected;
    for (const std::string& part : parts) expected.push_back(*tokenizer->Find(part));
    EXPECT_EQ(tokenizer->Encode(text, false).value(), expected) << text;
  }
}

// F05: exponential patterns end in an error for that text; others go on.
TEST(TokenizerHostile, BacktrackingIsBounded) {
  for (const char* pattern : {"(a+)+$", "(a|a)*$", "(a|aa)+$", "^(([a-z])+.)+[A-Z]([a-z])+$"}) {
    const auto tokenizer = Tokenizer::FromJson(SmallFile(
        fmt::format(R"({{"type": "Sequence", "pretokenizers": [{{"type": "Split", "pattern":
            {{"Regex": "{}"}}, "behavior": "Isolated", "invert": false}}, {}]}})",
                    pattern, kByteLevel)));
    ASSERT_TRUE(tokenizer.ok()) << Message(tokenizer.status());
    const auto bad = (*tokenizer)->Encode(std::string(60, 'a') + "b", false);
    ASSERT_EQ(bad.status().code(), Code::kResourceExhausted) << pattern;
    EXPECT_CONTAINS(Message(bad.status()), pattern);
    EXPECT_EQ((*tokenizer)->Encode("ab", false).value(), std::vector<TokenId>({2}));
  }
}

// F10 and its like: whatever is not implemented is refused by name.
TEST(TokenizerHostile, UnsupportedPartsAreNamed) {
  EXPECT_CONTAINS(LoadError(SmallFile(R"({"type": "UnicodeScripts"})")),
                  "unsupported pre-tokenizer UnicodeScripts");
  EXPECT_CONTAINS(
      LoadError(SmallFile(
          R"({"type": "Sequence", "pretokenizers": [{"type": "Digits"}, {"type": "Magic"}]})")),
      "unsupported pre-tokenizer Magic");
  EXPECT_CONTAINS(LoadError(SmallFile(R"({})")), "unsupported pre-tokenizer");
  EXPECT_CONTAINS(LoadError(SmallFile(kByteLevel, R"(, "normalizer": {"type": "Lowercase"})")),
                  "unsupported normalizer Lowercase");
  EXPECT_CONTAINS(
      LoadError(
          SmallFile(kByteLevel,
                    R"(, "normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"})")),
      "unsupported normalizer Precompiled");
  EXPECT_CONTAINS(
      LoadError(SmallFile(kByteLevel, R"(, "post_processor": {"type": "BertProcessing"})")),
      "unsupported post-processor BertProcessing");
  EXPECT_CONTAINS(LoadError(R"({"model": {"type": "WordPiece", "vocab": {}}})"),
                  "unsupported model WordPiece");
  EXPECT_CONTAINS(LoadError(R"({"model": {"type": "BPE", "vocab": {}, "merges": []},
                                "decoder": {"type": "CTC"}})"),
                  "unsupported decoder CTC");
  EXPECT_CONTAINS(LoadError(SmallFile(kByteLevel, "", R"(, "dropout": 0.1)")), "model.dropout=0.1");
  EXPECT_CONTAINS(LoadError(SmallFile(kByteLevel, "", R"(, "end_of_word_suffix": "</w>")")),
                  "model.end_of_word_suffix");
}

// M19 for Hugging Face files.
TEST(TokenizerHostile, BadVocabulariesAreRefused) {
  EXPECT_CONTAINS(LoadError(SmallFile(kByteLevel, "", "", "", R"("a zz")")),
                  "model: merges[0]='a zz' has a right part that is not in the vocabulary");
  EXPECT_CONTAINS(LoadError(SmallFile(kByteLevel, "", "", "", R"("b a")")), "result");
  EXPECT_CONTAINS(LoadError(SmallFile(kByteLevel, "", "", "", R"("a b c")")), "model.merges[0]");
  EXPECT_CONTAINS(LoadError(SmallFile(kByteLevel, "", "", "", "[1, 2]")), "model.merges[0]");
  EXPECT_CONTAINS(LoadError(SmallFile(kByteLevel, "", "", R"(, "c": 2)")),
                  "id=2 belongs to two tokens");
  EXPECT_CONTAINS(LoadError(SmallFile(kByteLevel, "", "", R"(, "c": -1)")), "model.vocab");
  EXPECT_CONTAINS(LoadError(SmallFile(kByteLevel, "", "", R"(, "c": 4294967295)")),
                  "id=4294967295");
  EXPECT_CONTAINS(LoadError(SmallFile(kByteLevel, "", "", R"(, "c": "4")")), "must be an integer");
  EXPECT_CONTAINS(LoadError(SmallFile(kByteLevel, "", "", R"(, "c": 4.0)")), "must be an integer");
  EXPECT_CONTAINS(
      LoadError(SmallFile(kByteLevel, R"(, "added_tokens": [{"id": 2, "content": "<x>"}])")),
      "added_tokens[0]: id=2 belongs to two tokens");
  EXPECT_CONTAINS(
      LoadError(SmallFile(kByteLevel, R"(, "added_tokens": [{"id": 9, "content": "ab"}])")),
      "added_tokens[0]: token 'ab' has two ids");
  EXPECT_CONTAINS(
      LoadError(SmallFile(kByteLevel, R"(, "added_tokens": [{"id": 1e9, "content": "x"}])")),
      "added_tokens[0]");
  EXPECT_CONTAINS(
      LoadError(SmallFile(kByteLevel, R"(, "post_processor": {"type": "TemplateProcessing",
          "single": [{"SpecialToken": {"id": "s"}}, {"Sequence": {"id": "A"}}],
          "special_tokens": {"s": {"ids": [77]}}})")),
      "special_tokens['s'].ids[0]=77");
  EXPECT_CONTAINS(LoadError("{"), "json is malformed");
  EXPECT_CONTAINS(LoadError("[]"), "must be a JSON object");
  EXPECT_CONTAINS(LoadError(Repeat("[", 100'000)), "nests deeper");
}

TEST(TokenizerHostile, IdGapsEqualTheReference) {
  const auto extra = Json::Parse(ReadReference("extra.json"));
  ASSERT_TRUE(extra.ok());
  const Json gaps = (*extra)["gaps"];
  const int64_t first = *gaps["first_moved_id"].as_int();
  const auto file = Json::Parse(ReadReference("gpt2/tokenizer.json"));
  ASSERT_TRUE(file.ok());
  JsonWriter w;
  w.BeginObject();
  file->ForEach([&](std::string_view key, const Json& value) {
    if (key == "added_tokens" || key == "model") return;
    w.Key(key);
    w.Raw(value.Dump());
  });
  w.Key("added_tokens");
  w.Raw(R"([{"id": 850, "content": "<|endoftext|>", "special": true, "normalized": false}])");
  w.Key("model");
  w.BeginObject();
  w.Key("merges");
  w.Raw((*file)["model"]["merges"].Dump());
  w.Key("vocab");
  w.BeginObject();
  w.Key("<|endoftext|>");
  w.Int(850);
  (*file)["model"]["vocab"].ForEach([&](std::string_view text, const Json& id) {
    w.Key(text);
    w.Int(*id.as_int() + (*id.as_int() >= first ? *gaps["gap"].as_int() : 0));
  });
  w.EndObject();
  w.EndObject();
  w.EndObject();
  const auto tokenizer = Tokenizer::FromJson(w.text());
  ASSERT_TRUE(tokenizer.ok()) << Message(tokenizer.status());
  EXPECT_EQ((*tokenizer)->vocab_size(), 851);
  EXPECT_FALSE((*tokenizer)->Contains(320));
  EXPECT_EQ((*tokenizer)->TokenText(320), "");
  EXPECT_EQ((*tokenizer)->Decode(std::vector<TokenId>({320, -1, 851, INT32_MAX}), false), "");
  const Json cases = gaps["cases"];
  for (size_t i = 0; i < cases.size(); ++i) {
    std::vector<TokenId> expected;
    for (size_t t = 0; t < cases.at(i).at(1).size(); ++t) {
      expected.push_back(static_cast<TokenId>(*cases.at(i).at(1).at(t).as_int()));
    }
    EXPECT_EQ((*tokenizer)->Encode(*cases.at(i).at(0).as_string(), false).value(), expected) << i;
  }
}

TEST(TokenizerHostile, IllFormedTextIsRefusedWithItsOffset) {
  const auto tokenizer = Reference("gpt2");
  const auto error = [&](std::string_view text) {
    const auto ids = tokenizer->Encode(text, false);
    EXPECT_EQ(ids.status().code(), Code::kInvalidArgument);
    return Message(ids.status());
  };
  EXPECT_CONTAINS(error("ab\xFF"), "text has byte 0xFF at offset 2, which is not valid UTF-8");
  EXPECT_CONTAINS(error("\xC3"), "offset 0");
  EXPECT_CONTAINS(error("x\xED\xA0\x80"), "offset 1");  // a surrogate
  EXPECT_CONTAINS(error("xy\xC0\x80"), "offset 2");     // an overlong form
  EXPECT_CONTAINS(error("\xF4\x90\x80\x80"), "offset 0");
  EXPECT_TRUE(tokenizer->Encode(std::string_view("a\0b", 3), false).ok());
}

// F11: more text than can be counted is refused before a byte of it is read.
TEST(TokenizerHostile, TextOverTheLimitIsRefusedUnread) {
  constexpr size_t kSize = size_t{3} << 30;
  void* memory =
      mmap(nullptr, kSize, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  const auto ids =
      Reference("gpt2")->Encode(std::string_view(static_cast<const char*>(memory), kSize), true);
  EXPECT_EQ(ids.status().code(), Code::kInvalidArgument);
  EXPECT_CONTAINS(Message(ids.status()), "text has 3221225472 bytes, limit is 536870912");
  munmap(memory, kSize);
}

TEST(TokenizerHostile, LongTokensAndEmptyOnes) {
  const std::string long_text(100'000, 'q');
  const auto tokenizer = Tokenizer::FromJson(
      SmallFile(kByteLevel, R"(, "added_tokens": [{"id": 8, "content": ")" + long_text +
                                R"("}, {"id": 9, "content": ""}, {"id": 10, "content": "qq"}])"));
  ASSERT_TRUE(tokenizer.ok()) << Message(tokenizer.status());
  EXPECT_EQ((*tokenizer)->Encode(long_text + "qqab", false).value(),
            std::vector<TokenId>({8, 10, 2}));
  EXPECT_EQ((*tokenizer)->Decode(std::vector<TokenId>({8, 9, 2}), false), long_text + "ab");
}

TEST(TokenizerHostile, ConfigFiles) {
  const std::string config = R"({"bos_token": {"content": "ab", "lstrip": false}, "eos_token": "b",
      "pad_token": null, "unk_token": "nowhere", "chat_template": [
        {"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}]})";
  const auto tokenizer = Tokenizer::FromJson(SmallFile(kByteLevel), config);
  ASSERT_TRUE(tokenizer.ok()) << Message(tokenizer.status());
  EXPECT_EQ((*tokenizer)->bos_id(), 2);
  EXPECT_EQ((*tokenizer)->bos_text(), "ab");
  EXPECT_EQ((*tokenizer)->eos_id(), 1);
  EXPECT_EQ((*tokenizer)->chat_template(), "D");
  ASSERT_EQ((*tokenizer)->named_chat_templates().size(), 2u);
  EXPECT_EQ((*tokenizer)->ChatTemplateFor(/*has_tools=*/true), "T");
  EXPECT_EQ((*tokenizer)->ChatTemplateFor(/*has_tools=*/false), "D");
  EXPECT_EQ((*tokenizer)->special_tokens().size(), 3u);
  EXPECT_CONTAINS(LoadError(SmallFile(kByteLevel), "[1"), "tokenizer_config: json is malformed");
  EXPECT_CONTAINS(LoadError(SmallFile(kByteLevel), R"({"chat_template": 7})"), "chat_template");

  const std::filesystem::path dir =
      std::filesystem::path(testing::TempDir()) / fmt::format("tokenizer_hostile_{}", getpid());
  std::filesystem::create_directories(dir);
  const auto write = [&](const char* name, const std::string& text) {
    std::ofstream(dir / name) << text;
  };
  EXPECT_EQ(Tokenizer::FromDirectory(dir.string()).status().code(), Code::kNotFound);
  write("tokenizer.json", SmallFile(kByteLevel));
  write("tokenizer_config.json", config);
  write("chat_template.jinja", "J");
  const auto from_directory = Tokenizer::FromDirectory(dir.string());
  ASSERT_TRUE(from_directory.ok()) << Message(from_directory.status());
  EXPECT_EQ((*from_directory)->chat_template(), "J");
  EXPECT_EQ((*from_directory)->eos_text(), "b");
  write("tokenizer.json", SmallFile(R"({"type": "Split", "behavior": "Isolated",
                                        "pattern": {"Regex": "("}})"));
  const absl::Status status = Tokenizer::FromDirectory(dir.string()).status();
  EXPECT_CONTAINS(Message(status), (dir / "tokenizer.json").string());
  EXPECT_CONTAINS(Message(status), "not a valid regular expression");
  std::filesystem::remove_all(dir);
}

TEST(TokenizerHostile, ThreadsShareOne) {
  const auto tokenizer = Tokenizer::FromJson(SmallFile(
      R"({"type": "Sequence", "pretokenizers": [{"type": "Split", "behavior": "Isolated",
          "pattern": {"Regex": "[ab]+|\\s"}}, {"type": "ByteLevel", "use_regex": false}]})"));
  ASSERT_TRUE(tokenizer.ok()) << Message(tokenizer.status());
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i) {
        EXPECT_EQ((*tokenizer)->Encode("abab ab", false).value(), std::vector<TokenId>({3, 2}));
        EXPECT_EQ((*tokenizer)->Decode(std::vector<TokenId>({3, 0}), true), "ababa");
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Damaged files load or are refused; what loads can be used; nothing crashes.
TEST(TokenizerHostile, DamagedFiles) {
  const char* const kTexts[] = {"", "The quick answer <think>\n\n42</think>", "\u4F60\u597D  \t"};
  const char* const kSnippets[] = {
      "null",         "-1",   "[]",        "{}",          "\"\"",
      "1e308",        "true", "999999999", "\"\\u0000\"", "[[\"a\",\"b\"]]",
      "\"Sequence\"", ","};
  std::mt19937 rng(4);
  int loaded = 0;
  int refused = 0;
  for (const char* name : {"qwen2", "deepseek_v3", "llama2_metaspace"}) {
    const std::string original = ReadReference(std::string(name) + "/tokenizer.json");
    // The vocabulary is most of the file; half of the damage goes to the interesting beginning.
    for (int round = 0; round < 150; ++round) {
      std::string text = original;
      for (uint32_t n = rng() % 3 + 1; n > 0; --n) {
        const size_t pos =
            rng() % (rng() % 2 == 0 ? text.size() : std::min<size_t>(4000, text.size()));
        switch (rng() % 4) {
          case 0:
            text[pos] = static_cast<char>(rng());
            break;
          case 1:
            text.erase(pos, rng() % 40);
            break;
          case 2:
            text.insert(pos, kSnippets[rng() % std::size(kSnippets)]);
            break;
          default: {  // a value for another
            const size_t colon = text.find(": ", pos);
            if (colon == std::string::npos) break;
            const size_t end = text.find_first_of(",}]", colon);
            if (end == std::string::npos) break;
            text.replace(colon + 2, end - colon - 2, kSnippets[rng() % std::size(kSnippets)]);
          }
        }
      }
      const auto tokenizer = Tokenizer::FromJson(text);
      if (!tokenizer.ok()) {
        EXPECT_FALSE(Message(tokenizer.status()).empty());
        ++refused;
        continue;
      }
      ++loaded;
      for (const char* sample : kTexts) {
        const auto ids = (*tokenizer)->Encode(sample, true);
        if (!ids.ok()) continue;
        for (const TokenId id : *ids) ASSERT_TRUE((*tokenizer)->Contains(id));
        EXPECT_EQ(FindInvalidUtf8((*tokenizer)->Decode(*ids, false)), std::nullopt);
      }
    }
  }
  EXPECT_GT(loaded, 10);
  EXPECT_GT(refused, 100);
}

TEST(TokenizerHostile, RandomBytesAndIds) {
  std::mt19937 rng(5);
  for (const char* name : {"gpt2", "o200k", "gemma"}) {
    const auto tokenizer = Reference(name);
    for (int round = 0; round < 300; ++round) {
      std::string bytes;
      for (uint32_t n = rng() % 60; n > 0; --n) bytes += static_cast<char>(rng());
      const auto ids = tokenizer->Encode(bytes, rng() % 2 == 0);
      EXPECT_EQ(ids.ok(), FindInvalidUtf8(bytes) == std::nullopt);
      std::string valid;
      AppendLossyUtf8(bytes, /*keep_incomplete=*/false, valid);
      const auto valid_ids = tokenizer->Encode(valid, false);
      ASSERT_TRUE(valid_ids.ok());
      EXPECT_EQ(tokenizer->Decode(*valid_ids, false),
                valid);  // byte level and byte fallback lose nothing
      std::vector<TokenId> any;
      for (uint32_t n = rng() % 20; n > 0; --n)
        any.push_back(static_cast<TokenId>(rng() % 1100) - 50);
      EXPECT_EQ(FindInvalidUtf8(tokenizer->Decode(any, rng() % 2 == 0)), std::nullopt);
    }
  }
}

// Older tables would not know characters that the reference's cases have.
TEST(TokenizerHostile, NamesTheUnicodeVersion) { EXPECT_GE(std::stod(UnicodeVersion()), 15.0); }

}  // namespace
}  // namespace quire
