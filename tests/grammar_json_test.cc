// JSON schemas: whatever ends is valid, by the judgement of Python's json and jsonschema. Random
// walks over the allowed tokens, with every tokenizer of tests/reference/tokenizers.
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>

#include "base/json.h"
#include "tests/grammar_harness.h"
#include "tokenizer/tokenizer.h"

namespace quire {
namespace {

const char* const kTokenizers[] = {"deepseek_v3", "digits_bytelevel", "gemma",  "gpt2",
                                   "llama2",      "llama2_metaspace", "llama3", "o200k",
                                   "qwen2"};
constexpr int32_t kPadding = 12;

struct Model {
  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<GrammarCompiler> compiler;
  std::vector<std::string> bytes;
  TokenId end = 0;
};

Model Load(const std::string& name) {
  Model model;
  auto tokenizer =
      Tokenizer::FromDirectory(std::string(QUIRE_TEST_REFERENCE) + "/tokenizers/" + name);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  model.tokenizer = *std::move(tokenizer);
  const int32_t vocab_size = model.tokenizer->vocab_size() + kPadding;
  // Some of these files name no end: then a row of the padding stands for it.
  model.end = model.tokenizer->eos_id().value_or(vocab_size - 1);
  GrammarVocabulary vocabulary = MakeGrammarVocabulary(*model.tokenizer, vocab_size, {model.end});
  model.bytes = vocabulary.token_bytes;
  model.bytes.resize(static_cast<size_t>(vocab_size));
  auto compiler = GrammarCompiler::Make(std::move(vocabulary));
  EXPECT_TRUE(compiler.ok()) << compiler.status();
  model.compiler = *std::move(compiler);
  return model;
}

// The text of a walk that ended, or nullopt. Every id is one that the model may sample.
std::optional<std::string> Walk(const Model& model, GrammarMatcher& matcher, int max_tokens,
                                std::mt19937& random) {
  std::vector<TokenId> ids;
  for (int i = 0; i < max_tokens; ++i) {
    const std::vector<int32_t> mask = MaskOf(matcher);
    const std::vector<TokenId> allowed = AllowedIds(mask);
    EXPECT_TRUE(matcher.status().ok()) << matcher.status();
    if (allowed.empty()) {
      ADD_FAILURE() << "nothing allowed";
      return std::nullopt;
    }
    TokenId next = PickToken(allowed, model.bytes, random);
    if (Allows(mask, model.end) && random() % 2 == 0) next = model.end;
    EXPECT_TRUE(model.tokenizer->Contains(next) || next == model.end) << next << " is padding";
    EXPECT_TRUE(next == model.end || !model.tokenizer->IsSpecial(next)) << next;
    EXPECT_EQ(Allows(mask, model.end), matcher.CanEnd());
    if (!matcher.Accept(next)) {
      ADD_FAILURE() << "the mask allowed " << next << ", Accept did not";
      return std::nullopt;
    }
    if (matcher.IsTerminated()) return model.tokenizer->Decode(ids, /*skip_special_tokens=*/true);
    ids.push_back(next);
  }
  return std::nullopt;
}

// Runs the judge on `cases`; empty if it finds no fault.
std::string Judge(const std::vector<std::pair<std::string, std::string>>& cases) {
  const std::string path = testing::TempDir() + "/grammar_json_cases.jsonl";
  {
    std::ofstream file(path);
    for (const auto& [schema, text] : cases) {
      JsonWriter line;
      line.BeginObject();
      line.Key("schema");
      line.String(schema);
      line.Key("text");
      line.String(text);
      line.EndObject();
      file << line.text() << '\n';
    }
  }
  const std::string command =
      fmt::format("{} {} < {} 2>&1", QUIRE_TEST_PYTHON, QUIRE_TEST_JUDGE, path);
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return "no pipe";
  std::string said;
  char buffer[4096];
  while (const size_t n = fread(buffer, 1, sizeof(buffer), pipe)) said.append(buffer, n);
  const int status = pclose(pipe);
  if (status == 0 && said == fmt::format("{} texts, 0 bad\n", cases.size())) return {};
  return said;
}

const char* const kSchemas[] = {
    R"({"type":"object","properties":{"name":{"type":"string"},"age":{"type":"integer"}},
        "required":["name","age"]})",
    R"({"type":"object","properties":{"a":{"type":"boolean"},"b":{"type":"null"}}})",
    R"({"type":"array","items":{"type":"number"},"minItems":1,"maxItems":4})",
    R"({"type":"array","prefixItems":[{"type":"integer"},{"type":"string"}],"minItems":2})",
    R"({"enum":["red","green","ääh","\"q\"",null,3,[1,2],{"k":true}]})",
    R"({"const":{"a":[1,"x"]}})",
    R"({"type":"string","minLength":2,"maxLength":5})",
    R"({"type":"string","minLength":3})",
    R"({"type":"string","pattern":"^.{5}$"})",
    R"({"type":"string","pattern":"^[^a]{3}\\s\\S[ -~]{3}$"})",
    R"({"type":"string","pattern":"^\\u00e4[\\u00e0-\\u00ff]{2}$"})",
    R"({"type":"object","patternProperties":{"^.{4}$":{"type":"null"}},
        "additionalProperties":false})",
    R"({"type":"object","propertyNames":{"minLength":4},"additionalProperties":{"type":"null"}})",
    R"({"type":"string","format":"date"})",
    R"({"type":"string","format":"time"})",
    R"({"type":"string","format":"date-time"})",
    R"({"type":"string","format":"duration"})",
    R"({"type":"string","format":"email"})",
    R"({"type":"string","format":"hostname"})",
    R"({"type":"string","format":"ipv4"})",
    R"({"type":"string","format":"ipv6"})",
    R"({"type":"string","format":"uuid"})",
    R"({"type":"string","format":"uri"})",
    R"({"type":"string","format":"uri-reference"})",
    R"({"type":"string","format":"uri-template"})",
    R"({"type":"string","pattern":"^[A-Z][a-z]{2,4}-[0-9]+$"})",
    R"({"type":"integer","minimum":-17,"maximum":123})",
    R"({"type":"number","minimum":0.5,"exclusiveMaximum":3})",
    R"({"type":"integer","multipleOf":7,"minimum":0,"maximum":500})",
    R"({"anyOf":[{"type":"integer"},{"type":"object","properties":{"x":{"type":"string"}},
        "required":["x"],"additionalProperties":false}]})",
    R"({"oneOf":[{"type":"string"},{"type":"boolean"}]})",
    R"({"type":["string","null"]})",
    R"({"$defs":{"node":{"type":"object","properties":{"v":{"type":"integer"},
        "next":{"anyOf":[{"$ref":"#/$defs/node"},{"type":"null"}]}},"required":["v","next"]}},
        "$ref":"#/$defs/node"})",
    R"({"type":"object","additionalProperties":{"type":"integer"},"maxProperties":3})",
    R"({"type":"object","patternProperties":{"^k[0-9]$":{"type":"boolean"}},
        "additionalProperties":false})",
    R"({"type":"object","propertyNames":{"pattern":"^[a-c]+$"},
        "additionalProperties":{"type":"null"}})",
    R"({"type":"object","properties":{"p":{"type":"integer"},"q":{"type":"integer"},
        "r":{"type":"integer"}},"minProperties":2})",
};

TEST(GrammarJson, WhatEndsIsValid) {
  std::vector<std::pair<std::string, std::string>> cases;
  size_t walks = 0;
  size_t ill_formed = 0;
  for (const char* name : kTokenizers) {
    const Model model = Load(name);
    std::mt19937 random(3);
    for (const char* schema : kSchemas) {
      for (int variant = 0; variant < 2; ++variant) {
        GrammarSpec spec{.kind = GrammarSpec::Kind::kJsonSchema, .text = schema};
        spec.any_whitespace = variant != 1;
        spec.max_whitespace = 2;
        const auto grammar = model.compiler->Compile(spec);
        ASSERT_TRUE(grammar.ok()) << name << schema << grammar.status();
        for (int i = 0; i < 2; ++i) {
          ++walks;
          GrammarMatcher matcher(*grammar);
          auto text = Walk(model, matcher, 200, random);
          if (!text) continue;
          // Bytes of a lone surrogate, which the grammar takes for one character and a decoder for
          // three: JSON all the same, but no length or pattern can be judged.
          if (text->find("\xEF\xBF\xBD") != std::string::npos) {
            ++ill_formed;
            cases.emplace_back("{}", *std::move(text));
            continue;
          }
          cases.emplace_back(schema, *std::move(text));
        }
      }
    }
  }
  EXPECT_GT(cases.size(), walks / 2) << "too few came to an end";
  EXPECT_LT(ill_formed, walks / 20);
  EXPECT_EQ(Judge(cases), "");
}

// Without the judge's verdict on what is wrong, its verdict on what is right would mean little.
TEST(GrammarJson, TheJudgeFindsFaults) {
  EXPECT_NE(Judge({{R"({"type":"integer"})", "1.5"}}), "");
  EXPECT_NE(Judge({{"{}", "{\"a\":"}}), "");
  EXPECT_EQ(Judge({{R"({"type":"integer"})", "15"}}), "");
}

TEST(GrammarJson, O05_FreeValuesParseWhenTheyEnd) {
  const Model model = Load("gpt2");
  std::vector<std::pair<std::string, std::string>> cases;
  int cut = 0;
  for (const char* schema : {"{}", R"({"type":"number"})", R"({"type":"array"})", "object"}) {
    GrammarSpec spec{.kind = GrammarSpec::Kind::kJsonSchema, .text = schema};
    if (spec.text == "object") spec = {.kind = GrammarSpec::Kind::kJsonObject};
    const auto grammar = model.compiler->Compile(spec);
    ASSERT_TRUE(grammar.ok()) << grammar.status();
    for (uint32_t seed = 0; seed < 100; ++seed) {
      std::mt19937 random(seed);
      GrammarMatcher matcher(*grammar);
      auto text = Walk(model, matcher, 200, random);
      if (!text) {
        ++cut;
        EXPECT_FALSE(matcher.IsTerminated());
        continue;
      }
      cases.emplace_back(spec.text.empty() ? R"({"type":"object"})" : spec.text, *text);
    }
  }
  EXPECT_GT(cases.size(), 100u);
  EXPECT_GT(cut, 0) << "some are cut by the length; those are not judged";
  EXPECT_EQ(Judge(cases), "");
}

TEST(GrammarJson, O05_WhiteSpaceIsBounded) {
  const ToyVocabulary toy;
  auto compiler = GrammarCompiler::Make(toy.Vocabulary());
  ASSERT_TRUE(compiler.ok());
  for (const char* schema : {"{}", R"({"type":"array"})", R"({"type":"object"})"}) {
    for (const bool strict : {false, true}) {
      GrammarSpec spec{.kind = GrammarSpec::Kind::kJsonSchema, .text = schema, .strict = strict};
      spec.max_whitespace = 3;
      const auto grammar = (*compiler)->Compile(spec);
      ASSERT_TRUE(grammar.ok());
      for (const std::string start : {"[", "{", "[1", "[1,", "[[]", "[{", "[{\"a\"", "[{\"a\":"}) {
        GrammarMatcher matcher(*grammar);
        bool fits = true;
        for (const char c : start) fits = fits && matcher.Accept(c);
        if (!fits) continue;
        int spaces = 0;
        while (matcher.Accept(' ')) ASSERT_LE(++spaces, 2 * 3) << schema << start;
      }
    }
  }
}

}  // namespace
}  // namespace quire
