// Tokens to text with stop strings, token by token: which tokens are kept, and that nothing leaves
// before it is certain. HARD-CASES E02, E03, E04.
#include "server/edge/branch_text.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

namespace quire {
namespace {

// A tokenizer of whole pieces: E02's 'ABC', 'DEF', 'GHI', and single letters.
std::shared_ptr<const Tokenizer> PieceTokenizer() {
  static const std::shared_ptr<const Tokenizer> tokenizer = [] {
    std::string vocab;
    int id = 0;
    const auto add = [&](const std::string& text) {
      vocab += (id > 0 ? "," : "") + ("\"" + text + "\":" + std::to_string(id));
      ++id;
    };
    for (const char* piece : {"ABC", "DEF", "GHI"}) add(piece);
    for (char c = 'a'; c <= 'z'; ++c) add(std::string(1, c));
    add(":");
    auto made = Tokenizer::FromJson(
        R"({"version":"1.0","added_tokens":[],"normalizer":null,)"
        R"("pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false,"use_regex":true},)"
        R"("post_processor":null,"decoder":{"type":"ByteLevel"},)"
        R"("model":{"type":"BPE","vocab":{)" +
        vocab + R"(},"merges":[]}})");
    CHECK(made.ok(), "{}", Message(made.status()));
    return std::shared_ptr<const Tokenizer>(*std::move(made));
  }();
  return tokenizer;
}

TokenId Id(const std::string& text) {
  const std::optional<TokenId> id = PieceTokenizer()->Find(text);
  CHECK(id.has_value(), "{}", text);
  return *id;
}

struct Result {
  std::string text;
  std::vector<TokenId> ids;
  size_t num_logprobs = 0;
  bool stopped = false;
  size_t pushed = 0;  // tokens that it took
  int32_t num_tokens = 0;
  std::string stop_string;
};

Result Feed(const std::vector<std::string>& pieces, const std::vector<std::string>& stops,
            bool include_stop = false, int32_t min_tokens = 0) {
  auto request = std::make_shared<Request>();
  request->sampling.min_tokens = min_tokens;
  request->sampling.num_logprobs = 0;
  Generation generation;
  generation.request = request;
  generation.stop_strings = stops;
  generation.include_stop_in_output = include_stop;
  generation.want_token_ids = true;
  BranchText branch(*PieceTokenizer(), generation);
  Result r;
  const auto take = [&](const Delta& delta) {
    r.text += delta.text;
    r.ids.insert(r.ids.end(), delta.token_ids.begin(), delta.token_ids.end());
    r.num_logprobs += delta.logprobs.size();
  };
  for (const std::string& piece : pieces) {
    Delta delta;
    ++r.pushed;
    r.stopped = branch.Push({.token = Id(piece)}, false, delta);
    take(delta);
    if (r.stopped) break;
  }
  if (!r.stopped) {
    Delta delta;
    r.stopped = branch.Flush(delta);
    take(delta);
  }
  r.num_tokens = branch.num_tokens();
  if (r.stopped) r.stop_string = branch.stop_string();
  return r;
}

TEST(BranchTextTest, StopInTheMiddleOfATokenE02) {
  struct Case {
    std::string stop;
    const char* text;
    const char* with_stop;
    size_t num_tokens;
  };
  for (const Case& c : {Case{"DE", "ABC", "ABCDE", 2}, Case{"CD", "AB", "ABCD", 2},
                        Case{"F", "ABCDE", "ABCDEF", 2}, Case{"ABCDEFG", "", "ABCDEFG", 3},
                        Case{"A", "", "A", 1}, Case{"I", "ABCDEFGH", "ABCDEFGHI", 3}}) {
    const Result without = Feed({"ABC", "DEF", "GHI"}, {c.stop});
    EXPECT_TRUE(without.stopped) << c.stop;
    EXPECT_EQ(without.text, c.text) << c.stop;
    EXPECT_EQ(without.ids.size(), c.num_tokens) << c.stop;
    EXPECT_EQ(without.num_logprobs, c.num_tokens) << c.stop;
    EXPECT_EQ(without.num_tokens, static_cast<int32_t>(c.num_tokens)) << c.stop;
    EXPECT_EQ(without.pushed, c.num_tokens) << "as soon as it is there: " << c.stop;
    EXPECT_EQ(without.stop_string, c.stop);
    EXPECT_EQ(Feed({"ABC", "DEF", "GHI"}, {c.stop}, true).text, c.with_stop) << c.stop;
  }
}

TEST(BranchTextTest, EarliestStopWinsWhateverTheOrderOfTheList) {
  std::vector<std::string> many = {"HI", "EF", "CD", "GH"};
  for (int i = 0; i < 16; ++i) many.push_back("never" + std::to_string(i));
  const Result r = Feed({"ABC", "DEF", "GHI"}, many);
  EXPECT_EQ(r.text, "AB");
  EXPECT_EQ(r.stop_string, "CD");
}

// 'bc' is complete with c, but 'bcdx' could still begin there: d and e must not be seen by anyone
// once it turns out that it doesn't.
TEST(BranchTextTest, TokensBehindALateMatchAreDropped) {
  const Result r = Feed({"a", "b", "c", "d", "e", "f"}, {"bc", "abcdx"});
  EXPECT_TRUE(r.stopped);
  EXPECT_EQ(r.text, "a");
  EXPECT_EQ(r.pushed, 5u) << "the longer stop is ruled out by e";
  EXPECT_EQ(r.ids, (std::vector<TokenId>{Id("a"), Id("b"), Id("c")}));
  EXPECT_EQ(r.num_tokens, 3);
  // The same, if the output ends before the longer one is ruled out.
  const Result flushed = Feed({"a", "b", "c", "d"}, {"bc", "abcdx"});
  EXPECT_TRUE(flushed.stopped);
  EXPECT_EQ(flushed.text, "a");
  EXPECT_EQ(flushed.ids, r.ids);
}

TEST(BranchTextTest, NearMissIsDeliveredInFullE03) {
  const std::vector<std::string> near = {"u", "s", "e", "d", "u", "s", "e", "r", ":", "x"};
  const Result r = Feed(near, {"user:"});
  EXPECT_EQ(r.text, "used");
  EXPECT_EQ(r.ids.size(), 9u);
  EXPECT_EQ(Feed({"u", "s", "e", "d"}, {"user:"}).text, "used");
}

TEST(BranchTextTest, HeldTextIsFlushedAtTheEndE04) {
  const Result r = Feed({"a", "b", "c"}, {"abcdefghijklmnopqrstuvwxyzabcd"});
  EXPECT_FALSE(r.stopped);
  EXPECT_EQ(r.text, "abc");
  EXPECT_EQ(r.ids.size(), 3u);
}

TEST(BranchTextTest, NoStopBeforeMinTokens) {
  const std::vector<std::string> pieces = {"a", "b", "a", "b", "a", "b"};
  EXPECT_EQ(Feed(pieces, {"b"}).text, "a");
  EXPECT_EQ(Feed(pieces, {"b"}, false, 2).text, "aba");
  EXPECT_EQ(Feed(pieces, {"b"}, false, 3).text, "aba");
  EXPECT_EQ(Feed(pieces, {"b"}, false, 4).text, "ababa");
  const Result r = Feed(pieces, {"b"}, false, 4);
  EXPECT_EQ(r.num_tokens, 6);
}

// No id and no logprob leaves before its text, so what is seen is never taken back.
TEST(BranchTextTest, IdsWaitForTheirText) {
  auto request = std::make_shared<Request>();
  Generation generation;
  generation.request = request;
  generation.stop_strings = {"abcx"};
  generation.want_token_ids = true;
  BranchText branch(*PieceTokenizer(), generation);
  size_t text = 0;
  size_t ids = 0;
  for (const char* piece : {"a", "b", "c", "a", "b", "z"}) {
    Delta delta;
    ASSERT_FALSE(branch.Push({.token = Id(piece)}, false, delta));
    text += delta.text.size();
    ids += delta.token_ids.size();
    EXPECT_EQ(ids, text);
  }
  EXPECT_EQ(text, 6u);
}

}  // namespace
}  // namespace quire
