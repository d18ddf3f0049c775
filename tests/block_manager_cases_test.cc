// tests/block_manager_cases_test.cc -- hard cases of the prefix cache and of reference counts, each
// at the scale that its description asks for. The ids in comments are theirs.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <string>

#include "tests/cache_harness.h"

namespace quire {
namespace {

// A01: not even the first page of a step is found before its Commit; afterwards all are.
TEST(BlockManager, PagesAreFoundOnlyAfterTheStepThatWroteThem) {
  Cache c(400, 16);
  const auto prefix = Text(8 * 16);
  std::vector<Cache::Seq> seqs;
  for (int i = 0; i < 32; ++i) {  // all in one step
    seqs.push_back(c.Match(Join(prefix, Text(5, 1000 + 10 * i))));
    EXPECT_EQ(seqs.back().hit, 0);
    ASSERT_TRUE(c.Grow(seqs.back()));
  }
  EXPECT_EQ(c.Match(prefix).hit, 0);
  EXPECT_EQ(c.pool().num_active(), 32 * 9);
  for (Cache::Seq& s : seqs) c.Commit(s);
  // The copies of the prefix that the step had to compute are one now.
  EXPECT_EQ(c.pool().num_active(), 8 + 32);
  EXPECT_EQ(c.manager.stats().dedupe_hits, 31 * 8);
  for (const Cache::Seq& s : seqs) {
    EXPECT_TRUE(std::equal(s.ids().begin(), s.ids().begin() + 8, seqs[0].ids().begin()));
  }
  EXPECT_EQ(c.Match(Join(prefix, Text(5, 7))).hit, 8 * 16);
}

// A03: 64 different prompts of two pages, each sent twice, with the hash cut to a constant and to
// four bits. What is hit has equal tokens and an equal page before it; else it is a miss.
TEST(BlockManager, CollisionsCostAMissNeverAWrongHit) {
  for (const int32_t bits : {0, 4, 128}) {
    Cache c(1000, 8, {.hash_bits = bits});
    std::mt19937 rng(1);
    std::vector<std::vector<TokenId>> prompts;
    for (int i = 0; i < 64; ++i) {
      std::vector<TokenId> p;
      for (int j = 0; j < 17; ++j) p.push_back(static_cast<TokenId>(rng() % 1000));
      if (i % 2 == 1) {  // the same second page after another first one
        std::copy(prompts.back().begin() + 8, prompts.back().end(), p.begin() + 8);
      }
      prompts.push_back(p);
    }
    std::map<PageId, std::vector<TokenId>> content;  // all tokens up to and including the page's
    int hits = 0;
    std::vector<Cache::Seq> live;
    for (int round = 0; round < 2; ++round) {
      for (const auto& p : prompts) {
        Cache::Seq s = c.Match(p);
        for (int32_t i = 0; i < s.hit / 8; ++i) {
          ++hits;
          const std::vector<TokenId> prefix(p.begin(), p.begin() + (i + 1) * 8);
          ASSERT_EQ(content[s.ids()[static_cast<size_t>(i)]], prefix);
        }
        ASSERT_TRUE(c.Grow(s));
        c.Commit(s);
        for (int32_t i = 0; i < 2; ++i) {
          const PageId page = s.ids()[static_cast<size_t>(i)];
          const std::vector<TokenId> prefix(p.begin(), p.begin() + (i + 1) * 8);
          const auto [it, fresh] = content.emplace(page, prefix);
          ASSERT_EQ(it->second, prefix) << "page " << page << " is shared by different prefixes";
        }
        live.push_back(std::move(s));
      }
    }
    std::vector<const SequenceTables*> tables;
    for (const auto& s : live) tables.push_back(&s.tables);
    EXPECT_TRUE(c.manager.Audit(tables).ok()) << c.manager.Audit(tables);
    // Of 64 first pages, as many are indexed as the cut hash has values; each may have one child
    // per value. Only prompts that were indexed hit in the second round.
    if (bits == 128) {
      EXPECT_EQ(hits, 128);
    } else {
      EXPECT_GT(hits, 0);
      EXPECT_LE(hits, 2 * (1 << bits));
      EXPECT_GT(c.manager.stats().collisions, 0);
    }
  }
}

// A collision leaves that page and all after it private; taking it back lets the sequence seal
// again.
TEST(BlockManager, ACollisionKeepsLaterPagesPrivateUntilItIsTakenBack) {
  Cache c(20, 8, {.hash_bits = 0});
  const Cache::Seq first = c.Run(Text(9));
  Cache::Seq s = c.Run(Text(24, 500));
  EXPECT_TRUE(s.tables.chain_broken);
  for (const PageId page : s.ids()) EXPECT_FALSE(c.pool().IsSealed(page));
  c.Audit({&first, &s});
  c.manager.Truncate(s.tables, 4);
  s.tokens.resize(4);
  s.chain.clear();
  s.computed = 4;
  EXPECT_FALSE(s.tables.chain_broken);
  c.Audit({&first, &s});
  // The same with another first page: the sequence ends up on the page that is known.
  c.manager.Truncate(s.tables, 0);
  s.tokens = Text(9);
  s.computed = 0;
  ASSERT_TRUE(c.Grow(s));
  c.Commit(s);
  EXPECT_EQ(s.ids()[0], first.ids()[0]);
  c.Audit({&first, &s});
}

// A06: the last token is always left to compute, and the chain goes on from a hit.
TEST(BlockManager, AWhollyCachedPromptLeavesSomethingToCompute) {
  Cache c(40, 16);
  const auto text = Text(48);
  const auto prefix = [&](int32_t n) {
    return std::vector<TokenId>(text.begin(), text.begin() + n);
  };
  for (int i = 0; i < 3; ++i) EXPECT_EQ(c.Run(prefix(32)).hit, i == 0 ? 0 : 16);
  EXPECT_EQ(c.Run(prefix(48)).hit, 32);
  EXPECT_EQ(c.Run(prefix(48)).hit, 32);
  const std::pair<int32_t, int32_t> kCases[] = {{31, 16}, {33, 32}, {16, 0},  {17, 16},
                                                {1, 0},   {32, 16}, {47, 32}, {48, 32}};
  for (const auto& [len, hit] : kCases) EXPECT_EQ(c.Run(prefix(len)).hit, hit) << len;
  EXPECT_EQ(c.Match({}).hit, 0);
  // The page that was computed again was recognised as the known one.
  EXPECT_EQ(c.pool().num_cached(), 3);
  EXPECT_EQ(c.pool().num_blank(), 37);
}

// A09: prompts that are prefixes of one text, in three orders, while one sequence still writes into
// its last page: a hit is whole pages of a finished computation.
TEST(BlockManager, OnlyFullPagesAreFound) {
  Cache c(200, 8);
  const auto text = Text(50);
  Cache::Seq decoding = c.Run(Text(13));
  int32_t longest = 13;  // computed of the text so far
  std::vector<int32_t> lengths(50);
  std::iota(lengths.begin(), lengths.end(), 1);
  std::mt19937 rng(3);
  for (int order = 0; order < 3; ++order) {
    if (order == 1) std::reverse(lengths.begin(), lengths.end());
    if (order == 2) std::shuffle(lengths.begin(), lengths.end(), rng);
    for (const int32_t len : lengths) {
      const Cache::Seq s = c.Run({text.begin(), text.begin() + len});
      EXPECT_EQ(s.hit, std::min(longest, len - 1) / 8 * 8) << len;
      longest = std::max(longest, len);
      ASSERT_TRUE(c.Decode(decoding, 9000 + len));
    }
  }
}

// A10: a flush while sequences run takes nothing from them, and is a miss for the next one.
TEST(BlockManager, FlushDuringRunningRequests) {
  Cache c(60, 8);
  const auto prefix = Text(24);
  Cache::Seq idle = c.Run(Join(prefix, {1}));
  idle.tables = {};
  std::vector<Cache::Seq> running;
  for (int i = 0; i < 8; ++i) running.push_back(c.Run(Join(prefix, {50 + i})));
  EXPECT_EQ(running[7].hit, 24);
  const auto before = running[3].pages();
  c.manager.Flush();
  EXPECT_EQ(c.pool().num_cached(), 0);
  EXPECT_EQ(c.pool().num_active(), 3 + 8);
  EXPECT_EQ(running[3].pages(), before);
  EXPECT_EQ(c.Match(Join(prefix, {1})).hit, 0);
  // They go on, alone: nothing of what they hold or make is found under the old prefix ...
  for (Cache::Seq& s : running) {
    for (int i = 0; i < 20; ++i) ASSERT_TRUE(c.Decode(s, 7));
  }
  EXPECT_EQ(c.Match(Join(Join(prefix, {50}), Text(20, 7))).hit, 0);
  // ... while a sequence that came after the flush is found.
  const Cache::Seq after = c.Run(Join(prefix, {99}));
  EXPECT_EQ(c.Match(Join(prefix, {1})).hit, 24);
  std::vector<const SequenceTables*> live = {&after.tables};
  for (const auto& s : running) live.push_back(&s.tables);
  EXPECT_TRUE(c.manager.Audit(live).ok()) << c.manager.Audit(live);
  running.clear();
  EXPECT_EQ(c.pool().num_active(), 4);
}

// A10: with caching off (roots that are not kept) nothing is ever hit, and nothing stays.
TEST(BlockManager, PrivateRootsLeaveNothingBehind) {
  Cache c(40, 8);
  const auto prompt = Text(25);
  for (int i = 0; i < 50; ++i) {
    const RootId mine = c.manager.InternRoot("request " + std::to_string(i), /*keep=*/false);
    Cache::Seq s = c.Run(prompt, mine);
    EXPECT_EQ(s.hit, 0);
    // Branches of the request share while they live, even after one was computed again.
    Cache::Seq again = c.Run(prompt, mine);
    EXPECT_EQ(again.hit, 24);
    s.tables = {};
    EXPECT_EQ(c.Match(prompt, mine).hit, 24);
    c.Audit({&again});
    again.tables = {};
    EXPECT_EQ(c.pool().num_cached(), 0);
    EXPECT_EQ(c.pool().num_blank(), 40);
  }
  EXPECT_EQ(c.Match(prompt).hit, 0);
}

// B01: three requests with beams that are forked and pruned; at every step the references in tables
// are the reference counts, and at the end nothing is used.
TEST(BlockManager, BeamsForkAndPrune) {
  Cache c(400, 16);
  std::mt19937 rng(5);
  std::vector<std::vector<Cache::Seq>> requests;
  for (int r = 0; r < 3; ++r) {
    requests.emplace_back();
    requests[static_cast<size_t>(r)].push_back(c.Run(Text(10 * 16 + 3, 1000 * r)));
  }
  for (int step = 0; step < 60; ++step) {
    if (step == 10) requests[1].clear();  // cancelled
    for (auto& beams : requests) {
      if (beams.empty()) continue;
      const size_t width = step < 30 ? 4 : 8;
      std::vector<Cache::Seq> next;
      for (size_t i = 0; i < width; ++i) next.push_back(c.Fork(beams[rng() % beams.size()]));
      beams = std::move(next);
      for (auto& beam : beams) ASSERT_TRUE(c.Decode(beam, static_cast<TokenId>(rng() % 3)));
    }
    std::vector<const SequenceTables*> live;
    std::map<PageId, int32_t> references;
    for (const auto& beams : requests) {
      for (const auto& beam : beams) {
        live.push_back(&beam.tables);
        for (const PageId page : beam.ids()) ++references[page];
      }
    }
    for (const auto& [page, n] : references) ASSERT_EQ(c.pool().refs(page), n);
    ASSERT_EQ(c.pool().num_active(), references.size());
    ASSERT_TRUE(c.manager.Audit(live).ok()) << c.manager.Audit(live);
  }
  EXPECT_GT(c.manager.stats().copies, 100);
  requests.clear();
  EXPECT_EQ(c.pool().num_active(), 0);
}

// B06: lengths at and around a page border, prefilled by chunks of 4: at idle free + cached =
// total.
TEST(BlockManager, PageBordersLeaveExactCounts) {
  for (const int32_t total : {8, 15, 16, 17, 205}) {
    Cache c(30, 8);
    Cache::Seq s = c.Match(Text(5));
    for (int32_t n = 0; n < total;) {
      n = std::min(total, n + (n < 5 ? 4 : 1));
      s.tokens = Text(n);
      ASSERT_TRUE(c.Grow(s));
      c.Commit(s);
      EXPECT_EQ(c.pool().num_active(), (n + 7) / 8);
    }
    s.tables = {};
    EXPECT_EQ(c.pool().num_active(), 0);
    EXPECT_EQ(c.pool().num_cached(), total / 8);
    EXPECT_EQ(c.pool().num_blank() + c.pool().num_cached(), 30);
  }
}

// B10: P of 4 pages is cached and idle; Q needs 6 pages. In a pool of 10 both fit in either order;
// with 9, P's hit leaves Q waiting, and Q first costs P its last page.
TEST(BlockManager, AHitTakesItsPagesOffTheFreeList) {
  const auto p_tokens = Text(4 * 8 + 1);
  const auto q_tokens = Text(6 * 8, 5000);
  for (const int32_t num_pages : {10, 9}) {
    for (const bool q_first : {false, true}) {
      SCOPED_TRACE(testing::Message() << num_pages << " pages, Q first: " << q_first);
      Cache c(num_pages, 8);
      c.Run(p_tokens).tables = {};
      ASSERT_EQ(c.pool().num_cached(), 4);
      if (q_first) {
        Cache::Seq q = c.Match(q_tokens);
        ASSERT_TRUE(c.Grow(q));
        Cache::Seq p = c.Match(p_tokens);
        EXPECT_EQ(p.hit, num_pages == 10 ? 32 : 24);
        EXPECT_EQ(c.pool().stats().dropped[0], 10 - num_pages);
        EXPECT_FALSE(c.Grow(p));  // no page left for its last token
        for (const PageId page : p.ids()) {
          EXPECT_EQ(std::count(q.ids().begin(), q.ids().end(), page), 0);
        }
        c.Audit({&p, &q});
        q.tables = {};
        EXPECT_TRUE(c.Grow(p));
        c.Audit({&p, &q});
      } else {
        Cache::Seq p = c.Match(p_tokens);
        EXPECT_EQ(p.hit, 32);
        Cache::Seq q = c.Match(q_tokens);
        EXPECT_EQ(c.Grow(q), num_pages == 10);
        EXPECT_EQ(q.ids().size(), num_pages == 10 ? 6 : 0);
        c.Audit({&p, &q});
        EXPECT_EQ(c.pool().stats().dropped[0], 0);
      }
    }
  }
}

}  // namespace
}  // namespace quire
