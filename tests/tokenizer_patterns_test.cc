// The scanners of known patterns, and regular expressions that files bring along.
// (HARD-CASES F04, F05; the matches themselves are compared with `tokenizers` in
// tokenizer_cases_test.)
#include <gtest/gtest.h>

#include <random>

#include "tokenizer/split_pattern.h"

namespace quire {
namespace {

std::string Repeat(std::string_view unit, size_t bytes) {
  std::string out;
  while (out.size() < bytes) out += unit;
  return out;
}

constexpr KnownPattern kKnown[] = {KnownPattern::kGpt2,        KnownPattern::kLlama3,
                                   KnownPattern::kQwen2,       KnownPattern::kO200k,
                                   KnownPattern::kDeepseekCjk, KnownPattern::kDeepseekWords,
                                   KnownPattern::kNumbersOf3,  KnownPattern::kNumber};

// 1 MB of one kind of character through every scanner. A quadratic one would not end in the time
// that a test has.
TEST(TokenizerPatterns, ScannersAreLinear) {
  constexpr size_t kBytes = 1 << 20;
  for (const char* unit : {"a", "A", "7", " ", "\n", "_", "\t\r", "\u0301", "\u4F60", "aA",
                           "\u01C5", "' ", "\u00A0", "\U0001F600", "\x01"}) {
    const std::string text = Repeat(unit, kBytes);
    for (const KnownPattern pattern : kKnown) {
      std::vector<Span> matches;
      ASSERT_TRUE(SplitPattern::Known(pattern).FindMatches(text, matches).ok());
      size_t end = 0;
      for (const Span& m : matches) {
        ASSERT_LE(end, m.begin);
        ASSERT_LT(m.begin, m.end);
        end = m.end;
      }
      ASSERT_LE(end, text.size());
    }
  }
}

// The scanners give the matches that their patterns have as regular expressions.
TEST(TokenizerPatterns, ScannersEqualTheirPatterns) {
  const char* const kUnits[] = {"a",      "B",      "7",      " ",      "\n",     "\r",
                                "'",      "s",      "LL",     "\u017F", "_",      "/",
                                "\t",     "\u0301", "\u4F60", "\u3042", "\u01C5", "\u02B0",
                                "\u00A0", "$",      "\u00B2", "\u2028", "\x01",   "\U0001F600"};
  std::mt19937 rng(3);
  for (const KnownPattern pattern : kKnown) {
    const auto regex = Regex::Compile(PatternText(pattern));
    ASSERT_TRUE(regex.ok()) << Message(regex.status());
    EXPECT_TRUE(SplitPattern::FromRegex(PatternText(pattern))->is_known());
    for (int round = 0; round < 2000; ++round) {
      std::string text;
      for (uint32_t i = rng() % 12 + 1; i > 0; --i) text += kUnits[rng() % std::size(kUnits)];
      std::vector<Span> ours;
      std::vector<Span> theirs;
      ASSERT_TRUE(SplitPattern::Known(pattern).FindMatches(text, ours).ok());
      ASSERT_TRUE(regex->FindMatches(text, theirs).ok());
      const auto same = [](const Span& a, const Span& b) {
        return a.begin == b.begin && a.end == b.end;
      };
      ASSERT_TRUE(std::equal(ours.begin(), ours.end(), theirs.begin(), theirs.end(), same))
          << PatternText(pattern) << "\n"
          << text;
    }
  }
}

// A text is searched in stretches; their borders, in the middle of a character too, hide nothing.
TEST(TokenizerPatterns, LongTextsAreSearchedWhole) {
  const auto regex = Regex::Compile("[A-Z]|(?<=\u4F60)\u597D");
  ASSERT_TRUE(regex.ok()) << Message(regex.status());
  for (size_t before = 330; before < 350; ++before) {
    const std::string gap = Repeat("\u4F60", before * 3);
    const std::string text = gap + "X" + gap + "\u597D" + gap + gap + gap + "Y";
    std::vector<Span> matches;
    ASSERT_TRUE(regex->FindMatches(text, matches).ok());
    ASSERT_EQ(matches.size(), 3u) << before;
    EXPECT_EQ(matches[0].begin, gap.size());
    EXPECT_EQ(matches[1].begin, 2 * gap.size() + 1);
    EXPECT_EQ(matches[1].end, 2 * gap.size() + 4);
    EXPECT_EQ(matches[2].end, text.size());
  }
}

TEST(TokenizerPatterns, BadOnesAreRefusedAtLoad) {
  const auto error = [](std::string_view pattern) {
    const absl::Status status = SplitPattern::FromRegex(pattern).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << pattern;
    EXPECT_NE(Message(status).find("pattern"), std::string::npos);
    return Message(status);
  };
  for (const char* pattern : {"(a", "[z-a]", R"(\p{Nonsense})", "*", "a)"}) {
    EXPECT_NE(error(pattern).find("is not a valid regular expression"), std::string::npos)
        << pattern;
  }
  for (const char* pattern : {R"(\h)", R"(\bword)", "[a&&b]", "[a[b]]", "a{,3}", R"(\p{N}{1,3}+)",
                              "(*UCP)a", "(?m)a.b", R"((a)\1)", R"(\K)", R"(\C)", R"(\xE9)",
                              R"(a\)", R"([\W])", R"(\u12)", R"(\pL)", R"(\p{L)"}) {
    EXPECT_NE(error(pattern).find("not supported"), std::string::npos) << pattern;
  }
  EXPECT_NE(error(std::string(20'000, 'a')).find("limit is 16384"), std::string::npos);
  error(std::string(1000, '(') + std::string(1000, ')'));
}

}  // namespace
}  // namespace quire
