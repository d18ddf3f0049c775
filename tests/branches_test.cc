// tests/branches_test.cc -- what beams and trees of drafts do to pages: they are forks and drops of
// tables, which touch no content but that of a tail.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "tests/cache_harness.h"

namespace quire {
namespace {

constexpr int32_t kSize = 8;

// Each step the beams are replaced by forks of some of them, as a beam search reorders; then each
// gets a token. Copies: of tails alone, and one less than there are owners of each.
TEST(Beams, AReorderTouchesOnlyTables) {
  for (const size_t width : {2u, 4u, 8u}) {
    SCOPED_TRACE(width);
    Cache c(400, kSize);
    std::mt19937 rng(static_cast<uint32_t>(width));
    std::vector<Cache::Seq> beams;
    beams.push_back(c.Run(Text(5 * kSize + 3)));
    int64_t total = 0, without_copy = 0;
    for (int step = 0; step < 100; ++step) {
      const int32_t before = c.pool().num_active();
      std::vector<Cache::Seq> next;
      for (size_t i = 0; i < width; ++i) next.push_back(c.Fork(beams[rng() % beams.size()]));
      EXPECT_EQ(c.pool().num_active(), before) << "forks take no page";
      beams = std::move(next);
      EXPECT_LE(c.pool().num_active(), before) << "drops only give back";
      EXPECT_TRUE(c.manager.TakeOps().empty());
      // By what they share before they write.
      std::map<PageId, size_t> owners;
      const bool has_tail = beams[0].computed % kSize != 0;
      for (const Cache::Seq& b : beams) ++owners[b.ids().back()];
      size_t allowed = 0;
      for (const auto& [page, n] : owners) allowed += has_tail ? n - 1 : 0;
      c.copies.clear();
      std::vector<PageId> tails;
      for (Cache::Seq& b : beams) {
        tails.push_back(b.ids().back());
        ASSERT_TRUE(c.Decode(b, static_cast<TokenId>(rng() % 3)));
      }
      EXPECT_EQ(c.copies.size(), allowed);
      EXPECT_LE(c.copies.size(), width - 1);
      for (const PageCopy& copy : c.copies) {
        EXPECT_EQ(std::count(tails.begin(), tails.end(), copy.src) > 0, true) << "a full page";
      }
      total += static_cast<int64_t>(c.copies.size());
      without_copy += !has_tail;
      std::vector<const SequenceTables*> live;
      for (const Cache::Seq& b : beams) live.push_back(&b.tables);
      ASSERT_TRUE(c.manager.Audit(live).ok()) << c.manager.Audit(live);
    }
    EXPECT_GT(total, 30);
    EXPECT_GT(without_copy, 10);
    beams.clear();
    EXPECT_EQ(c.pool().num_active(), 0);
  }
}

// What can be seen of a cache that must not depend on branches that were not taken.
struct Seen {
  int32_t blank, cached, active;
  int64_t refs;
  size_t nodes;
  std::vector<int32_t> hits;
  friend bool operator==(const Seen&, const Seen&) = default;
};

// A tree of drafts, each node a fork that writes its tokens: one path is taken, and all else is as
// if it had never been there.
TEST(DraftTree, PathsNotTakenLeaveNothing) {
  std::mt19937 rng(11);
  const auto random = [&](int32_t n) {
    return static_cast<int32_t>(rng() % static_cast<uint32_t>(n));
  };
  int64_t accepted_in_all = 0, nodes_in_all = 0, copies_in_all = 0;
  for (int round = 0; round < 200; ++round) {
    SCOPED_TRACE(round);
    Cache drafted(300, kSize);
    Cache plain(300, kSize);
    const auto prompt = Text(1 + random(4 * kSize), 100 * round);
    Cache::Seq a = drafted.Run(prompt);
    Cache::Seq b = plain.Run(prompt);
    std::vector<std::vector<TokenId>> not_taken;
    for (int step = 0; step < 6; ++step) {
      // Three levels of up to three children with up to four tokens each.
      std::vector<Cache::Seq> tree;
      tree.push_back(drafted.Fork(a));
      size_t level = 0;
      for (int depth = 0; depth < 3; ++depth) {
        const size_t end = tree.size();
        for (; level < end; ++level) {
          for (int32_t child = random(4); child > 0; --child) {
            Cache::Seq s = drafted.Fork(tree[level]);
            for (int32_t n = 1 + random(4); n > 0; --n) s.tokens.push_back(random(1000));
            // Room, and writes; nothing is sealed, as a draft is not final.
            ASSERT_TRUE(drafted.manager.Grow(
                s.tables, s.computed, static_cast<int32_t>(s.tokens.size()), drafted.copies));
            s.computed = static_cast<int32_t>(s.tokens.size());
            tree.push_back(std::move(s));
            ++nodes_in_all;
          }
        }
      }
      // One of them is right up to some token, and one more token follows.
      const auto leaf = static_cast<size_t>(random(static_cast<int32_t>(tree.size())));
      const int32_t known = a.computed;
      const int32_t accepted = known + random(tree[leaf].computed - known + 1);
      for (const Cache::Seq& s : tree) not_taken.push_back(s.tokens);
      Cache::Seq taken = std::move(tree[leaf]);
      tree.clear();
      drafted.manager.Truncate(taken.tables, accepted);
      taken.tokens.resize(static_cast<size_t>(accepted));
      taken.computed = accepted;
      drafted.manager.Commit(taken.tables, taken.tokens, accepted, taken.chain);
      a = std::move(taken);
      accepted_in_all += accepted - known;

      b.tokens = a.tokens;
      ASSERT_TRUE(plain.Grow(b));
      plain.Commit(b);
      // A token that the model itself says.
      const TokenId said = random(1000);
      ASSERT_TRUE(drafted.Decode(a, said));
      ASSERT_TRUE(plain.Decode(b, said));

      const auto look = [&](Cache& c, const Cache::Seq& s) {
        Seen seen{c.pool().num_blank(), c.pool().num_cached(),        c.pool().num_active(),
                  c.pool().num_refs(),  c.manager.num_prefix_nodes(), {}};
        for (const auto& tokens : not_taken) seen.hits.push_back(c.Match(tokens).hit);
        seen.hits.push_back(c.Match(Join(s.tokens, {1})).hit);
        c.Audit({&s});
        return seen;
      };
      ASSERT_EQ(look(drafted, a), look(plain, b));
      EXPECT_EQ(a.chain, b.chain);
      EXPECT_EQ(a.tables.num_sealed, b.tables.num_sealed);
      EXPECT_EQ(a.ids().size(), b.ids().size());
    }
    copies_in_all += static_cast<int64_t>(drafted.copies.size());
    EXPECT_TRUE(plain.copies.empty());
  }
  EXPECT_GT(accepted_in_all, 200);
  EXPECT_GT(nodes_in_all, 5000);
  EXPECT_GT(copies_in_all, 1000);
}

}  // namespace
}  // namespace quire
