// The compiler as a border: what is bad is an error of its request, never of the daemon.
#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <thread>

#include "sampling/grammar_budget.h"
#include "tests/grammar_harness.h"

namespace quire {
namespace {

using Kind = GrammarSpec::Kind;

GrammarSpec Spec(Kind kind, std::string text) {
  GrammarSpec spec;
  spec.kind = kind;
  spec.text = std::move(text);
  return spec;
}

std::unique_ptr<GrammarCompiler> MakeCompiler(const GrammarLimits& limits = {}) {
  auto compiler =
      GrammarCompiler::Make(ToyVocabulary({"ab", "aaaa", "{\"", "\": "}).Vocabulary(), limits);
  EXPECT_TRUE(compiler.ok()) << compiler.status();
  return *std::move(compiler);
}

// After whatever came before: a known grammar works.
void Probe(GrammarCompiler& compiler) {
  auto grammar = compiler.Compile(Spec(Kind::kRegex, "[0-9]{3}"));
  ASSERT_TRUE(grammar.ok()) << grammar.status();
  GrammarMatcher matcher(*grammar);
  for (const char digit : {'1', '2', '3'}) ASSERT_TRUE(matcher.Accept(digit));
  EXPECT_TRUE(matcher.MustEnd());
}

TEST(GrammarCompiler, O01_O02_O03_BadTextsAreErrors) {
  auto compiler = MakeCompiler();
  const std::vector<GrammarSpec> specs = {
      Spec(Kind::kRegex, "*a"),
      Spec(Kind::kRegex, "(?<=x)+"),
      Spec(Kind::kRegex, "{2,1}"),
      Spec(Kind::kRegex, "a{2,1}"),
      Spec(Kind::kRegex, "[z-a]"),
      Spec(Kind::kRegex, "("),
      Spec(Kind::kRegex, "["),
      Spec(Kind::kRegex, "a\\"),
      Spec(Kind::kRegex, "(?!a)b"),
      Spec(Kind::kRegex, "\\bx"),
      Spec(Kind::kEbnf, "root ::= root \"a\""),
      Spec(Kind::kEbnf, "root ::= a\na ::= b\nb ::= a\n"),
      Spec(Kind::kEbnf, "root ::= root"),
      Spec(Kind::kEbnf, "a ::= \"x\""),
      Spec(Kind::kEbnf, "root ::= b"),
      Spec(Kind::kEbnf, "root ::= ("),
      Spec(Kind::kEbnf, "root"),
      Spec(Kind::kEbnf, "::="),
      Spec(Kind::kEbnf, std::string("root ::= \"\0\"", 12)),
      Spec(Kind::kEbnf, "root ::= \"\xff"),
      Spec(Kind::kJsonSchema, R"({"$defs":{"a":{"anyOf":[{"$ref":"#/$defs/b"}]},
          "b":{"anyOf":[{"$ref":"#/$defs/a"}]}},"$ref":"#/$defs/a"})"),
      Spec(Kind::kJsonSchema, R"({"type":"string","pattern":"(","title":"x"})"),
      Spec(Kind::kJsonSchema, R"({"type":"string","pattern":"a","minLength":3})"),
      // What would have to be escaped within the string.
      Spec(Kind::kJsonSchema, R"({"type":"string","pattern":"a\"b"})"),
      Spec(Kind::kJsonSchema, R"({"type":"string","pattern":"a\\nb"})"),
      Spec(Kind::kJsonSchema, R"({"type":"string","pattern":"a\\\\b"})"),
      Spec(Kind::kJsonSchema, R"({"type":"string","pattern":"ä."})"),
      Spec(Kind::kJsonSchema, R"({"allOf":[{"type":"string"},{"type":"string"}]})"),
      Spec(Kind::kJsonSchema, R"({"type":"integer","minimum":5,"maximum":3})"),
      Spec(Kind::kJsonSchema, R"({"type":"number","multipleOf":0.1})"),
      Spec(Kind::kJsonSchema, "false"),
      Spec(Kind::kStructuralTag, "{}"),
      Spec(Kind::kStructuralTag, R"({"type":"structural_tag","format":{"type":"nothing"}})"),
  };
  for (const GrammarSpec& spec : specs) {
    const auto grammar = compiler->Compile(spec);
    ASSERT_FALSE(grammar.ok()) << spec.text;
    EXPECT_EQ(grammar.status().code(), absl::StatusCode::kInvalidArgument) << grammar.status();
    // Which field, and nothing of files and lines of a library.
    EXPECT_EQ(Message(grammar.status()).find(".cc:"), std::string::npos) << grammar.status();
    Probe(*compiler);
  }
  EXPECT_EQ(compiler->stats().refused, static_cast<int64_t>(specs.size()));
  EXPECT_EQ(compiler->stats().cached, 1);
}

TEST(GrammarCompiler, RecursiveSchemasWork) {
  auto compiler = MakeCompiler();
  auto grammar = compiler->Compile(
      Spec(Kind::kJsonSchema, R"({"type":"array","items":{"$ref":"#"},"maxItems":2})"));
  ASSERT_TRUE(grammar.ok()) << grammar.status();
  for (const auto& [text, good] : std::vector<std::pair<std::string, bool>>{
           {"[]", true}, {"[[],[[]]]", true}, {"[[],[],[]]", false}, {"[1]", false}}) {
    GrammarMatcher matcher(*grammar);
    bool all = true;
    for (const char c : text) all = all && matcher.Accept(static_cast<unsigned char>(c));
    EXPECT_EQ(all && matcher.CanEnd(), good) << text;
  }
}

// Bombs: each either compiles within the limits or is refused by them.
TEST(GrammarCompiler, BombsStayWithinTheLimits) {
  GrammarLimits limits;
  limits.compile_bytes = 64 << 20;
  limits.compile_time = std::chrono::seconds(20);
  auto compiler = MakeCompiler(limits);
  std::string doubling = "root ::= a0\n";
  for (int i = 0; i < 40; ++i) doubling += fmt::format("a{} ::= a{} a{}\n", i, i + 1, i + 1);
  doubling += "a40 ::= \"x\"\n";
  std::string properties = R"({"type":"object","properties":{)";
  for (int i = 0; i < 1000; ++i) properties += fmt::format("{}\"p{}\":{{}}", i ? "," : "", i);
  properties += "},\"minProperties\":500}";
  std::string values = R"({"enum":[)";
  for (int i = 0; i < 5000; ++i) values += fmt::format("{}\"v{}\"", i ? "," : "", i);
  values += "]}";
  const std::vector<GrammarSpec> bombs = {
      Spec(Kind::kRegex, "(a{1,1000}){1,1000}"),
      Spec(Kind::kRegex, "((a{1,99}){1,99}){1,99}"),
      Spec(Kind::kRegex, "(((((a{9}){9}){9}){9}){9}){9}"),
      Spec(Kind::kRegex, "[a-z]{1,10000}"),
      Spec(Kind::kRegex, "(a|b)*a(a|b){30}"),
      Spec(Kind::kRegex, "(.*)*(.*)*(.*)*a.{50}"),
      Spec(Kind::kRegex, "(\\w{1,500}\\s){1,500}"),
      Spec(Kind::kEbnf, doubling),
      Spec(Kind::kEbnf, "root ::= root root | \"a\" | root root root"),
      Spec(Kind::kJsonSchema, properties),
      Spec(Kind::kJsonSchema, values),
      Spec(Kind::kJsonSchema, R"({"type":"array","items":{"type":"string","minLength":9000,
          "maxLength":10000},"minItems":10000,"maxItems":10000})"),
      Spec(Kind::kJsonSchema, R"({"type":"string","pattern":"^(a{1,1000}){1,1000}$"})"),
  };
  for (const GrammarSpec& bomb : bombs) {
    const auto grammar = compiler->Compile(bomb);
    if (!grammar.ok()) {
      EXPECT_EQ(grammar.status().code(), absl::StatusCode::kInvalidArgument) << grammar.status();
      continue;
    }
    GrammarMatcher matcher(*grammar);
    std::mt19937 random(7);
    for (int step = 0; step < 300 && !matcher.IsTerminated(); ++step) {
      const std::vector<TokenId> allowed = AllowedIds(MaskOf(matcher));
      ASSERT_FALSE(allowed.empty());
      ASSERT_TRUE(matcher.Accept(allowed[random() % allowed.size()]));
      // A mask that cost too much ends the request, not the daemon.
      if (!matcher.status().ok()) break;
    }
  }
  Probe(*compiler);
}

TEST(GrammarCompiler, BudgetsAreNamed) {
  const GrammarSpec spec = Spec(Kind::kRegex, "([a-z]{1,900}[0-9]){1,900}");
  GrammarLimits few_bytes;
  few_bytes.compile_bytes = 100 << 10;
  auto compiler = MakeCompiler(few_bytes);
  auto grammar = compiler->Compile(spec);
  ASSERT_FALSE(grammar.ok());
  EXPECT_NE(Message(grammar.status()).find("regex takes more than 0 MiB"), std::string::npos)
      << grammar.status();
  GrammarLimits no_time;
  no_time.compile_time = std::chrono::milliseconds(0);
  compiler = MakeCompiler(no_time);
  grammar = compiler->Compile(spec);
  ASSERT_FALSE(grammar.ok());
  EXPECT_NE(Message(grammar.status()).find("regex takes longer than 0 ms"), std::string::npos)
      << grammar.status();
  compiler = MakeCompiler();
  EXPECT_TRUE(compiler->Compile(spec).ok());
}

TEST(GrammarBudget, CountsWhatIsAlive) {
  GrammarBudget budget(1000, std::chrono::hours(1));
  budget.Take(600);
  budget.Give(600);
  budget.Take(600);
  EXPECT_EQ(budget.exceeded(), GrammarBudget::Exceeded::kNo);
  EXPECT_THROW(budget.Take(600), std::bad_alloc);
  EXPECT_EQ(budget.exceeded(), GrammarBudget::Exceeded::kBytes);
  EXPECT_NO_THROW(budget.Take(600)) << "what unwinds may allocate";
  EXPECT_EQ(budget.peak_bytes(), 1200u);
}

TEST(GrammarCompiler, EqualSpecsShareAndTheCacheIsBounded) {
  GrammarLimits limits;
  limits.cache_bytes = 64 << 10;
  auto compiler = MakeCompiler(limits);
  const auto first = compiler->Compile(Spec(Kind::kRegex, "a+"));
  const auto again = compiler->Compile(Spec(Kind::kRegex, "a+"));
  ASSERT_TRUE(first.ok() && again.ok());
  EXPECT_EQ(*first, *again);
  EXPECT_EQ(compiler->stats().hits, 1);
  GrammarSpec other = Spec(Kind::kJsonSchema, R"({"type":"array","maxItems":1})");
  const auto loose = compiler->Compile(other);
  other.max_whitespace = 1;
  const auto tight = compiler->Compile(other);
  ASSERT_TRUE(loose.ok() && tight.ok());
  EXPECT_NE(*loose, *tight) << "options are part of the key";
  for (int i = 0; i < 300; ++i) {
    ASSERT_TRUE(compiler->Compile(Spec(Kind::kRegex, fmt::format("[a-z]{{3}}{}", i))).ok());
    ASSERT_LE(compiler->stats().cached_bytes, limits.cache_bytes);
  }
  EXPECT_LT(compiler->stats().cached, 300);
  EXPECT_GT(compiler->stats().cached, 0);
  // The first was evicted; who holds it keeps it.
  EXPECT_NE(*compiler->Compile(Spec(Kind::kRegex, "a+")), *first);
  GrammarMatcher matcher(*first);
  EXPECT_TRUE(matcher.Accept('a'));
}

TEST(GrammarCompiler, ManyThreadsCompileOnce) {
  auto compiler = MakeCompiler();
  std::atomic<int> failed{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 20; ++i) {
        if (!compiler->Compile(Spec(Kind::kRegex, fmt::format("[0-9]{{1,50}}x{}", i))).ok())
          ++failed;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failed, 0);
  EXPECT_EQ(compiler->stats().misses, 20);
  EXPECT_EQ(compiler->stats().hits, 140);
}

TEST(GrammarCompiler, BadVocabulariesAreRefused) {
  EXPECT_FALSE(GrammarCompiler::Make({}).ok());
  EXPECT_FALSE(GrammarCompiler::Make({.token_bytes = {"a", "b"}, .vocab_size = 1}).ok());
  EXPECT_FALSE(
      GrammarCompiler::Make({.token_bytes = {"a", "b"}, .vocab_size = 2, .stop_ids = {2}}).ok());
}

// Pieces of all the languages, thrown together: an error or a grammar, never an abort.
TEST(GrammarCompiler, RandomTextsNeverAbort) {
  GrammarLimits limits;
  limits.compile_bytes = 32 << 20;
  limits.compile_time = std::chrono::milliseconds(300);
  auto compiler = MakeCompiler(limits);
  const std::vector<std::string> pieces = {"root ::= ",
                                           "\n",
                                           "a ::= ",
                                           "root",
                                           "a",
                                           "\"x\"",
                                           "|",
                                           "(",
                                           ")",
                                           "*",
                                           "+",
                                           "?",
                                           "{2,5}",
                                           "{3}",
                                           "{,",
                                           "[a-z]",
                                           "[^",
                                           "]",
                                           "\\",
                                           "\\d",
                                           "\\u00e4",
                                           ".",
                                           "^",
                                           "$",
                                           "(?=",
                                           "(?:",
                                           "\"",
                                           "::=",
                                           "# c\n",
                                           "{",
                                           "}",
                                           "\"type\":",
                                           "\"string\"",
                                           "\"object\"",
                                           "\"properties\":",
                                           "\"array\"",
                                           "\"items\":",
                                           "\"$ref\":\"#\"",
                                           "\"anyOf\":[",
                                           "\"enum\":[",
                                           "1",
                                           "-1",
                                           "1e9",
                                           "\"pattern\":\"a+\"",
                                           "\"minLength\":3",
                                           "\"maxItems\":4",
                                           "null",
                                           "true",
                                           ",",
                                           ":",
                                           "\"required\":[\"a\"]",
                                           "\"a\"",
                                           "\xc3\xa4",
                                           "\xff",
                                           std::string(1, '\0'),
                                           "\"format\":\"date\"",
                                           "TagDispatch(",
                                           "TokenTagDispatch(",
                                           "(\"x\", a)",
                                           "Token(1)",
                                           "stop=",
                                           "[[",
                                           "&",
                                           "~",
                                           "@"};
  std::mt19937 random(20260801);
  int compiled = 0;
  for (int round = 0; round < 3000; ++round) {
    std::string text;
    const auto kind = static_cast<Kind>(1 + round % 5);
    if (kind == Kind::kEbnf && random() % 4 != 0) text = "root ::= ";
    if (kind == Kind::kJsonSchema) text = "{";
    if (kind == Kind::kStructuralTag) text = R"({"type":"structural_tag","format":{"type":)";
    const size_t count = 1 + random() % 8;
    for (size_t i = 0; i < count; ++i) text += pieces[random() % pieces.size()];
    if (kind == Kind::kJsonSchema && random() % 2 != 0) text += "}";
    GrammarSpec spec = Spec(kind, text);
    if (kind == Kind::kChoice) spec.choices = {text, "b"};
    const auto grammar = compiler->Compile(spec);
    if (!grammar.ok()) continue;
    ++compiled;
    GrammarMatcher matcher(*grammar);
    for (int step = 0; step < 20 && !matcher.IsTerminated(); ++step) {
      const std::vector<TokenId> allowed = AllowedIds(MaskOf(matcher));
      if (allowed.empty()) break;
      matcher.ForcedText();
      ASSERT_TRUE(matcher.Accept(allowed[random() % allowed.size()])) << text;
    }
  }
  EXPECT_GT(compiled, 300);
  Probe(*compiler);
}

}  // namespace
}  // namespace quire
