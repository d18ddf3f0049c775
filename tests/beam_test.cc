// Beam search by exhaustive enumeration, by a second implementation of its rules that goes through
// the whole vocabulary, and by hand.
#include "scheduler/beam.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <random>
#include <set>

#include "tests/beam_cases.h"

namespace quire {
namespace {

using Tokens = std::vector<TokenId>;
using Table = std::function<std::vector<float>(const Tokens&)>;  // logprobs after an output

// Logprobs for each text, always the same. Coarse: eighths, so that there are many ties.
Table RandomTable(uint32_t seed, size_t vocab, bool coarse) {
  return [=](const Tokens& text) {
    std::vector<uint32_t> key = {seed};
    for (const TokenId t : text) key.push_back(static_cast<uint32_t>(t));
    std::seed_seq mixed(key.begin(), key.end());
    std::mt19937 random(mixed);
    std::vector<float> row;
    for (size_t i = 0; i < vocab; ++i) {
      const auto drawn = static_cast<float>(random() >> 8) * 0x1p-22f;  // up to 4
      row.push_back(-(coarse ? std::round(drawn * 2) / 8 : drawn) - 0.125f);
    }
    return row;
  };
}

std::vector<TokenLogprob> BestOf(const std::vector<float>& row, size_t count) {
  std::vector<TokenLogprob> best;
  for (size_t i = 0; i < row.size(); ++i) best.push_back({static_cast<TokenId>(i), row[i]});
  std::stable_sort(best.begin(), best.end(),
                   [](const auto& a, const auto& b) { return a.logprob > b.logprob; });
  best.resize(std::min(best.size(), count));
  return best;
}

std::vector<Hypothesis> Search(const BeamParams& params, const StopConditions& stop,
                               const Table& table) {
  BeamSearch search(params, stop);
  return RunBeams(search, [&](const Tokens& output) {
    return BestOf(table(output), static_cast<size_t>(search.num_candidates()));
  });
}

struct Scored {
  Tokens tokens;
  double sum = 0, score = 0;
};

// The rules as the header states them; every text a list of its own, every continuation sorted.
std::vector<Scored> Naive(const BeamParams& p, const StopConditions& stop, const Table& table) {
  std::set<TokenId> ends(stop.eos_token_ids.begin(), stop.eos_token_ids.end());
  ends.insert(stop.stop_token_ids.begin(), stop.stop_token_ids.end());
  const size_t width = static_cast<size_t>(p.beam_width / p.num_groups);
  const auto score = [&](double sum, size_t length) {
    return sum / std::pow(static_cast<double>(length), double{p.length_penalty});
  };
  const auto by_sum = [](const Scored& a, const Scored& b) { return a.sum > b.sum; };
  const auto by_score = [](const Scored& a, const Scored& b) { return a.score > b.score; };
  std::vector<std::vector<Scored>> open(static_cast<size_t>(p.num_groups), {Scored{}});
  std::vector<std::vector<Scored>> kept(open.size());
  for (size_t length = 1; length <= static_cast<size_t>(stop.max_tokens); ++length) {
    std::map<TokenId, int> taken;
    for (size_t g = 0; g < open.size(); ++g) {
      if (open[g].empty()) continue;
      std::vector<Scored> all;
      for (const Scored& beam : open[g]) {
        const std::vector<float> row = table(beam.tokens);
        for (size_t t = 0; t < row.size(); ++t) {
          const auto id = static_cast<TokenId>(t);
          Scored next = beam;
          next.tokens.push_back(id);
          next.sum += double{row[t]} - double{p.diversity_rate} * taken[id];
          next.score = score(next.sum, length);
          all.push_back(next);
        }
      }
      std::stable_sort(all.begin(), all.end(), by_sum);
      const bool last = length == static_cast<size_t>(stop.max_tokens);
      open[g].clear();
      for (size_t i = 0; i < all.size(); ++i) {
        const bool ended = ends.count(all[i].tokens.back()) > 0;
        if ((ended || last) && i < width) kept[g].push_back(all[i]);
        if (!ended && open[g].size() < width) open[g].push_back(all[i]);
      }
      for (const Scored& beam : open[g]) ++taken[beam.tokens.back()];
      std::stable_sort(kept[g].begin(), kept[g].end(), by_score);
      if (kept[g].size() > width) kept[g].resize(width);
      if (last) open[g].clear();
      if (kept[g].size() < width || open[g].empty()) continue;
      const bool longest = p.early_stopping == EarlyStopping::kNever && p.length_penalty > 0;
      const double attainable =
          score(open[g][0].sum, longest ? static_cast<size_t>(stop.max_tokens) : length);
      if (p.early_stopping == EarlyStopping::kFirst || p.beam_width == 1 ||
          attainable <= kept[g].back().score) {
        open[g].clear();
      }
    }
  }
  std::vector<Scored> best;
  for (const auto& group : kept) best.insert(best.end(), group.begin(), group.end());
  std::stable_sort(best.begin(), best.end(), by_score);
  best.resize(std::min(best.size(), static_cast<size_t>(p.num_return_sequences)));
  return best;
}

constexpr EarlyStopping kKinds[] = {EarlyStopping::kHeuristic, EarlyStopping::kFirst,
                                    EarlyStopping::kNever};

void ExpectEqual(const std::vector<Hypothesis>& got, const std::vector<Scored>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(got[i].tokens, want[i].tokens) << i;
    EXPECT_NEAR(got[i].score, want[i].score, 1e-5 * std::max(1.0, std::fabs(want[i].score))) << i;
  }
}

TEST(BeamSearch, EqualsThePlainRules) {
  std::mt19937 random(7);
  std::map<std::string, int> seen;
  for (int trial = 0; trial < 1500; ++trial) {
    BeamParams p;
    p.num_groups = random() % 3 == 0 ? 1 + static_cast<int32_t>(random() % 4) : 1;
    p.beam_width = p.num_groups * (1 + static_cast<int32_t>(random() % 5));
    p.num_return_sequences = 1 + static_cast<int32_t>(random() % p.beam_width);
    const float penalties[] = {-1, 0, 0.6f, 1, 2};
    p.length_penalty = penalties[random() % 5];
    p.early_stopping = kKinds[random() % 3];
    if (p.num_groups > 1) p.diversity_rate = 0.25f * static_cast<float>(1 + random() % 8);
    StopConditions stop{.max_tokens = 1 + static_cast<int32_t>(random() % 7)};
    const uint32_t vocab = 2 + random() % 7;
    for (uint32_t n = random() % 3; n > 0; --n) {  // twice the same is allowed
      stop.eos_token_ids.push_back(static_cast<TokenId>(random() % vocab));
    }
    if (random() % 4 == 0) stop.stop_token_ids.push_back(static_cast<TokenId>(random() % vocab));
    const Table table = RandomTable(random(), vocab, trial % 2 == 0);
    const std::vector<Hypothesis> got = Search(p, stop, table);
    SCOPED_TRACE(trial);
    ExpectEqual(got, Naive(p, stop, table));
    if (HasFatalFailure()) return;
    for (const Hypothesis& h : got) {
      ++seen[h.finish == FinishReason::kStop ? "stop" : "length"];
      if (p.num_groups == 1) ExpectOwnScore(h, p);
    }
    seen["fewer"] += got.size() < static_cast<size_t>(p.num_return_sequences) ? 1 : 0;
  }
  EXPECT_GT(seen["stop"], 500);
  EXPECT_GT(seen["length"], 500);
  EXPECT_GT(seen["fewer"], 10);
}

// All texts that end with token 3 or have `max_tokens` tokens, best first.
std::vector<Scored> Enumerate(const Table& table, int32_t max_tokens, float penalty) {
  std::vector<Scored> open = {Scored{}}, all;
  for (int32_t length = 1; length <= max_tokens; ++length) {
    std::vector<Scored> longer;
    for (const Scored& s : open) {
      const std::vector<float> row = table(s.tokens);
      for (TokenId t = 0; t < 4; ++t) {
        Scored next = s;
        next.tokens.push_back(t);
        next.sum += row[static_cast<size_t>(t)];
        next.score = next.sum / std::pow(double{1} * length, double{penalty});
        (t == 3 || length == max_tokens ? all : longer).push_back(next);
      }
    }
    open = longer;
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const Scored& a, const Scored& b) { return a.score > b.score; });
  return all;
}

// T06: as many beams as there are texts: nothing is lost, whatever the kind of stopping.
TEST(BeamSearch, T06_WiderThanTheVocabulary) {
  for (uint32_t trial = 0; trial < 20; ++trial) {
    const Table table = RandomTable(900 + trial, 4, false);
    for (const float penalty : {-1.0f, 0.0f, 1.0f, 2.0f}) {
      for (const EarlyStopping kind : kKinds) {
        for (const auto& [width, max_tokens] : {std::pair{8, 1}, {16, 2}, {128, 4}}) {
          BeamParams p{.beam_width = width, .num_return_sequences = width};
          p.length_penalty = penalty;
          p.early_stopping = kind;
          std::vector<Scored> want = Enumerate(table, max_tokens, penalty);
          want.resize(std::min(want.size(), static_cast<size_t>(width)));
          ExpectEqual(Search(p, {.max_tokens = max_tokens, .eos_token_ids = {3}}, table), want);
        }
      }
    }
  }
  // Live beams: 3, then 9 of which 8 stay.
  const Table table = RandomTable(1, 4, false);
  BeamSearch search({.beam_width = 8}, {.max_tokens = 5, .eos_token_ids = {3}});
  std::vector<int32_t> live;
  RunBeams(search, [&](const Tokens& output) {
    if (live.size() == output.size()) live.push_back(search.num_rows());
    return BestOf(table(output), 100);
  });
  EXPECT_EQ(live, (std::vector<int32_t>{1, 3, 8, 8, 8}));
}

// T03: a text that is better by 0.1, found only by who looks at what the longest could reach.
TEST(BeamSearch, T03_WhenTheSearchMayStop) {
  const Table table = [](const Tokens& text) {
    std::vector<float> row = {-9, -9, -9, -9};
    const float go_on[] = {-1.1f, -1.1f, -3.0f}, end[] = {-1.0f, -0.95f, -0.5f};
    row[0] = go_on[text.size()];
    row[3] = end[text.size()];
    return row;
  };
  const StopConditions stop{.max_tokens = 3, .eos_token_ids = {3}};
  BeamParams p{.beam_width = 2, .num_return_sequences = 2};
  for (const EarlyStopping kind : kKinds) {
    p.early_stopping = kind;
    p.length_penalty = 1;
    const std::vector<Hypothesis> best = Search(p, stop, table);
    if (kind == EarlyStopping::kNever) {
      EXPECT_EQ(best[0].tokens, (Tokens{0, 0, 3}));
      EXPECT_NEAR(best[0].score, -0.9, 1e-6);
      EXPECT_EQ(best[1].tokens, (Tokens{3}));
    } else {
      EXPECT_EQ(best[0].tokens, (Tokens{3}));
      EXPECT_EQ(best[1].tokens, (Tokens{0, 3}));
      EXPECT_NEAR(best[1].score, -1.025, 1e-6);
    }
    EXPECT_EQ(best[0].stop_token, 3);
    p.length_penalty = 0;  // what is longer can't be better
    EXPECT_EQ(Search(p, stop, table)[1].tokens, (Tokens{0, 3}));
  }
}

// T03: one beam is greedy search.
TEST(BeamSearch, T03_OneBeamIsGreedy) {
  for (uint32_t trial = 0; trial < 200; ++trial) {
    const Table table = RandomTable(trial, 5, trial % 2 == 0);
    Tokens greedy;
    while (greedy.size() < 12 && (greedy.empty() || greedy.back() != 4)) {
      greedy.push_back(BestOf(table(greedy), 1)[0].token);
    }
    for (const EarlyStopping kind : kKinds) {
      BeamParams p{.beam_width = 1, .length_penalty = 2, .early_stopping = kind};
      const auto best = Search(p, {.max_tokens = 12, .eos_token_ids = {4}}, table);
      ASSERT_EQ(best.size(), 1u);
      EXPECT_EQ(best[0].tokens, greedy);
    }
  }
}

TEST(BeamSearch, BannedRows) {
  BeamSearch none({.beam_width = 4}, {.max_tokens = 5});
  EXPECT_TRUE(none.Advance(std::vector<std::vector<TokenLogprob>>(1)).empty());
  EXPECT_TRUE(none.done());
  EXPECT_TRUE(none.Best().empty());
  // One of two beams has nothing to go on with; the other goes on in two ways.
  BeamSearch search({.beam_width = 2}, {.max_tokens = 2});
  search.Advance(std::vector<std::vector<TokenLogprob>>{{{5, -1.0f}, {6, -2.0f}}});
  EXPECT_EQ(search.num_rows(), 2);
  search.Advance(std::vector<std::vector<TokenLogprob>>{{}, {{7, -1.0f}, {8, -2.0f}}});
  ASSERT_TRUE(search.done());
  ASSERT_EQ(search.Best().size(), 1u);
  EXPECT_EQ(search.Best()[0].tokens, (Tokens{6, 7}));
}

TEST(BeamSearch, ExtremeLengthPenalties) {
  for (const float penalty : {-100.0f, 100.0f}) {
    BeamParams p{.beam_width = 3, .num_return_sequences = 3, .length_penalty = penalty};
    const auto best = Search(p, {.max_tokens = 300}, RandomTable(3, 4, false));
    ASSERT_EQ(best.size(), 3u);
    for (const Hypothesis& h : best) EXPECT_FALSE(std::isnan(h.score));
  }
}

}  // namespace
}  // namespace quire
