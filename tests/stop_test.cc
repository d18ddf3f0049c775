// Stop strings in text that comes in pieces. The oracle is a search over the whole text.
#include "sampling/stop.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace quire {
namespace {

struct Result {
  std::string text;
  bool stopped = false;
  int matched = -1;
  int64_t match_end = -1;
  std::vector<std::string> deltas;
};

Result Match(const std::vector<std::string>& stops, const std::vector<std::string>& pieces,
             bool include = false) {
  StopMatcher matcher(stops, include);
  Result r;
  for (const std::string& piece : pieces) {
    const StopMatcher::Out out = matcher.Push(piece);
    r.deltas.push_back(out.text);
    EXPECT_EQ(out.stopped, matcher.stopped());
    EXPECT_EQ(out.matched, matcher.matched());
  }
  r.deltas.push_back(matcher.Flush());
  EXPECT_EQ(matcher.Flush(), "") << "a second Flush repeats text";
  EXPECT_EQ(matcher.Push(matcher.stopped() ? "more" : "").text, "") << "text after the end";
  for (const std::string& delta : r.deltas) r.text += delta;
  r.stopped = matcher.stopped();
  r.matched = matcher.matched();
  r.match_end = matcher.match_end();
  return r;
}

// The earliest start wins, then the shortest, then the first in the list.
Result BruteForce(const std::vector<std::string>& stops, const std::string& text, bool include) {
  Result r{.text = text};
  size_t best = std::string::npos;
  for (size_t i = 0; i < stops.size(); ++i) {
    const size_t at = text.find(stops[i]);
    if (at == std::string::npos) continue;
    if (!r.stopped || at < best || (at == best && stops[i].size() < stops[r.matched].size())) {
      r.stopped = true;
      r.matched = static_cast<int>(i);
      best = at;
    }
  }
  if (!r.stopped) return r;
  r.match_end = static_cast<int64_t>(best + stops[r.matched].size());
  r.text = text.substr(0, include ? static_cast<size_t>(r.match_end) : best);
  return r;
}

std::vector<std::string> Split(const std::string& text, size_t size) {
  std::vector<std::string> pieces;
  for (size_t i = 0; i < text.size(); i += size) pieces.push_back(text.substr(i, size));
  return pieces;
}

// E02: tokens ABC DEF GHI.
TEST(StopMatcher, InTheMiddleOfAToken) {
  struct Row {
    std::vector<std::string> stops;
    std::string excluded, included;
    int matched;
    int64_t match_end;
  };
  std::vector<std::string> twenty;
  for (char c = 'a'; c < 'a' + 19; ++c) twenty.emplace_back(3, c);
  twenty.emplace_back("EF");
  const Row rows[] = {
      {{"DE"}, "ABC", "ABCDE", 0, 5},
      {{"CD"}, "AB", "ABCD", 0, 4},
      {{"F"}, "ABCDE", "ABCDEF", 0, 6},
      {{"ABCDEFG"}, "", "ABCDEFG", 0, 7},
      {twenty, "ABCD", "ABCDEF", 19, 6},
      {{"DEF", "DE"}, "ABC", "ABCDE", 1, 5},       // a prefix of another
      {{"DE", "DEF"}, "ABC", "ABCDE", 0, 5},       //
      {{"GH", "BC"}, "A", "ABC", 1, 3},            // the earliest in the text
      {{"CDEFGH", "DE"}, "AB", "ABCDEFGH", 0, 8},  // starts first though it ends last
      {{"CDEFGX", "DE"}, "ABC", "ABCDE", 1, 5},    // ruled out by H
      {{"CDEFGHIJ", "DE"}, "ABC", "ABCDE", 1, 5},  // ruled out by the end of the text
      {{"I"}, "ABCDEFGH", "ABCDEFGHI", 0, 9},
      {{"X", "abc", "IJ"}, "ABCDEFGHI", "ABCDEFGHI", -1, -1},
      {{}, "ABCDEFGHI", "ABCDEFGHI", -1, -1},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.stops.empty() ? "none" : row.stops[0]);
    for (bool include : {false, true}) {
      const Result r = Match(row.stops, {"ABC", "DEF", "GHI"}, include);
      EXPECT_EQ(r.text, include ? row.included : row.excluded);
      EXPECT_EQ(r.stopped, row.matched >= 0);
      EXPECT_EQ(r.matched, row.matched);
      EXPECT_EQ(r.match_end, row.match_end);
    }
  }
}

TEST(StopMatcher, StopsAtOnceAndSaysSo) {
  StopMatcher matcher({"DE"}, false);
  EXPECT_EQ(matcher.Push("ABC").text, "ABC");
  const StopMatcher::Out out = matcher.Push("DEF");
  EXPECT_TRUE(out.stopped);
  EXPECT_EQ(out.matched, 0);
  EXPECT_EQ(out.text, "");
}

// E02: empty stop strings, too long ones, too many.
TEST(ValidateStopStrings, Limits) {
  using Stops = std::vector<std::string>;
  EXPECT_TRUE(ValidateStopStrings(Stops{}).ok());
  EXPECT_TRUE(ValidateStopStrings(Stops(20, "x")).ok());
  EXPECT_TRUE(ValidateStopStrings(Stops(64, std::string(1024, 'x'))).ok());
  const auto message = [](const Stops& stops) {
    const absl::Status status = ValidateStopStrings(stops);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return Message(status);
  };
  EXPECT_EQ(message({"a", ""}), "stop[1] is empty, must have 1 to 1024 bytes; leave it out");
  EXPECT_EQ(message({std::string(1025, 'x')}), "stop[0] has 1025 bytes, limit is 1024");
  EXPECT_EQ(message(Stops(65, "x")), "stop has 65 strings, limit is 64");
}

// E03
TEST(StopMatcher, PartOfAStopStringNeverLeaks) {
  const std::string text = "Hi.\n\nUsed cars\n\nUser: me";
  for (size_t size = 1; size <= text.size(); ++size) {
    const Result r = Match({"\n\nUser:"}, Split(text, size));
    EXPECT_EQ(r.text, "Hi.\n\nUsed cars") << size;
    EXPECT_TRUE(r.stopped);
  }
  const Result r = Match({"\n\nUser:"}, {"Hi.", "\n\nUse", "d", "\n\nUse", "r:"});
  const std::vector<std::string> deltas = {"Hi.", "", "\n\nUsed", "", "", ""};
  EXPECT_EQ(r.deltas, deltas);
}

// E04
TEST(StopMatcher, HeldTextIsFlushed) {
  const std::string stop = "abcdefghijklmnopqrstuvwxyz0123";
  EXPECT_EQ(stop.size(), 30u);
  const std::vector<std::string> pieces = {"abc", "defgh", "ij"};
  const Result r = Match({stop}, pieces);
  EXPECT_EQ(r.deltas[0] + r.deltas[1] + r.deltas[2], "") << "all of it may become the stop";
  EXPECT_EQ(r.deltas[3], "abcdefghij");
  EXPECT_FALSE(r.stopped);
  // Nothing that can't become the stop string is held.
  EXPECT_EQ(Match({stop}, {"The", " cat", " sat"}).deltas[2], " sat");
}

// Each delta is whole characters if the pieces are, though characters share their first bytes with
// stop strings.
TEST(StopMatcher, CharactersStayWhole) {
  const std::vector<std::string> characters = {"é", "è", "e", "😀", "😁", "한", "핟"};
  const std::vector<std::string> stops = {"è😁", "한한é", "😀😀😀"};
  std::mt19937 random(5);
  int held = 0, stopped = 0;
  for (int run = 0; run < 300; ++run) {
    StopMatcher matcher(stops, false);
    for (int i = 0; i < 40 && !matcher.stopped(); ++i) {
      const StopMatcher::Out out = matcher.Push(characters[random() % characters.size()]);
      held += out.text.empty() ? 1 : 0;
      if (out.text.empty()) continue;
      std::string rest = out.text;
      while (!rest.empty()) {
        const auto c = std::find_if(characters.begin(), characters.end(), [&](const auto& each) {
          return rest.compare(0, each.size(), each) == 0;
        });
        ASSERT_NE(c, characters.end()) << out.text;
        rest.erase(0, c->size());
      }
    }
    stopped += matcher.stopped() ? 1 : 0;
  }
  EXPECT_GT(held, 100);
  EXPECT_GT(stopped, 50);
}

// What is streamed, joined, is what a search over the whole text gives, and no byte is held longer
// than needed.
TEST(StopMatcher, EqualsSearchOverTheWholeText) {
  std::mt19937 random(1234);
  int stopped = 0, waited = 0;
  for (int run = 0; run < 20000; ++run) {
    SCOPED_TRACE(run);
    const int letters = 1 + static_cast<int>(random() % 3);
    const auto word = [&](size_t length) {
      std::string s;
      while (s.size() < length) s += static_cast<char>('a' + random() % letters);
      return s;
    };
    std::vector<std::string> stops;
    for (size_t n = random() % 5; stops.size() < n;) stops.push_back(word(1 + random() % 9));
    const std::string text = word(random() % 40);
    const bool include = random() % 2 == 0;
    const Result expected = BruteForce(stops, text, include);

    std::vector<std::string> pieces;
    for (size_t at = 0; at < text.size(); at += pieces.back().size()) {
      pieces.push_back(text.substr(at, random() % 6));  // empty pieces too
    }
    const Result r = Match(stops, pieces, include);
    ASSERT_EQ(r.text, expected.text);
    ASSERT_EQ(r.stopped, expected.stopped);
    ASSERT_EQ(r.matched, expected.matched);
    ASSERT_EQ(r.match_end, expected.match_end);
    stopped += r.stopped ? 1 : 0;

    // Byte by byte: exactly the bytes that no stop string can claim any more have been delivered.
    StopMatcher matcher(stops, include);
    std::string delivered;
    for (size_t end = 1; end <= text.size() && !matcher.stopped(); ++end) {
      delivered += matcher.Push(text.substr(end - 1, 1)).text;
      const std::string so_far = text.substr(0, end);
      size_t open = end;  // first start of a stop string that isn't complete
      for (const std::string& stop : stops) {
        for (size_t i = 0; i < open; ++i) {
          if (end - i < stop.size() && stop.compare(0, end - i, so_far, i, end - i) == 0) open = i;
        }
      }
      const Result now = BruteForce(stops, so_far, false);
      const bool decided = now.stopped && open >= now.text.size();
      ASSERT_EQ(matcher.stopped(), decided) << so_far;
      if (decided) break;
      waited += now.stopped ? 1 : 0;
      ASSERT_EQ(delivered, so_far.substr(0, std::min(open, now.text.size())));
    }
  }
  EXPECT_GT(stopped, 5000);
  EXPECT_GT(waited, 100);
}

// A search that starts over at each byte would need 6e10 steps here, beyond the test's time limit.
TEST(StopMatcher, LinearOnPeriodicText) {
  std::vector<std::string> stops;
  for (int i = 0; i < kMaxStopStrings; ++i) {
    stops.push_back(std::string(kMaxStopStringBytes - 1 - i, 'a') + "b");
  }
  StopMatcher matcher(stops, false);
  const std::string piece(1000, 'a');
  size_t delivered = 0;
  for (int i = 0; i < 1000; ++i) delivered += matcher.Push(piece).text.size();
  EXPECT_FALSE(matcher.stopped());
  EXPECT_EQ(delivered, 1000000u - (kMaxStopStringBytes - 1));
  EXPECT_TRUE(matcher.Push("b").stopped);
  EXPECT_EQ(matcher.matched(), 0);
}

}  // namespace
}  // namespace quire
