// The matcher against what is known from elsewhere: PCRE2 for regular expressions, the list itself
// for choices, a hand-written recogniser for an EBNF grammar; and against itself: rolled back and
// forked it goes on as if nothing had happened.
#define PCRE2_CODE_UNIT_WIDTH 8
#include <gtest/gtest.h>
#include <pcre2.h>

#include <set>

#include "tests/grammar_harness.h"
#include "tokenizer/tokenizer.h"

namespace quire {
namespace {

using Kind = GrammarSpec::Kind;

std::shared_ptr<const CompiledGrammar> Compile(GrammarVocabulary vocabulary,
                                               const GrammarSpec& spec) {
  auto compiler = GrammarCompiler::Make(std::move(vocabulary));
  EXPECT_TRUE(compiler.ok()) << compiler.status();
  auto grammar = (*compiler)->Compile(spec);
  EXPECT_TRUE(grammar.ok()) << spec.text << grammar.status();
  return grammar.ok() ? *grammar : nullptr;
}

class Pcre {
 public:
  enum Verdict { kNo, kPartial, kFull };
  explicit Pcre(const std::string& pattern) {
    int error = 0;
    PCRE2_SIZE offset = 0;
    const std::string whole = "(?:" + pattern + ")\\z";
    code_ = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(whole.data()), whole.size(),
                          PCRE2_ANCHORED | PCRE2_NO_START_OPTIMIZE | PCRE2_UTF, &error, &offset,
                          nullptr);
    EXPECT_NE(code_, nullptr) << pattern;
    data_ = pcre2_match_data_create_from_pattern(code_, nullptr);
  }
  ~Pcre() {
    pcre2_match_data_free(data_);
    pcre2_code_free(code_);
  }
  Pcre(const Pcre&) = delete;
  Pcre& operator=(const Pcre&) = delete;

  bool Full(const std::string& text) const { return Match(text, 0) >= 0; }
  // Well-formed, as PCRE2 sees it: no surrogates, for one.
  bool IsText(const std::string& text) const {
    const int result = Match(text, PCRE2_PARTIAL_HARD);
    return result >= 0 || result == PCRE2_ERROR_PARTIAL || result == PCRE2_ERROR_NOMATCH;
  }
  // Some text that begins so matches, as far as PCRE2 can see.
  bool Begins(const std::string& text) const {
    const int result = Match(text, PCRE2_PARTIAL_HARD);
    return result >= 0 || result == PCRE2_ERROR_PARTIAL;
  }

 private:
  int Match(const std::string& text, uint32_t options) const {
    return pcre2_match(code_, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), 0, options,
                       data_, nullptr);
  }
  pcre2_code* code_ = nullptr;
  pcre2_match_data* data_ = nullptr;
};

// `text` up to its last whole character, which is what PCRE2 can judge.
std::string Whole(const std::string& text) {
  for (size_t back = 1; back <= 3 && back <= text.size(); ++back) {
    const auto byte = static_cast<unsigned char>(text[text.size() - back]);
    if ((byte & 0xC0) == 0x80) continue;
    const size_t length = byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
    return length > back ? text.substr(0, text.size() - back) : text;
  }
  return text;
}

// No \s: in ECMAScript's dialect, which XGrammar follows, it has more characters than in PCRE2's.
const char* const kPatterns[] = {"[0-9]{3}-[a-z]+",      "(yes|no|maybe)( indeed)?",
                                 "a*b+c?(d|ef){2,4}",    "\\d+(\\.\\d{1,3})?([eE][+-]?\\d+)?",
                                 "(\\w+[ \\t]){1,3}end", "[^a-y ]{2,5}!",
                                 "[äöü]+ß?|日本語*",     "(a|ab)(c|bcd)(d*)",
                                 "x{0,3}y{2,}z",         "((foo|fo)o?bar)*"};

class EveryTokenizer : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    auto loaded =
        Tokenizer::FromDirectory(std::string(QUIRE_TEST_REFERENCE) + "/tokenizers/" + GetParam());
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    tokenizer_ = *std::move(loaded);
    end_ = tokenizer_->eos_id().value_or(tokenizer_->vocab_size());
    vocabulary_ = MakeGrammarVocabulary(*tokenizer_, tokenizer_->vocab_size() + 12, {end_});
    bytes_ = vocabulary_.token_bytes;
    bytes_.resize(static_cast<size_t>(vocabulary_.vocab_size));
  }
  std::unique_ptr<Tokenizer> tokenizer_;
  GrammarVocabulary vocabulary_;
  std::vector<std::string> bytes_;
  TokenId end_ = 0;
};

TEST_P(EveryTokenizer, RegexMasksAgreeWithPcre2) {
  int64_t judged = 0;
  int finished = 0;
  for (const char* pattern : kPatterns) {
    const Pcre pcre(pattern);
    const auto grammar = Compile(vocabulary_, {.kind = Kind::kRegex, .text = pattern});
    ASSERT_NE(grammar, nullptr);
    for (uint32_t seed = 0; seed < 4; ++seed) {
      std::mt19937 random(seed);
      GrammarMatcher matcher(grammar);
      std::string text;
      for (int step = 0; step < 30; ++step) {
        const std::vector<int32_t> mask = MaskOf(matcher);
        ASSERT_EQ(Allows(mask, end_), pcre.Full(text)) << pattern << " '" << text << "'";
        for (TokenId id = 0; id < tokenizer_->vocab_size(); ++id) {
          if (id == end_ || bytes_[id].empty()) continue;
          const std::string next = text + bytes_[id];
          // Half a character at the end is nothing that PCRE2 could judge; the next steps do.
          if (Whole(next) != next || !pcre.IsText(next)) continue;
          if (text.empty() && vocabulary_.drops_first_space && next[0] == ' ') {
            ASSERT_FALSE(Allows(mask, id));
            continue;
          }
          ++judged;
          ASSERT_EQ(Allows(mask, id), pcre.Begins(next)) << pattern << " '" << next << "' " << id;
        }
        const std::vector<TokenId> allowed = AllowedIds(mask);
        if (allowed.empty()) break;
        TokenId next = PickToken(allowed, bytes_, random);
        if (Allows(mask, end_) && random() % 4 == 0) next = end_;
        ASSERT_TRUE(matcher.Accept(next));
        if (next == end_) {
          ++finished;
          break;
        }
        text += bytes_[next];
        if (!pcre.IsText(Whole(text))) break;  // bytes of a surrogate: one character for XGrammar
      }
    }
  }
  EXPECT_GT(judged, 10'000);
  EXPECT_GT(finished, 10);
}

TEST_P(EveryTokenizer, CanonicalTokensOfAValidTextAreAllowed) {
  const std::vector<std::pair<GrammarSpec, std::string>> cases = {
      {{.kind = Kind::kRegex, .text = "[0-9]{3}-[a-z]+"}, "123-hello"},
      {{.kind = Kind::kRegex, .text = "(\\w+\\s){1,3}end"}, "the quick end"},
      {{.kind = Kind::kRegex, .text = ".*"}, "Ein schöner Tag, 日本語 and \"more\"."},
      {{.kind = Kind::kJsonSchema,
        .text = R"({"type":"object","properties":{"name":{"type":"string"},
            "tags":{"type":"array","items":{"type":"string"}}},"required":["name"]})"},
       R"({"name": "Grüße 你好", "tags": ["a", "b c"]})"},
      {{.kind = Kind::kJsonObject}, R"({"a": {"b": [1, -2.5e3, true, null]}, "c": "\n\u00e4"})"},
      {{.kind = Kind::kChoice, .choices = {"red", "green", "dark red"}}, "dark red"},
      {{.kind = Kind::kEbnf, .text = "root ::= \"x\" | \"(\" root \")\""}, "((x))"},
  };
  for (const auto& [spec, text] : cases) {
    const auto ids = tokenizer_->Encode(text, /*add_special_tokens=*/false);
    ASSERT_TRUE(ids.ok());
    const auto grammar = Compile(vocabulary_, spec);
    ASSERT_NE(grammar, nullptr);
    GrammarMatcher matcher(grammar);
    std::string so_far;
    for (const TokenId id : *ids) {
      // SentencePiece puts a space in front of the text; at the start of an answer it is dropped,
      // and so are tokens that begin with it.
      if (so_far.empty() && bytes_[id].substr(0, 1) == " ") {
        ASSERT_TRUE(vocabulary_.drops_first_space);
        const std::string rest = bytes_[id].substr(1);
        so_far = " ";
        for (const char c : rest) {
          const auto byte = tokenizer_->Find(std::string(1, c));
          ASSERT_TRUE(byte.has_value());
          ASSERT_TRUE(matcher.Accept(*byte));
        }
        continue;
      }
      ASSERT_TRUE(Allows(MaskOf(matcher), id)) << text << " at '" << so_far << "'";
      ASSERT_TRUE(matcher.Accept(id));
      so_far += bytes_[id];
    }
    EXPECT_TRUE(matcher.CanEnd()) << text;
    EXPECT_TRUE(matcher.Accept(end_));
    EXPECT_TRUE(matcher.IsTerminated());
  }
}

TEST_P(EveryTokenizer, RollbackAndForkLeaveNoTrace) {
  const std::vector<GrammarSpec> specs = {
      {.kind = Kind::kJsonObject},
      {.kind = Kind::kRegex, .text = "(\\w+\\s){1,30}end"},
      {.kind = Kind::kStructuralTag,
       .text = R"({"type":"structural_tag","format":{"type":"triggered_tags","triggers":["<f"],
           "tags":[{"begin":"<f=a>","content":{"type":"json_schema","json_schema":
           {"type":"object","properties":{"x":{"type":"integer"}},"required":["x"]}},
           "end":"</f>"}]}})"}};
  int rolled = 0;
  for (const GrammarSpec& spec : specs) {
    const auto grammar = Compile(vocabulary_, spec);
    ASSERT_NE(grammar, nullptr);
    std::mt19937 random(11);
    GrammarMatcher matcher(grammar);
    std::vector<std::vector<int32_t>> masks = {MaskOf(matcher)};
    std::vector<TokenId> path;
    for (int round = 0; round < 60; ++round) {
      const std::vector<TokenId> allowed = AllowedIds(masks.back());
      if (allowed.empty()) break;
      const TokenId next = PickToken(allowed, bytes_, random);
      ASSERT_TRUE(matcher.Accept(next));
      path.push_back(next);
      masks.push_back(MaskOf(matcher));
      if (random() % 3 == 0 || matcher.IsTerminated()) {
        // A fork goes its own way.
        GrammarMatcher fork = matcher.Fork();
        ASSERT_EQ(MaskOf(fork), masks.back());
        const auto back = static_cast<int32_t>(random() % (path.size() + 1));
        fork.Rollback(back);
        ASSERT_EQ(MaskOf(fork), masks[masks.size() - 1 - static_cast<size_t>(back)]);
        fork.ForcedText();
        for (int i = 0; i < 3; ++i) {
          const std::vector<TokenId> others = AllowedIds(MaskOf(fork));
          if (others.empty() || !fork.Accept(others[random() % others.size()])) break;
        }
        ASSERT_EQ(MaskOf(matcher), masks.back());
        // Back and the same way again.
        matcher.Rollback(back);
        for (size_t i = path.size() - static_cast<size_t>(back); i < path.size(); ++i) {
          ASSERT_EQ(MaskOf(matcher), masks[i]);
          ASSERT_TRUE(matcher.Accept(path[i]));
        }
        ASSERT_EQ(MaskOf(matcher), masks.back());
        ASSERT_EQ(matcher.num_accepted(), static_cast<int32_t>(path.size()));
        ++rolled;
      }
      if (matcher.IsTerminated()) {
        matcher.Rollback(1);
        path.pop_back();
        masks.pop_back();
      }
    }
  }
  EXPECT_GT(rolled, 20);
}

INSTANTIATE_TEST_SUITE_P(Grammar, EveryTokenizer,
                         testing::Values("deepseek_v3", "digits_bytelevel", "gemma", "gpt2",
                                         "llama2", "llama2_metaspace", "llama3", "o200k", "qwen2"));

// All texts of a grammar with few of them, by walking every allowed token.
void Collect(const GrammarMatcher& matcher, const ToyVocabulary& toy, const std::string& text,
             std::set<std::string>& texts) {
  GrammarMatcher here = matcher.Fork();
  for (const TokenId id : AllowedIds(MaskOf(here))) {
    if (id == toy.end) {
      texts.insert(text);
      continue;
    }
    GrammarMatcher next = here.Fork();
    ASSERT_TRUE(next.Accept(id));
    Collect(next, toy, text + toy.bytes[id], texts);
  }
}

TEST(GrammarMatcher, ChoicesAreExactlyTheChoices) {
  const ToyVocabulary toy({"re", "red", "gr", "een", "dark ", "\"q"});
  const std::vector<std::string> choices = {"red",   "green", "dark red", "reddish",
                                            "\"q\\", "a\nb",  "日本",     "x\x01y"};
  const auto grammar = Compile(toy.Vocabulary(), {.kind = Kind::kChoice, .choices = choices});
  ASSERT_NE(grammar, nullptr);
  std::set<std::string> texts;
  Collect(GrammarMatcher(grammar), toy, "", texts);
  EXPECT_EQ(texts, std::set<std::string>(choices.begin(), choices.end()));
}

// Balanced brackets of two kinds, up to any depth.
TEST(GrammarMatcher, EbnfOfBrackets) {
  const ToyVocabulary toy({"((", "[]", ")]"});
  const auto grammar = Compile(
      toy.Vocabulary(), {.kind = Kind::kEbnf,
                         .text = "root ::= item*\nitem ::= \"(\" root \")\" | \"[\" root \"]\""});
  ASSERT_NE(grammar, nullptr);
  std::mt19937 random(5);
  for (int round = 0; round < 50; ++round) {
    GrammarMatcher matcher(grammar);
    std::string stack;
    for (int step = 0; step < 40; ++step) {
      const std::vector<int32_t> mask = MaskOf(matcher);
      for (TokenId id = 0; id < toy.end; ++id) {
        std::string open = stack;
        bool good = true;
        for (const char c : toy.bytes[id]) {
          if (c == '(' || c == '[') {
            open += c;
          } else if (!open.empty() && c == (open.back() == '(' ? ')' : ']')) {
            open.pop_back();
          } else {
            good = false;
          }
        }
        ASSERT_EQ(Allows(mask, id), good) << stack << " + " << toy.bytes[id];
      }
      ASSERT_EQ(Allows(mask, toy.end), stack.empty());
      const std::vector<TokenId> allowed = AllowedIds(mask);
      const TokenId next = allowed[random() % allowed.size()];
      ASSERT_TRUE(matcher.Accept(next));
      if (next == toy.end) break;
      for (const char c : toy.bytes[next]) {
        if (c == '(' || c == '[') {
          stack += c;
        } else {
          stack.pop_back();
        }
      }
    }
  }
}

TEST(GrammarMatcher, StructuralTags) {
  const ToyVocabulary toy;
  const auto grammar = Compile(
      toy.Vocabulary(),
      {.kind = Kind::kStructuralTag,
       .text = R"({"type":"structural_tag","format":{"type":"triggered_tags","triggers":["<f"],
           "tags":[{"begin":"<f=a>","content":{"type":"json_schema","json_schema":
           {"type":"integer"}},"end":"</f>"}]}})"});
  ASSERT_NE(grammar, nullptr);
  for (const auto& [text, good] :
       std::vector<std::pair<std::string, bool>>{{"free text", true},
                                                 {"call <f=a>12</f> and more", true},
                                                 {"<f=b>12</f>", false},
                                                 {"<f=a>x</f>", false},
                                                 {"<f=a>1</f><f=a>2</f>", true},
                                                 {"<f=a>1", false}}) {
    GrammarMatcher matcher(grammar);
    bool all = true;
    for (const char c : text) {
      all = all && Allows(MaskOf(matcher), static_cast<unsigned char>(c)) &&
            matcher.Accept(static_cast<unsigned char>(c));
    }
    EXPECT_EQ(all && matcher.CanEnd(), good) << text;
    EXPECT_FALSE(matcher.MustEnd()) << text;
  }
}

TEST(GrammarMatcher, O07_CharactersByteByByteAndPadding) {
  const ToyVocabulary toy;
  const auto grammar = Compile(
      toy.Vocabulary(/*padding=*/12),
      {.kind = Kind::kEbnf, .text = "root ::= \"\\u4f60\" [\\u00e0-\\u00ff]+ \"\\U0001F600\""});
  ASSERT_NE(grammar, nullptr);
  const Pcre pcre("\\x{4f60}[\\x{e0}-\\x{ff}]+\\x{1F600}");
  std::mt19937 random(1);
  int finished = 0;
  for (int round = 0; round < 100; ++round) {
    GrammarMatcher matcher(grammar);
    std::string text;
    for (int step = 0; step < 100 && !matcher.IsTerminated(); ++step) {
      const std::vector<TokenId> allowed = AllowedIds(MaskOf(matcher));
      ASSERT_FALSE(allowed.empty());
      ASSERT_LE(allowed.back(), toy.end) << "padding is allowed";
      const TokenId next = allowed[random() % allowed.size()];
      ASSERT_TRUE(matcher.Accept(next));
      text += toy.bytes[next];
    }
    if (!matcher.IsTerminated()) continue;
    ++finished;
    EXPECT_TRUE(pcre.Full(text)) << text;
  }
  EXPECT_GT(finished, 50);
}

TEST(GrammarMatcher, StopIdsEndTheTextAndNothingElseDoes) {
  const ToyVocabulary toy;
  const auto grammar = Compile(toy.Vocabulary(), {.kind = Kind::kRegex, .text = "ab?"});
  ASSERT_NE(grammar, nullptr);
  {
    GrammarMatcher matcher(grammar);
    EXPECT_FALSE(matcher.Accept(toy.end)) << "too early";
    EXPECT_FALSE(matcher.Accept('b'));
    EXPECT_FALSE(matcher.Accept(-1));
    EXPECT_FALSE(matcher.Accept(1 << 20));
    EXPECT_TRUE(matcher.Accept('a'));
    EXPECT_EQ(AllowedIds(MaskOf(matcher)), (std::vector<TokenId>{'b', toy.end}));
    EXPECT_TRUE(matcher.CanEnd());
    EXPECT_FALSE(matcher.MustEnd());
    EXPECT_TRUE(matcher.Accept('b'));
    EXPECT_TRUE(matcher.MustEnd());
    EXPECT_EQ(AllowedIds(MaskOf(matcher)), std::vector<TokenId>{toy.end});
    EXPECT_FALSE(matcher.IsTerminated());
    EXPECT_TRUE(matcher.Accept(toy.end));
    EXPECT_TRUE(matcher.IsTerminated());
    EXPECT_FALSE(matcher.Accept('b'));
    EXPECT_EQ(AllowedIds(MaskOf(matcher)), std::vector<TokenId>{toy.end});
    EXPECT_EQ(matcher.ForcedText(), "");
  }
  {
    GrammarMatcher matcher(grammar, std::vector<TokenId>{});  // ignore_eos
    EXPECT_TRUE(matcher.Accept('a'));
    EXPECT_EQ(AllowedIds(MaskOf(matcher)), std::vector<TokenId>{'b'});
    EXPECT_TRUE(matcher.Accept('b'));
    EXPECT_TRUE(matcher.MustEnd());
    EXPECT_TRUE(AllowedIds(MaskOf(matcher)).empty());
    EXPECT_TRUE(matcher.status().ok());
  }
  {
    GrammarMatcher matcher(grammar, std::vector<TokenId>{'x', 'b'});
    EXPECT_TRUE(matcher.Accept('a'));
    EXPECT_EQ(AllowedIds(MaskOf(matcher)), (std::vector<TokenId>{'b', 'x'}));
    EXPECT_TRUE(matcher.Accept('b')) << "a stop id ends the text, whatever its bytes";
    EXPECT_TRUE(matcher.IsTerminated());
  }
}

TEST(GrammarMatcher, ForcedTextIsWhatEveryTextBeginsWith) {
  const ToyVocabulary toy;
  const auto grammar = Compile(
      toy.Vocabulary(),
      {.kind = Kind::kJsonSchema,
       .text = R"({"type":"object","properties":{"name":{"type":"string"}},"required":["name"]})",
       .any_whitespace = false});
  ASSERT_NE(grammar, nullptr);
  GrammarMatcher matcher(grammar);
  EXPECT_EQ(matcher.ForcedText(), R"({"name": ")");
  for (const char c : std::string(R"({"name": "x)")) ASSERT_TRUE(matcher.Accept(c));
  EXPECT_EQ(matcher.ForcedText(), "");
  ASSERT_TRUE(matcher.Accept('"'));
  EXPECT_EQ(matcher.ForcedText(), "}");
  ASSERT_TRUE(matcher.Accept('}'));
  EXPECT_EQ(matcher.ForcedText(), "");
}

// Forced for ever, or for 2^40 bytes: given up, and the matcher is as it was.
TEST(GrammarMatcher, ForcedTextWithoutAnEndIsGivenUp) {
  const ToyVocabulary toy;
  std::string doubling = "root ::= a0\n";
  for (int i = 0; i < 40; ++i) doubling += fmt::format("a{} ::= a{} a{}\n", i, i + 1, i + 1);
  doubling += "a40 ::= \"a\"\n";
  for (const std::string& text : {std::string("root ::= \"a\" root"), doubling}) {
    const auto grammar = Compile(toy.Vocabulary(), {.kind = Kind::kEbnf, .text = text});
    ASSERT_NE(grammar, nullptr);
    GrammarMatcher matcher(grammar);
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ(matcher.ForcedText(), "");
      EXPECT_TRUE(matcher.status().ok());
      EXPECT_EQ(AllowedIds(MaskOf(matcher)), std::vector<TokenId>{'a'});
      ASSERT_TRUE(matcher.Accept('a'));
    }
    matcher.Rollback(3);
    EXPECT_EQ(AllowedIds(MaskOf(matcher)), std::vector<TokenId>{'a'});
  }
}

TEST(GrammarMatcher, AVocabularyThatCannotGoOnIsAnError) {
  GrammarVocabulary vocabulary{.token_bytes = {"a", "b", ""}, .vocab_size = 3, .stop_ids = {2}};
  const auto grammar = Compile(vocabulary, {.kind = Kind::kRegex, .text = "a[xy]"});
  ASSERT_NE(grammar, nullptr);
  GrammarMatcher matcher(grammar);
  ASSERT_TRUE(matcher.Accept(0));
  EXPECT_EQ(AllowedIds(MaskOf(matcher)), std::vector<TokenId>{2}) << "so that the branch ends";
  EXPECT_EQ(matcher.status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace quire
