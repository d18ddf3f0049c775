// What is refused before it is compiled, and by which words.
#include "sampling/grammar_check.h"

#include <gtest/gtest.h>

namespace quire {
namespace {

using Kind = GrammarSpec::Kind;

std::string Refusal(Kind kind, std::string text) {
  GrammarSpec spec;
  spec.kind = kind;
  spec.text = std::move(text);
  const absl::Status status = CheckGrammarSpec(spec, GrammarLimits{});
  if (!status.ok()) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  }
  return Message(status);
}

std::string Repeat(std::string_view text, int n) {
  std::string out;
  for (int i = 0; i < n; ++i) out += text;
  return out;
}

TEST(GrammarCheck, SchemasAreRefusedByPath) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {R"({"type":"stirng"})", "json_schema.type=\"stirng\""},
      {R"({"type":"object","properties":{"a":{"type":"int"}}})", "json_schema.properties.a.type"},
      {R"({"type":[]})", "json_schema.type=[]"},
      {R"({"enum":[]})", "json_schema.enum"},
      {R"({"type":"string","minLength":5,"maxLength":3})", "json_schema.minLength=5"},
      {R"({"type":"string","maxLength":-1})", "json_schema.maxLength=-1"},
      {R"({"type":"array","maxItems":1000000000})", "json_schema.maxItems=1000000000"},
      {R"({"type":"array","items":{"$ref":"#/nope"}})", "json_schema.items.$ref=\"#/nope\""},
      {R"({"$ref":"http://elsewhere/a"})", "json_schema.$ref="},
      {R"({"$ref":"#"})", "never ends"},
      {R"({"$defs":{"a":{"$ref":"#/$defs/b"},"b":{"$ref":"#/$defs/a"}},"$ref":"#/$defs/a"})",
       "never ends"},
      {R"({"type":"object","additionalProperties":false,"required":["x"]})",
       "json_schema.required[0]='x'"},
      {R"({"anyOf":[{"type":"null"},{"not":{}}]})", "json_schema.anyOf[1].not"},
      {R"({"anyOf":[]})", "json_schema.anyOf"},
      {R"({"type":"array","uniqueItems":true})", "json_schema.uniqueItems"},
      {R"({"if":{},"then":{}})", "json_schema.if"},
      {R"({"anyOf":[{}],"required":["a"]})", "json_schema.required is not supported beside anyOf"},
      {R"({"minLength":3})", "json_schema.minLength needs a type"},
      {R"({"type":"object","properties":[]})", "json_schema.properties"},
      {R"({"type":"string","pattern":""})", "json_schema.pattern"},
      {R"({"type":"string","format":"json-pointer"})", "json_schema.format=json-pointer"},
      {R"([])", "json_schema must be an object"},
      {R"({"a":)", "json_schema"},
      {"", "json_schema"},
  };
  for (const auto& [schema, want] : cases) {
    const std::string got = Refusal(Kind::kJsonSchema, schema);
    EXPECT_NE(got.find(want), std::string::npos) << schema << " -> " << got;
  }
}

TEST(GrammarCheck, OrdinarySchemasPass) {
  for (const char* schema :
       {R"({})", R"(true)", R"({"type":["string","null"],"minLength":2})",
        R"({"title":"T","type":"object","properties":{"a":{"anyOf":[{"type":"integer"},
            {"type":"null"}],"default":null}},"required":["a"]})",
        R"({"type":"object","properties":{"children":{"type":"array","items":{"$ref":"#"}}}})",
        R"({"type":"string","enum":["a","b"]})", R"({"$ref":"#/$defs/a","description":"d",
            "$defs":{"a":{"const":3}}})",
        R"({"type":"array","uniqueItems":false})"}) {
    EXPECT_EQ(Refusal(Kind::kJsonSchema, schema), "") << schema;
  }
}

TEST(GrammarCheck, O01_NestingIsRefusedAtTheLimitByItsPlace) {
  for (const int depth : {100, 1'000, 10'000, 100'000}) {
    const std::vector<std::pair<std::string, std::string>> kinds = {
        {R"({"items":)", "}"},
        {R"({"properties":{"a":)", "}}"},
        {R"({"anyOf":[)", "]}"},
        {R"({"allOf":[)", "]}"},
        {R"({"not":)", "}"}};
    for (const auto& kind : kinds) {
      EXPECT_NE(
          Refusal(Kind::kJsonSchema, Repeat(kind.first, depth) + "{}" + Repeat(kind.second, depth)),
          "")
          << kind.first << depth;
    }
    EXPECT_NE(Refusal(Kind::kRegex, std::string(depth, '(') + "a" + std::string(depth, ')')), "");
    EXPECT_NE(
        Refusal(Kind::kJsonSchema, R"({"type":"string","pattern":")" + std::string(depth, '(') +
                                       "a" + std::string(depth, ')') + "\"}"),
        "");
    EXPECT_NE(Refusal(Kind::kEbnf,
                      "root ::= " + std::string(depth, '(') + "\"a\"" + std::string(depth, ')')),
              "");
  }
  EXPECT_EQ(Refusal(Kind::kRegex, std::string(64, '(') + "a" + std::string(64, ')')), "");
  EXPECT_EQ(Refusal(Kind::kRegex, std::string(65, '(') + "a" + std::string(65, ')')),
            "regex is nested deeper than 64 at offset 64");
  // Brackets that are no groups.
  EXPECT_EQ(Refusal(Kind::kRegex, "[" + std::string(100, '(') + "]" + Repeat("\\(", 100)), "");
  EXPECT_EQ(
      Refusal(Kind::kEbnf, "root ::= \"" + std::string(100, '(') + "\" # " + std::string(100, '(')),
      "");
}

TEST(GrammarCheck, SizesAndRepetitions) {
  EXPECT_NE(Refusal(Kind::kEbnf, std::string(10'000'000, 'a')).find("limit is 65536"),
            std::string::npos);
  EXPECT_NE(Refusal(Kind::kRegex, std::string(8193, 'a')).find("8193 bytes, limit is 8192"),
            std::string::npos);
  EXPECT_NE(Refusal(Kind::kRegex, "a{1000000000}").find("at offset 1"), std::string::npos);
  EXPECT_NE(Refusal(Kind::kRegex, "a{3,100001}").find("at offset 1"), std::string::npos);
  EXPECT_EQ(Refusal(Kind::kRegex, "[{9999999}]"), "");
  EXPECT_NE(Refusal(Kind::kRegex, ""), "");
  EXPECT_NE(Refusal(Kind::kEbnf, ""), "");
  GrammarSpec spec;
  spec.kind = Kind::kChoice;
  EXPECT_FALSE(CheckGrammarSpec(spec, {}).ok());
  spec.choices = {"a", ""};
  EXPECT_EQ(Message(CheckGrammarSpec(spec, {})), "choice[1] must not be empty");
  spec.choices.assign(4097, "a");
  EXPECT_EQ(Message(CheckGrammarSpec(spec, {})), "choice has 4097 entries, limit is 4096");
  spec.choices.assign(2, std::string(40'000, 'a'));
  EXPECT_EQ(Message(CheckGrammarSpec(spec, {})), "choice has 80000 bytes, limit is 65536");
  spec = {};
  spec.max_whitespace = 0;
  EXPECT_FALSE(CheckGrammarSpec(spec, {}).ok());
}

TEST(GrammarCheck, SchemasInsideOfStructuralTags) {
  const std::string tag = R"({"type":"structural_tag","format":{"type":"triggered_tags",
      "triggers":["<f"],"tags":[{"begin":"<f>","content":{"type":"json_schema",
      "json_schema":{"type":"array","uniqueItems":true}},"end":"</f>"}]}})";
  const std::string got = Refusal(Kind::kStructuralTag, tag);
  EXPECT_NE(got.find("structural_tag.format.tags[0].content.json_schema.uniqueItems"),
            std::string::npos)
      << got;
  EXPECT_NE(Refusal(Kind::kStructuralTag, Repeat("[", 1000)), "");
}

}  // namespace
}  // namespace quire
