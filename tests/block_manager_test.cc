// tests/block_manager_test.cc -- what BlockManager promises, one promise per test.
//
// Ids in comments are those of the hard cases (see the table of the tests folder).
#include "paged_cache/block_manager.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <set>

namespace quire {
namespace {

CacheLayout FullLayout(int32_t block_size) {
  return MakeCacheLayout(1, block_size,
                         {{.layer = 0, .key_bytes_per_page = 64, .value_bytes_per_page = 64}})
      .value();
}

std::vector<TokenId> Text(int32_t n, TokenId first = 100) {
  std::vector<TokenId> tokens(static_cast<size_t>(n));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}
std::vector<TokenId> Join(std::vector<TokenId> a, const std::vector<TokenId>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// A manager over one pool of one full group, and the shortest way to run a sequence on it.
struct Cache {
  CacheLayout layout;
  std::vector<PagePool> pools;
  BlockManager manager;
  RootId root;

  Cache(int32_t num_pages, int32_t block_size, const BlockManagerOptions& options = {})
      : layout(FullLayout(block_size)),
        pools(MakePools(num_pages, block_size)),
        manager(layout, pools, options),
        root(manager.InternRoot("")) {}

  static std::vector<PagePool> MakePools(int32_t num_pages, int32_t block_size) {
    std::vector<PagePool> pools;
    pools.emplace_back(num_pages, block_size);
    return pools;
  }
  PagePool& pool() { return pools[0]; }

  struct Seq {
    std::vector<TokenId> tokens;
    std::vector<PrefixHash> chain;
    SequenceTables tables;
    int32_t hit = 0;
    int32_t computed = 0;
    std::span<const PageId> ids() const { return tables.groups[0].ids(); }
    std::vector<PageId> pages() const { return {ids().begin(), ids().end()}; }
  };

  Seq Match(const std::vector<TokenId>& tokens) { return Match(tokens, root); }
  Seq Match(const std::vector<TokenId>& tokens, RootId in) {
    Seq s{.tokens = tokens};
    ExtendChain(tokens, layout.block_size, s.chain);
    PrefixHit hit = manager.MatchPrefix(in, tokens, s.chain);
    s.tables = std::move(hit.tables);
    s.hit = s.computed = hit.num_tokens;
    return s;
  }
  bool Grow(Seq& s) {
    return manager.Grow(s.tables, s.computed, static_cast<int32_t>(s.tokens.size()), copies);
  }
  void Commit(Seq& s) {
    s.computed = static_cast<int32_t>(s.tokens.size());
    manager.Commit(s.tables, s.tokens, s.computed, s.chain);
  }
  Seq Run(const std::vector<TokenId>& tokens) { return Run(tokens, root); }
  Seq Run(const std::vector<TokenId>& tokens, RootId in) {
    Seq s = Match(tokens, in);
    EXPECT_TRUE(Grow(s));
    Commit(s);
    return s;
  }
  bool Decode(Seq& s, TokenId token) {
    s.tokens.push_back(token);
    if (!Grow(s)) {
      s.tokens.pop_back();
      return false;
    }
    Commit(s);
    return true;
  }
  Seq Fork(const Seq& s) { return {s.tokens, s.chain, manager.Fork(s.tables), s.hit, s.computed}; }
  void Audit(std::initializer_list<const Seq*> live) {
    std::vector<const SequenceTables*> tables;
    for (const Seq* s : live) tables.push_back(&s->tables);
    const absl::Status status = manager.Audit(tables);
    EXPECT_TRUE(status.ok()) << status;
  }
  std::vector<PageCopy> copies;
};

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

// C3: k owners of a tail: at most k - 1 copies, each at its owner's first write; parent included.
TEST(BlockManager, ATailIsCopiedAtTheFirstWriteOfAllOwnersButTheLast) {
  Cache c(40, 16);
  Cache::Seq parent = c.Run(Text(2 * 16 + 5));
  std::vector<Cache::Seq> owners;
  for (int i = 0; i < 3; ++i) owners.push_back(c.Fork(parent));
  owners.push_back(std::move(parent));
  EXPECT_TRUE(c.copies.empty());
  EXPECT_EQ(c.pool().num_active(), 3);
  const PageId tail = owners[0].ids()[2];
  for (size_t i = 0; i < 4; ++i) {
    ASSERT_TRUE(c.Decode(owners[i], 7));
    ASSERT_TRUE(c.Decode(owners[i], 7));  // no second copy
    EXPECT_EQ(c.copies.size(), std::min<size_t>(i + 1, 3));
    c.Audit({&owners[0], &owners[1], &owners[2], &owners[3]});
  }
  EXPECT_EQ(owners[3].ids()[2], tail);
  std::set<PageId> tails;
  for (const auto& o : owners) tails.insert(o.ids()[2]);
  EXPECT_EQ(tails.size(), 4);
  for (const PageCopy& copy : c.copies) EXPECT_EQ(copy.src, tail);
  EXPECT_EQ(c.manager.stats().copies, 3);
}

TEST(BlockManager, AnOwnerThatLeavesNeedsNoCopy) {
  Cache c(10, 16);
  Cache::Seq a = c.Run(Text(5));
  Cache::Seq b = c.Fork(a);
  a.tables = {};
  ASSERT_TRUE(c.Decode(b, 7));
  EXPECT_TRUE(c.copies.empty());
}

TEST(BlockManager, AForkThatCannotBeCopiedChangesNothing) {
  Cache c(3, 8);
  Cache::Seq a = c.Run(Text(20));
  Cache::Seq b = c.Fork(a);
  const auto pages = b.pages();
  EXPECT_FALSE(c.Decode(b, 1));
  EXPECT_EQ(b.pages(), pages);
  EXPECT_TRUE(c.copies.empty());
  c.Audit({&a, &b});
}

// A sealed page with one owner is written in place and no longer found; what came after it,
// neither.
TEST(BlockManager, TruncatingIntoASealedPageOfOnesOwn) {
  Cache c(10, 8);
  Cache::Seq s = c.Run(Text(24));
  const auto pages = s.pages();
  c.manager.Truncate(s.tables, 12);
  s.tokens.resize(12);
  s.chain.resize(1);
  s.computed = 12;
  EXPECT_EQ(c.pool().num_cached(), 1);  // page 2: still a good prefix
  EXPECT_EQ(c.Match(Text(25)).hit, 24);
  ASSERT_TRUE(c.Decode(s, 7));
  EXPECT_EQ(s.pages(), (std::vector<PageId>{pages[0], pages[1]}));
  EXPECT_TRUE(c.copies.empty());
  EXPECT_EQ(c.Match(Text(25)).hit, 8);
  EXPECT_EQ(c.pool().num_cached(), 0);  // page 2 had become useless
  EXPECT_EQ(c.manager.stats().unsealed_writes, 1);
  c.Audit({&s});
}

// A sealed page that another sequence holds stays as it is.
TEST(BlockManager, TruncatingIntoASharedSealedPage) {
  Cache c(10, 8);
  Cache::Seq s = c.Run(Text(24));
  const Cache::Seq other = c.Match(Text(17));
  c.manager.Truncate(s.tables, 12);
  s.tokens.resize(12);
  s.chain.resize(1);
  s.computed = 12;
  ASSERT_TRUE(c.Decode(s, 7));
  EXPECT_EQ(s.ids()[0], other.ids()[0]);
  EXPECT_NE(s.ids()[1], other.ids()[1]);
  ASSERT_EQ(c.copies.size(), 1);
  EXPECT_EQ(c.copies[0].src, other.ids()[1]);
  EXPECT_EQ(c.copies[0].dst, s.ids()[1]);
  EXPECT_EQ(c.Match(Text(25)).hit, 24);
  c.Audit({&s, &other});
}

// Truncate is exact: tables and counts are as if the tokens had never been there.
TEST(BlockManager, TruncateLeavesNoTrace) {
  for (int32_t len = 0; len <= 40; ++len) {
    for (int32_t drafts = 0; drafts <= 20; ++drafts) {
      Cache with(20, 8), without(20, 8);
      Cache::Seq a = with.Match(Text(len)), b = without.Match(Text(len));
      ASSERT_TRUE(without.Grow(b));
      without.Commit(b);
      ASSERT_TRUE(with.manager.Grow(a.tables, 0, len + drafts, with.copies));
      with.manager.Truncate(a.tables, len);
      with.Commit(a);
      ASSERT_EQ(a.pages().size(), b.pages().size());
      ASSERT_EQ(a.chain, b.chain);
      ASSERT_EQ(with.pool().num_blank(), without.pool().num_blank());
      ASSERT_EQ(a.tables.num_sealed, b.tables.num_sealed);
      with.Audit({&a});
    }
  }
}

TEST(BlockManager, RootsAreComparedExactly) {
  Cache c(40, 8);
  using std::string_literals::operator""s;
  const std::string keys[] = {"", "a", "b", "a\0"s, "a\0x"s, "a\0y"s, std::string(3000, 'x')};
  std::vector<Cache::Seq> seqs;
  std::set<RootId> ids;
  for (const std::string& key : keys) {
    const RootId id = c.manager.InternRoot(key);
    EXPECT_TRUE(ids.insert(id).second);
    EXPECT_EQ(c.manager.InternRoot(key), id);
    EXPECT_EQ(c.Match(Text(17), id).hit, 0);
    seqs.push_back(c.Run(Text(17), id));
  }
  for (const RootId id : ids) EXPECT_EQ(c.Match(Text(17), id).hit, 16);
}

// A stream of unique salts, cached or not, needs no more memory than the pool and a constant.
TEST(BlockManager, AStreamOfRootsIsForgotten) {
  for (const bool keep : {false, true}) {
    Cache c(16, 8);
    for (int i = 0; i < 20'000; ++i) {
      const RootId id = c.manager.InternRoot("salt " + std::to_string(i), keep);
      if (i % 2 == 0) c.Run(Text(9), id);  // the others are never used
      ASSERT_LE(c.manager.num_roots(), PrefixIndex::kMaxIdleRoots + 16 + 2);
      ASSERT_LE(c.manager.num_prefix_nodes(), PrefixIndex::kMaxIdleRoots + 2 * 16 + 2);
    }
    c.Audit({});
    // One page short of all: the last one's tail was freed unsealed.
    EXPECT_EQ(c.pool().num_cached(), keep ? 15 : 0);
  }
}

// An id that was kept for too long is safe: no crash, nobody else's pages.
TEST(BlockManager, AForgottenRootIdIsEmptyAndPrivate) {
  Cache c(16, 8);
  const RootId old = c.manager.InternRoot("old");
  for (int i = 0; i < 3000; ++i) c.manager.InternRoot("salt " + std::to_string(i));
  const RootId fresh = c.manager.InternRoot("old");
  EXPECT_NE(fresh, old);
  const Cache::Seq a = c.Run(Text(17), fresh);
  Cache::Seq b = c.Run(Text(17), old);
  EXPECT_EQ(b.hit, 0);
  EXPECT_EQ(c.Match(Text(17), old).hit, 16);
  EXPECT_NE(c.manager.InternRoot(""), old);  // having no key is not having the empty key
  c.Audit({&a, &b});
  b.tables = {};
  EXPECT_EQ(c.pool().num_cached(), 0);
}

// Roots in use are kept however many others come and go.
TEST(BlockManager, RootsInUseStay) {
  Cache c(16, 8);
  const RootId id = c.manager.InternRoot("mine");
  const Cache::Seq s = c.Run(Text(17), id);
  SequenceTables empty = c.manager.NewTables(c.manager.InternRoot("empty"));
  for (int i = 0; i < 3000; ++i) c.manager.InternRoot("salt " + std::to_string(i));
  EXPECT_EQ(c.manager.InternRoot("mine"), id);
  EXPECT_EQ(c.manager.InternRoot("empty"), empty.root);
}

// The oldest idle prefix goes first, from its end; a hit makes it young.
TEST(BlockManager, EvictsTheLeastRecentlyUsedFromTheEnd) {
  Cache c(6, 8);
  c.Run(Text(24, 100)).tables = {};
  c.Run(Text(24, 200)).tables = {};
  EXPECT_EQ(c.Match(Text(25, 100)).hit, 24);  // young again
  const Cache::Seq s = c.Run(Text(16, 300));
  EXPECT_EQ(c.Match(Text(25, 200)).hit, 8);
  EXPECT_EQ(c.Match(Text(25, 100)).hit, 24);
  c.Audit({&s});
}

TEST(BlockManager, WriteSlotsAndReadRows) {
  Cache c(10, 8);
  Cache::Seq s = c.Match(Text(20));
  ASSERT_TRUE(c.Grow(s));
  std::vector<int64_t> slots(20);
  c.manager.FillWriteSlots(s.tables, 0, 0, slots);
  for (int32_t pos = 0; pos < 20; ++pos) {
    EXPECT_EQ(slots[static_cast<size_t>(pos)], s.ids()[static_cast<size_t>(pos / 8)] * 8 + pos % 8);
  }
  std::vector<PageId> row(5, -1);
  c.manager.FillReadRow(s.tables, 0, row);
  EXPECT_EQ(row, (std::vector<PageId>{s.ids()[0], s.ids()[1], s.ids()[2], 0, 0}));
}

using BlockManagerDeathTest = testing::Test;
TEST(BlockManagerDeathTest, AWriteIntoASharedOrSealedPageIsFatal) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  Cache c(10, 8);
  Cache::Seq s = c.Run(Text(12));
  const Cache::Seq fork = c.Fork(s);
  std::vector<int64_t> slots(1);
  EXPECT_DEATH(c.manager.FillWriteSlots(s.tables, 0, 0, slots), "I5: position 0");
  EXPECT_DEATH(c.manager.FillWriteSlots(s.tables, 0, 12, slots), "I5: position 12");
  EXPECT_DEATH(c.manager.FillWriteSlots(s.tables, 0, 16, slots), "I5: position 16");
}

TEST(BlockManager, AuditSeesATableItIsNotTold) {
  Cache c(10, 8);
  const Cache::Seq s = c.Run(Text(12));
  EXPECT_EQ(Message(c.manager.Audit({})), "I2: page 1 has refs=1, tables hold 0");
}

// C5, by hand: 100 prompt tokens are 6 full pages and a part; 50 new ones end in page 10 of 16.
TEST(BlockManager, WorstCasePagesByHand) {
  Cache c(10, 16);
  EXPECT_EQ(c.manager.WorstCasePages(100, 50, 1), PageNeed{10});
  EXPECT_EQ(c.manager.WorstCasePages(100, 50, 4), PageNeed{6 + 4 * 4});
  EXPECT_EQ(c.manager.WorstCasePages(96, 0, 3), PageNeed{6});
  EXPECT_EQ(c.manager.WorstCasePages(96, 1, 3), PageNeed{6 + 3});
  EXPECT_EQ(c.manager.WorstCasePages(0, 1, 1), PageNeed{1});
  EXPECT_EQ(c.manager.WorstCasePages(2'000'000'000, 100'000'000, 100), PageNeed{750'000'000});
  EXPECT_EQ(c.manager.WorstCasePages(0, 2'000'000'000, 1000), PageNeed{INT32_MAX});
}

TEST(BlockManager, WorstCasePagesOfWindowsAndSeveralPools) {
  CacheLayout layout;
  layout.groups = {{.group = {CacheKind::kFull, 16, 0}, .pool = 0},
                   {.group = {CacheKind::kSlidingWindow, 16, 100}, .pool = 0},
                   {.group = {CacheKind::kState, 16, 0}, .pool = 1}};
  layout.pools = {{64}, {128}};
  std::vector<PagePool> pools;
  pools.emplace_back(10, 16);
  pools.emplace_back(10, 16);
  const BlockManager m(layout, pools, {.max_step_tokens = 32});
  // The window: 99 tokens before a step's first one and the step's 32 touch at most 10 pages.
  EXPECT_EQ(m.WorstCasePages(1000, 600, 1), (PageNeed{100 + 10, 2}));
  EXPECT_EQ(m.WorstCasePages(1000, 600, 2), (PageNeed{62 + 2 * 38 + 2 * 10, 4}));
  EXPECT_EQ(m.WorstCasePages(20, 10, 1), (PageNeed{2 + 2, 2}));
}

// Two groups of equal tokens never share a page; a hit is served by both (golden trace
// "groups_are_separate" in our terms).
TEST(BlockManager, GroupsAreSeparate) {
  CacheLayout layout;
  layout.block_size = 8;
  layout.groups = {{.group = {CacheKind::kFull, 8, 0}}, {.group = {CacheKind::kFull, 8, 0}}};
  layout.pools = {{64}};
  std::vector<PagePool> pools;
  pools.emplace_back(8, 8);
  BlockManager m(layout, pools);
  const auto tokens = Text(17);
  std::vector<PrefixHash> chain;
  std::vector<PageCopy> copies;
  SequenceTables a = m.NewTables(m.InternRoot(""));
  ASSERT_TRUE(m.Grow(a, 0, 16, copies));
  m.Commit(a, tokens, 16, chain);
  std::set<PageId> pages(a.groups[0].ids().begin(), a.groups[0].ids().end());
  pages.insert(a.groups[1].ids().begin(), a.groups[1].ids().end());
  EXPECT_EQ(pages.size(), 4);
  EXPECT_EQ(pools[0].stats().sealed, 4);
  PrefixHit hit = m.MatchPrefix(a.root, tokens, chain);
  EXPECT_EQ(hit.num_tokens, 16);
  for (size_t g = 0; g < 2; ++g) {
    EXPECT_TRUE(std::equal(a.groups[g].ids().begin(), a.groups[g].ids().end(),
                           hit.tables.groups[g].ids().begin()));
  }
}

// A hybrid: of the sliding group a hit needs the window's pages only, but those all.
TEST(BlockManager, AHitIsWhatEveryGroupCanServe) {
  CacheLayout layout;
  layout.block_size = 8;
  layout.groups = {{.group = {CacheKind::kFull, 8, 0}, .pool = 0},
                   {.group = {CacheKind::kSlidingWindow, 8, 16}, .pool = 1}};
  layout.pools = {{64}, {32}};
  std::vector<PagePool> pools;
  pools.emplace_back(20, 8);
  pools.emplace_back(6, 8);
  BlockManager m(layout, pools);
  const RootId root = m.InternRoot("");
  std::vector<TokenId> tokens = Text(64);
  std::vector<PrefixHash> chain;
  std::vector<PageCopy> copies;
  {
    SequenceTables t = m.NewTables(root);
    for (int32_t n = 8; n <= 64; n += 8) {
      ASSERT_TRUE(m.Grow(t, n - 8, n, copies));
      m.Commit(t, tokens, n, chain);
      EXPECT_LE(pools[1].num_active(), 3);
    }
    EXPECT_EQ(std::count(t.groups[1].ids().begin(), t.groups[1].ids().end(), kNullPage), 6);
  }
  // The sliding pool kept the last 6 of 8 pages: 2 .. 7; the full one all.
  EXPECT_EQ(pools[1].num_cached(), 6);
  const auto hit_of = [&](int32_t n) {
    const std::span<const TokenId> head(tokens.data(), static_cast<size_t>(n));
    return m.MatchPrefix(root, head, chain).num_tokens;
  };
  EXPECT_EQ(hit_of(64), 56);  // pages 5 and 6 are there
  EXPECT_EQ(hit_of(33), 32);  // pages 2 and 3
  EXPECT_EQ(hit_of(32), 0);   // 24 would need page 1, 16 page 0 and 1, 8 page 0
  EXPECT_EQ(hit_of(40), 32);
  const PrefixHit hit = m.MatchPrefix(root, tokens, chain);
  const std::span<const PageId> window = hit.tables.groups[1].ids();
  EXPECT_EQ(std::count(window.begin(), window.end(), kNullPage), 5);
  EXPECT_NE(window[5], kNullPage);
}

// Both groups' hits are held before any page is taken: taking one group's new pages must not evict
// the other group's hit.
TEST(BlockManager, NothingOfAHitIsEvictedByItsOwnGrowth) {
  CacheLayout layout;
  layout.block_size = 8;
  layout.groups = {{.group = {CacheKind::kFull, 8, 0}}, {.group = {CacheKind::kFull, 8, 0}}};
  layout.pools = {{64}};
  std::vector<PagePool> pools;
  pools.emplace_back(6, 8);
  BlockManager m(layout, pools);
  const RootId root = m.InternRoot("");
  const auto tokens = Text(33);
  std::vector<PrefixHash> chain;
  std::vector<PageCopy> copies;
  {
    SequenceTables t = m.NewTables(root);
    ASSERT_TRUE(m.Grow(t, 0, 24, copies));
    m.Commit(t, tokens, 24, chain);
  }
  ASSERT_EQ(pools[0].num_cached(), 6);
  std::vector<PrefixHash> full;
  ExtendChain(tokens, 8, full);
  PrefixHit hit = m.MatchPrefix(root, tokens, full);
  EXPECT_EQ(hit.num_tokens, 24);
  EXPECT_FALSE(m.Grow(hit.tables, 24, 33, copies));
  const SequenceTables* const live[] = {&hit.tables};
  EXPECT_TRUE(m.Audit(live).ok()) << m.Audit(live);
  EXPECT_EQ(pools[0].num_active(), 6);
}

}  // namespace
}  // namespace quire
