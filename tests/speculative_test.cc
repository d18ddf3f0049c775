// tests/speculative_test.cc -- lookups against scans of the text by definition, over random walks
// of what may become of a sequence; and who may see whose text.
#include "scheduler/speculative.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "scheduler/ngram_proposer.h"
#include "scheduler/suffix_proposer.h"

namespace quire {
namespace {

using Chains = std::vector<std::vector<TokenId>>;

struct RequestSpec {
  std::string tenant, salt;
  bool bypass = false;
};

std::unique_ptr<Sequence> NewSequence(SequenceId id, std::vector<TokenId> tokens,
                                      const RequestSpec& spec = {}) {
  auto request = std::make_shared<Request>();
  request->prompt = tokens;
  request->tenant = spec.tenant;
  request->cache_salt = spec.salt;
  request->bypass_prefix_cache = spec.bypass;
  auto seq = std::make_unique<Sequence>();
  seq->id = id;
  seq->request = std::move(request);
  seq->tokens = std::move(tokens);
  return seq;
}

Chains Ask(Proposer& proposer, const Sequence& seq, int32_t max_tokens, int32_t max_chains = 1) {
  DraftRequest request{.seq = &seq, .max_tokens = max_tokens, .max_chains = max_chains};
  request.chains.push_back({{12345}});  // what was there is replaced
  proposer.Propose({&request, 1});
  Chains chains;
  for (const DraftChain& c : request.chains) chains.push_back(c.tokens);
  return chains;
}

void Say(Proposer& proposer, Sequence& seq, const std::vector<TokenId>& fresh) {
  seq.tokens.insert(seq.tokens.end(), fresh.begin(), fresh.end());
  proposer.OnTokens(seq, fresh);
}

// A text to search: an occurrence counts if what follows it is `found` by it.
struct Text {
  std::vector<TokenId> tokens;
  std::vector<bool> found;  // of each token; empty = all
};

// By definition, all by scanning. An occurrence of the last tokens of `seq` in `text`: where what
// follows begins, and how many tokens before it are equal.
struct Hit {
  size_t text = 0;  // which of the searched texts
  size_t next = 0;
  int32_t match_len = 0;
};

int32_t EqualBefore(const std::vector<TokenId>& text, size_t next, const std::vector<TokenId>& seq,
                    int32_t most) {
  int32_t n = 0;
  while (n < most && n < static_cast<int32_t>(next) && n < static_cast<int32_t>(seq.size()) &&
         text[next - 1 - static_cast<size_t>(n)] == seq[seq.size() - 1 - static_cast<size_t>(n)]) {
    ++n;
  }
  return n;
}

// The most recent occurrences for each indexed length, the longest length first; each in the group
// of the longest indexed length that it has.
std::vector<std::vector<Hit>> HitsByLevel(const std::vector<Text>& texts,
                                          const std::vector<TokenId>& seq, const MatchOptions& o) {
  std::vector<int32_t> lengths;
  for (int32_t n = o.min_match; n <= o.max_match; n *= 2) lengths.push_back(n);
  std::vector<std::vector<Hit>> levels;
  for (size_t l = lengths.size(); l-- > 0;) {
    std::vector<Hit>& hits = levels.emplace_back();
    for (size_t t = 0; t < texts.size(); ++t) {
      int32_t seen = 0;
      const Text& text = texts[t];
      for (size_t next = text.tokens.size(); next-- > 1 && seen < o.max_occurrences;) {
        if (!text.found.empty() && !text.found[next]) continue;
        const int32_t equal = EqualBefore(text.tokens, next, seq, o.max_compare);
        if (equal < lengths[l]) continue;
        ++seen;
        if (l + 1 < lengths.size() && equal >= lengths[l + 1]) continue;
        hits.push_back({t, next, equal});
      }
    }
    std::stable_sort(hits.begin(), hits.end(),
                     [](const Hit& a, const Hit& b) { return a.match_len > b.match_len; });
  }
  return levels;
}

Chains NgramByDefinition(const std::vector<TokenId>& seq, const MatchOptions& o, int32_t max_tokens,
                         int32_t max_chains) {
  Chains chains;
  for (const auto& hits : HitsByLevel({{seq, {}}}, seq, o)) {
    for (const Hit& h : hits) {
      if (static_cast<int32_t>(chains.size()) == max_chains) return chains;
      if (std::any_of(chains.begin(), chains.end(),
                      [&](const auto& c) { return c[0] == seq[h.next]; })) {
        continue;
      }
      // As if the guess were appended at once, so that it can be read from its own beginning.
      std::vector<TokenId> longer = seq;
      for (int32_t i = 0; i < max_tokens; ++i) {
        longer.push_back(longer[h.next + static_cast<size_t>(i)]);
      }
      chains.emplace_back(longer.end() - max_tokens, longer.end());
    }
  }
  return chains;
}

TEST(NgramProposer, EqualsScansOfTheText) {
  int found = 0, found_none = 0, several = 0, truncated = 0, longer_than_8 = 0;
  for (uint32_t seed = 0; seed < 60; ++seed) {
    std::mt19937 random(seed);
    const int alphabet = 2 + static_cast<int>(seed % 6) * 3;
    MatchOptions options;
    options.min_match = 1 + static_cast<int32_t>(seed % 3);
    NgramProposer proposer(options);
    std::vector<TokenId> prompt;
    for (int i = 0; i < 3; ++i) prompt.push_back(static_cast<TokenId>(random() % alphabet));
    auto seq = NewSequence(seed + 1, prompt);
    for (int step = 0; step < 150; ++step) {
      const size_t size = seq->tokens.size();
      switch (random() % 8) {
        case 0: {  // a copy of an earlier part
          const size_t from = random() % size, count = 1 + random() % 20;
          std::vector<TokenId> part;
          for (size_t i = from; i < std::min(size, from + count); ++i) {
            part.push_back(seq->tokens[i]);
          }
          Say(proposer, *seq, part);
          break;
        }
        case 1:  // cut, perhaps far back, and gone on differently before anybody asks
          seq->tokens.resize(size - random() % std::min<size_t>(size, 100));
          if (seq->tokens.empty()) seq->tokens.push_back(0);
          ++truncated;
          [[fallthrough]];
        default:
          Say(proposer, *seq, {static_cast<TokenId>(random() % alphabet)});
      }
      if (random() % 3 == 0) continue;  // not asked in each step
      const auto max_tokens = static_cast<int32_t>(1 + random() % 9);
      const auto max_chains = static_cast<int32_t>(1 + random() % 4);
      const Chains got = Ask(proposer, *seq, max_tokens, max_chains);
      const Chains want = NgramByDefinition(seq->tokens, options, max_tokens, max_chains);
      ASSERT_EQ(got, want) << "seed " << seed << " step " << step;
      found += !got.empty();
      found_none += got.empty();
      several += got.size() > 1;
      const auto levels = HitsByLevel({{seq->tokens, {}}}, seq->tokens, options);
      longer_than_8 += !levels[0].empty() && levels[0][0].match_len > 8;
    }
    EXPECT_EQ(proposer.num_sequences(), 1u);
    proposer.OnEnd(seq->id);
    EXPECT_EQ(proposer.num_sequences(), 0u);
  }
  EXPECT_GT(found, 1000);
  EXPECT_GT(found_none, 100);
  EXPECT_GT(several, 500);
  EXPECT_GT(truncated, 300);
  EXPECT_GT(longer_than_8, 100);
}

// With as many occurrences as the text has, the longest repeated suffix is found whatever its
// length.
TEST(NgramProposer, FindsTheLongestRepeatedSuffix) {
  std::mt19937 random(5);
  MatchOptions options{.min_match = 1, .max_match = 16, .max_compare = 64};
  options.max_occurrences = 1000;
  NgramProposer proposer(options);
  auto seq = NewSequence(1, {0});
  for (int step = 0; step < 400; ++step) {
    seq->tokens.push_back(static_cast<TokenId>(random() % 3));
    size_t best_next = 0;
    int32_t best = 0;
    for (size_t next = 1; next < seq->tokens.size(); ++next) {
      const int32_t n = EqualBefore(seq->tokens, next, seq->tokens, 64);
      if (n > 0 && n >= best) best = n, best_next = next;
    }
    const Chains got = Ask(proposer, *seq, 1);
    if (best == 0) {
      EXPECT_TRUE(got.empty());
    } else {
      ASSERT_EQ(got, Chains({{seq->tokens[best_next]}})) << "step " << step;
    }
  }
}

TEST(NgramProposer, LoopsAreContinuedBeyondTheEnd) {
  NgramProposer proposer;
  EXPECT_EQ(Ask(proposer, *NewSequence(1, {7, 7, 7}), 5), Chains({{7, 7, 7, 7, 7}}));
  EXPECT_EQ(Ask(proposer, *NewSequence(2, {1, 2, 3, 1, 2, 3, 1, 2}), 7),
            Chains({{3, 1, 2, 3, 1, 2, 3}}));
  EXPECT_EQ(Ask(proposer, *NewSequence(3, {1, 2}), 7), Chains());
  EXPECT_EQ(Ask(proposer, *NewSequence(4, {1}), 7), Chains());
}

TEST(NgramProposer, NoRoomNoGuess) {
  NgramProposer proposer;
  EXPECT_EQ(Ask(proposer, *NewSequence(1, {7, 7, 7}), 0), Chains());
  EXPECT_EQ(Ask(proposer, *NewSequence(1, {7, 7, 7}), 3, 0), Chains());
}

TEST(TokenIndex, TruncateIsAsIfTokensHadNeverBeenThere) {
  std::mt19937 random(11);
  TokenIndex walked;
  std::vector<TokenId> text;
  for (int step = 0; step < 3000; ++step) {
    if (random() % 200 == 0 && !text.empty()) {
      text.resize(random() % text.size());
      walked.Truncate(text.size());
    } else {
      text.push_back(static_cast<TokenId>(random() % 4));
      walked.Append({&text.back(), 1});
    }
    if (step % 50 != 0) continue;
    TokenIndex fresh;
    fresh.Append(text);
    for (size_t level = 0; level < fresh.lengths().size(); ++level) {
      std::vector<TokenIndex::Occurrence> a, b;
      walked.Find(level, text, a);
      fresh.Find(level, text, b);
      ASSERT_EQ(a.size(), b.size()) << "step " << step;
      for (size_t i = 0; i < a.size(); ++i) {
        EXPECT_EQ(a[i].next, b[i].next);
        EXPECT_EQ(a[i].match_len, b[i].match_len);
      }
    }
  }
}

// By definition: occurrences of the longest match length vote token by token, by counting.
Chains SuffixByDefinition(const std::vector<TokenId>& seq, const std::vector<Text>& outputs,
                          const MatchOptions& o, int32_t max_tokens, int32_t max_chains) {
  std::vector<Text> texts{{seq, {}}};
  texts.insert(texts.end(), outputs.begin(), outputs.end());
  Chains chains;
  for (const auto& hits : HitsByLevel(texts, seq, o)) {
    for (size_t begin = 0; begin < hits.size();) {
      size_t end = begin;
      while (end < hits.size() && hits[end].match_len == hits[begin].match_len) ++end;
      // Each occurrence's own continuation, as far as it goes.
      std::vector<std::vector<TokenId>> futures;
      for (size_t h = begin; h < end; ++h) {
        std::vector<TokenId> text = texts[hits[h].text].tokens;
        if (hits[h].text == 0) {
          for (int32_t i = 0; i < max_tokens; ++i) {
            text.push_back(text[hits[h].next + static_cast<size_t>(i)]);
          }
        }
        std::vector<TokenId> future;
        for (size_t i = hits[h].next; i < text.size() && text[i] >= 0; ++i) {
          future.push_back(text[i]);
        }
        futures.push_back(future);
      }
      begin = end;
      while (static_cast<int32_t>(chains.size()) < max_chains) {
        std::vector<TokenId> chain;
        while (static_cast<int32_t>(chain.size()) < max_tokens) {
          std::map<TokenId, int> count;
          std::vector<TokenId> order;  // in which they were found
          for (const auto& f : futures) {
            if (f.size() <= chain.size() || !std::equal(chain.begin(), chain.end(), f.begin())) {
              continue;
            }
            const TokenId token = f[chain.size()];
            if (chain.empty() && std::any_of(chains.begin(), chains.end(),
                                             [&](const auto& c) { return c[0] == token; })) {
              continue;
            }
            if (count[token]++ == 0) order.push_back(token);
          }
          if (order.empty()) break;
          chain.push_back(*std::max_element(order.begin(), order.end(), [&](TokenId a, TokenId b) {
            return count[a] < count[b];
          }));
        }
        if (chain.empty()) break;
        chains.push_back(chain);
      }
    }
  }
  return chains;
}

TEST(SuffixProposer, EqualsCountsByScanning) {
  int found = 0, several = 0, from_outputs = 0;
  for (uint32_t seed = 0; seed < 30; ++seed) {
    std::mt19937 random(seed);
    const int alphabet = 2 + static_cast<int>(seed % 5) * 2;
    const MatchOptions match = SuffixOptions{}.match;
    SuffixProposer proposer;
    Text store;  // what ended sequences left, in order of their ends
    std::vector<std::unique_ptr<Sequence>> live;
    SequenceId next_id = 1;
    for (int step = 0; step < 400; ++step) {
      if (live.size() < 3) {
        std::vector<TokenId> prompt;
        for (size_t i = 0; i < 1 + random() % 40; ++i) {
          prompt.push_back(static_cast<TokenId>(random() % alphabet));
        }
        live.push_back(NewSequence(next_id++, prompt, {"t", "s"}));
      }
      const size_t i = random() % live.size();
      Sequence& seq = *live[i];
      if (random() % 12 == 0 && seq.num_output_tokens() > 0) {
        // The end of the prompt is only what outputs are found by.
        const auto prompt = static_cast<size_t>(seq.num_prompt_tokens());
        store.tokens.push_back(TokenIndex::kSeparator);
        for (size_t k = prompt - std::min<size_t>(prompt, 32); k < seq.tokens.size(); ++k) {
          store.tokens.push_back(seq.tokens[k]);
          store.found.resize(store.tokens.size());
          store.found.back() = k >= prompt;
        }
        proposer.OnEnd(seq.id);
        live.erase(live.begin() + static_cast<std::ptrdiff_t>(i));
        continue;
      }
      std::vector<TokenId> fresh;
      for (size_t k = 0; k < 1 + random() % 3; ++k) {
        fresh.push_back(static_cast<TokenId>(random() % alphabet));
      }
      Say(proposer, seq, fresh);
      const auto max_tokens = static_cast<int32_t>(1 + random() % 9);
      const auto max_chains = static_cast<int32_t>(1 + random() % 4);
      const Chains got = Ask(proposer, seq, max_tokens, max_chains);
      ASSERT_EQ(got, SuffixByDefinition(seq.tokens, {store}, match, max_tokens, max_chains))
          << "seed " << seed << " step " << step;
      found += !got.empty();
      several += got.size() > 1;
      from_outputs += got != SuffixByDefinition(seq.tokens, {}, match, max_tokens, max_chains);
    }
  }
  EXPECT_GT(found, 5000);
  EXPECT_GT(several, 2000);
  EXPECT_GT(from_outputs, 1000);
}

// What a finished request of `from` generated, proposed to a request of `to` after the same words?
bool Leaks(const RequestSpec& from, const RequestSpec& to) {
  SuffixProposer proposer;
  auto writer = NewSequence(1, {1, 2, 3, 4, 5}, from);
  Say(proposer, *writer, {100, 101, 102, 103});
  proposer.OnEnd(1);
  auto reader = NewSequence(2, {1, 2, 3, 4, 5}, to);
  Say(proposer, *reader, {100, 101});
  const Chains chains = Ask(proposer, *reader, 4, 4);
  EXPECT_TRUE(chains.empty() || chains == Chains({{102, 103}}));
  return !chains.empty();
}

TEST(SuffixProposer, OutputsStayInTheirScope) {
  EXPECT_TRUE(Leaks({}, {}));
  EXPECT_TRUE(Leaks({"a", "s"}, {"a", "s"}));
  EXPECT_FALSE(Leaks({"a", "s"}, {"b", "s"}));
  EXPECT_FALSE(Leaks({"a", "s"}, {"a", "t"}));
  EXPECT_FALSE(Leaks({"a", "s"}, {"a", ""}));
  EXPECT_FALSE(Leaks({"", ""}, {"a", ""}));
  EXPECT_FALSE(Leaks({"", ""}, {"", "s"}));
  // However the two are put together.
  EXPECT_FALSE(Leaks({"ab", "c"}, {"a", "bc"}));
  EXPECT_FALSE(Leaks({"a", ""}, {"", "a"}));
  EXPECT_FALSE(Leaks({std::string("a\0b", 3), "c"}, {"a", std::string("b\0c", 3)}));
  EXPECT_FALSE(Leaks({"a:", "b"}, {"a", ":b"}));
  // Who bypasses the cache neither feeds nor reads.
  EXPECT_FALSE(Leaks({"a", "s", true}, {"a", "s"}));
  EXPECT_FALSE(Leaks({"a", "s"}, {"a", "s", true}));
  EXPECT_FALSE(Leaks({"a", "s", true}, {"a", "s", true}));
}

// Every request has the secret as its own text; no guess for another tenant may ever hold it.
TEST(SuffixProposer, NoTokenOfAnotherTenantInARandomWalk) {
  constexpr int kTenants = 3;
  std::mt19937 random(3);
  SuffixProposer proposer({.max_tokens = 4 * SuffixProposer::kBlockTokens});
  struct Live {
    std::unique_ptr<Sequence> seq;
    int owner = 0;
  };
  std::vector<Live> live;
  SequenceId next_id = 1;
  int proposed = 0;
  for (int step = 0; step < 20000; ++step) {
    if (live.size() < 8) {
      const int owner = static_cast<int>(random() % (2 * kTenants));
      const RequestSpec spec{"tenant" + std::to_string(owner / 2), owner % 2 == 1 ? "salt" : ""};
      live.push_back({NewSequence(next_id++, {0, 1, 2}, spec), owner});
    }
    const size_t i = random() % live.size();
    Live& l = live[i];
    if (random() % 30 == 0) {
      proposer.OnEnd(l.seq->id);
      live.erase(live.begin() + static_cast<std::ptrdiff_t>(i));
      continue;
    }
    if (random() % 2000 == 0) proposer.Flush(nullptr);
    // Common words, and now and then one that only its scope knows.
    const bool secret = random() % 3 == 0;
    const int word = static_cast<int>(random() % 3);
    Say(proposer, *l.seq, {secret ? 1000 * (l.owner + 1) + word : word});
    for (const auto& chain : Ask(proposer, *l.seq, 5, 3)) {
      ++proposed;
      for (const TokenId t : chain) {
        ASSERT_TRUE(t < 1000 || t / 1000 == l.owner + 1) << "step " << step;
      }
    }
    ASSERT_LE(proposer.num_tokens(), 4 * SuffixProposer::kBlockTokens);
  }
  EXPECT_GT(proposed, 10000);
  for (Live& l : live) proposer.OnEnd(l.seq->id);
  EXPECT_EQ(proposer.num_sequences(), 0u);
  EXPECT_LE(proposer.num_scopes(), 2u * kTenants);
}

TEST(SuffixProposer, BlocksOfALongOutputAreFoundBeforeItsEnd) {
  SuffixProposer proposer;
  auto writer = NewSequence(1, {1, 2, 3});
  std::vector<TokenId> story;
  for (int i = 0; i < SuffixProposer::kBlockTokens + 40; ++i) story.push_back(1000 + i);
  for (const TokenId t : story) Say(proposer, *writer, {t});
  auto reader = NewSequence(2, {story[10], story[11]});
  EXPECT_EQ(Ask(proposer, *reader, 3), Chains({{story[12], story[13], story[14]}}));
  // Across the border of two blocks, once the second is there.
  const auto border = static_cast<size_t>(SuffixProposer::kBlockTokens);
  auto late = NewSequence(3, {story[border - 2], story[border - 1]});
  EXPECT_EQ(Ask(proposer, *late, 2), Chains());
  proposer.OnEnd(1);
  EXPECT_EQ(Ask(proposer, *late, 2), Chains({{story[border], story[border + 1]}}));
}

TEST(SuffixProposer, TheMostFrequentContinuationComesFirst) {
  SuffixProposer proposer;
  SequenceId id = 1;
  const auto write = [&](const std::vector<TokenId>& output) {
    auto seq = NewSequence(id, {1, 2});
    Say(proposer, *seq, output);
    proposer.OnEnd(id++);
  };
  for (int i = 0; i < 3; ++i) write({10, 11, 12});
  write({10, 11, 13});
  for (int i = 0; i < 2; ++i) write({20, 21});
  write({30});
  auto reader = NewSequence(id, {1, 2});
  EXPECT_EQ(Ask(proposer, *reader, 4, 4), Chains({{10, 11, 12}, {20, 21}, {30}}));
}

TEST(SuffixProposer, MemoryIsBoundedAndOldOutputsGoFirst) {
  constexpr int32_t kMax = 4 * SuffixProposer::kBlockTokens;
  SuffixProposer proposer({.max_tokens = kMax});
  const auto write = [&](SequenceId id, const std::string& tenant, int32_t first, int32_t count) {
    auto seq = NewSequence(id, {1, 2}, {tenant, ""});
    std::vector<TokenId> output(static_cast<size_t>(count));
    for (int32_t i = 0; i < count; ++i) output[static_cast<size_t>(i)] = first + i;
    Say(proposer, *seq, output);
    proposer.OnEnd(id);
    EXPECT_LE(proposer.num_tokens(), kMax);
  };
  const auto knows = [&](const std::string& tenant, int32_t first) {
    const Chains chains = Ask(proposer, *NewSequence(999, {first, first + 1}, {tenant, ""}), 1);
    proposer.OnEnd(999);
    EXPECT_TRUE(chains.empty() || chains == Chains({{first + 2}}));
    return !chains.empty();
  };
  write(1, "a", 1000, 100);
  write(2, "b", 2000, 100);
  EXPECT_TRUE(knows("a", 1000) && knows("b", 2000) && knows("a", 1000));
  // b, the least recently used, goes first.
  for (int32_t i = 0; i < 7; ++i) write(10 + static_cast<SequenceId>(i), "c", 3000 + 100 * i, 100);
  EXPECT_TRUE(knows("a", 1000));
  EXPECT_FALSE(knows("b", 2000));
  EXPECT_TRUE(knows("c", 3600));
  // One scope alone keeps its newer half, whatever comes.
  for (int32_t i = 0; i < 60; ++i) write(20 + static_cast<SequenceId>(i), "d", 4000 + 100 * i, 100);
  EXPECT_EQ(proposer.num_scopes(), 1u);
  EXPECT_TRUE(knows("d", 4000 + 5900) && knows("d", 4000 + 5700));
  EXPECT_FALSE(knows("d", 4000));
  // An output longer than all room, told at once.
  write(100, "e", 50000, 5 * kMax);
  EXPECT_TRUE(knows("e", 50000 + 5 * kMax - 3));
  // Thousands of scopes with a token each.
  for (int32_t i = 0; i < 5000; ++i) {
    write(1000 + static_cast<SequenceId>(i), "t" + std::to_string(i), 5, 1);
  }
  EXPECT_LE(proposer.num_scopes(), static_cast<size_t>(kMax / SuffixProposer::kScopeTokens));
  proposer.Flush(nullptr);
  EXPECT_EQ(proposer.num_scopes(), 0u);
  EXPECT_EQ(proposer.num_tokens(), 0);
}

TEST(SuffixProposer, FlushOfOneSalt) {
  SuffixProposer proposer;
  for (SequenceId id = 1; id <= 2; ++id) {
    auto seq = NewSequence(id, {1, 2}, {"t", id == 1 ? "x" : "y"});
    Say(proposer, *seq, {10, 11});
    proposer.OnEnd(id);
  }
  const std::string salt = "x";
  proposer.Flush(&salt);
  EXPECT_EQ(Ask(proposer, *NewSequence(3, {1, 2}, {"t", "x"}), 2), Chains());
  EXPECT_EQ(Ask(proposer, *NewSequence(4, {1, 2}, {"t", "y"}), 2), Chains({{10, 11}}));
}

// A live sequence that ends after its scope was dropped begins a new one.
TEST(SuffixProposer, OutputsInFlightSurviveAFlush) {
  SuffixProposer proposer;
  auto seq = NewSequence(1, {1, 2});
  Say(proposer, *seq, {10, 11});
  proposer.Flush(nullptr);
  Say(proposer, *seq, {12});
  proposer.OnEnd(1);
  EXPECT_EQ(Ask(proposer, *NewSequence(2, {10, 11}), 2), Chains({{12}}));
}

}  // namespace
}  // namespace quire
