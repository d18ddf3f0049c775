// tests/scheduler_cases_test.cc -- bugs that other engines had, by their case ids (A01, B02, ...),
// at the sizes in which they were reported. The fake executor checks every cache read.
#include <gtest/gtest.h>

#include <random>

#include "tests/scheduler_harness.h"

namespace quire::sched_test {
namespace {

std::vector<TokenId> operator+(std::vector<TokenId> a, const std::vector<TokenId>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

HarnessOptions Blocks16(int32_t num_pages) {
  HarnessOptions o;
  o.num_pages = num_pages;
  o.block_size = 16;
  return o;
}

// 32 equal beginnings in one step: one computes them, the others share what it is about to write,
// behind it in the same batch. The executor checks that nobody reads before it is written.
TEST(SchedulerCases, A01_APrefixIsComputedOnceAndReadBehindItsWriter) {
  HarnessOptions o = Blocks16(400);
  o.scheduler.max_num_batched_tokens = 8192;
  Harness h(o);
  for (int32_t round = 0; round < 20; ++round) {
    for (int32_t i = 0; i < 32; ++i) h.Submit(Iota(1, 128) + Iota(50 + i, 5), 16);
    ASSERT_TRUE(h.Step());
    ASSERT_EQ(h.batch().seqs.size(), 32u) << "all in one step";
    ASSERT_EQ(h.batch().num_tokens, 133 + 31 * 5);
    ASSERT_TRUE(h.RunUntilIdle());
    h.blocks().Flush();
  }
  EXPECT_EQ(h.stats().prefix_hit_tokens, 20 * 31 * 128);
  EXPECT_EQ(h.blocks().stats().in_step_tokens, 20 * 31 * 128);
  h.ExpectOutputsAsSolo();
  h.ExpectIdleAndClean();
}

// 64 prompts of two blocks, each twice, with the hash cut to nothing and to four bits.
TEST(SchedulerCases, A03_CollisionsChangeNoOutput) {
  for (const int32_t bits : {0, 4, 128}) {
    SCOPED_TRACE(bits);
    HarnessOptions o = Blocks16(600);
    o.blocks.hash_bits = bits;
    Harness h(o);
    std::mt19937 rng(3);
    std::vector<std::vector<TokenId>> prompts;
    for (int32_t i = 0; i < 64; ++i) {
      std::vector<TokenId> p;
      while (p.size() < 33) p.push_back(static_cast<TokenId>(rng() % kVocab));
      // Every other one has the block of the one before it, behind another first block.
      if (i % 2 == 1) std::copy(prompts.back().begin() + 16, prompts.back().end(), p.begin() + 16);
      prompts.push_back(std::move(p));
    }
    for (int32_t round = 0; round < 2; ++round) {
      for (const auto& p : prompts) h.Submit(p, 8);
      ASSERT_TRUE(h.RunUntilIdle());
    }
    int64_t whole = 0;
    for (const auto& [id, seen] : h.clients().all()) whole += seen.stats.cached_tokens == 32;
    if (bits == 128) {
      EXPECT_EQ(whole, 64);
    } else {
      EXPECT_GT(h.blocks().stats().collisions, 0);
      EXPECT_LE(whole, 1 << bits);
    }
    h.ExpectOutputsAsSolo();
    h.ExpectIdleAndClean();
  }
}

TEST(SchedulerCases, A04_ResumedTokensAreNotHits) {
  HarnessOptions o = Blocks16(20);
  Harness h(o);
  std::mt19937 rng(4);
  for (int32_t i = 0; i < 40; ++i) {
    std::vector<TokenId> prompt = {i};  // no two share their first token
    while (prompt.size() < 60) prompt.push_back(static_cast<TokenId>(rng() % kVocab));
    h.Submit(std::move(prompt), 100);
  }
  ASSERT_TRUE(h.RunUntilIdle());
  EXPECT_GT(h.stats().preemptions, 10);
  EXPECT_GT(h.stats().resume_hit_tokens, 0);
  EXPECT_EQ(h.stats().prefix_hit_tokens, 0);
  EXPECT_EQ(h.stats().prefix_query_tokens, 40 * 60);
  for (const auto& [id, seen] : h.clients().all()) EXPECT_EQ(seen.stats.cached_tokens, 0);
  h.ExpectOutputsAsSolo();
  h.ExpectIdleAndClean();
}

TEST(SchedulerCases, A06_WhollyCachedPromptLeavesATokenToCompute) {
  Harness h(Blocks16(64));
  const std::vector<TokenId> text = Iota(9, 48);
  const auto cached = [&](int32_t length) {
    const RequestId id = h.Submit({text.begin(), text.begin() + length}, 4);
    EXPECT_TRUE(h.RunUntilIdle());
    EXPECT_LT(h.seen(id).stats.cached_tokens, length);
    return h.seen(id).stats.cached_tokens;
  };
  EXPECT_EQ(cached(32), 0);
  EXPECT_EQ(cached(32), 31) << "a page is copied so far as it is of use";
  EXPECT_EQ(cached(32), 31);
  EXPECT_EQ(cached(48), 32);
  EXPECT_EQ(cached(48), 47);
  EXPECT_EQ(cached(31), 30);
  EXPECT_EQ(cached(33), 32);
  EXPECT_EQ(cached(24), 16) << "seven tokens of sixteen are not worth a copy";
  EXPECT_EQ(cached(16), 15);
  EXPECT_EQ(cached(17), 16);
  EXPECT_EQ(cached(1), 0);
  h.ExpectOutputsAsSolo();
}

TEST(SchedulerCases, A09_OnlyFullPagesAreFound) {
  Harness h(Blocks16(64));
  const std::vector<TokenId> text = Iota(3, 50);
  // An earlier request decodes into its own last page all the while.
  const RequestId busy = h.Submit(Iota(3, 40), 1000);
  std::vector<int32_t> lengths;
  for (int32_t i = 1; i <= 50; ++i) lengths.push_back(i);
  for (int32_t i = 50; i >= 1; --i) lengths.push_back(i);
  std::mt19937 rng(9);
  std::shuffle(lengths.begin() + 50, lengths.end(), rng);
  int32_t hits = 0;
  for (const int32_t length : lengths) {
    const RequestId id = h.Submit({text.begin(), text.begin() + length}, 2);
    while (!h.seen(id).done) ASSERT_TRUE(h.Step());
    const int32_t cached = h.seen(id).stats.cached_tokens;
    EXPECT_TRUE(cached % 16 == 0 || cached == length - 1) << cached << " of " << length;
    EXPECT_LT(cached, length);
    hits += h.seen(id).stats.cached_tokens > 0;
  }
  EXPECT_GT(hits, 50);
  h.Cancel(busy);
  h.ExpectOutputsAsSolo();
  h.ExpectIdleAndClean();
}

// 50 prompts with one prefix, eight at a time: without caching, with a tier of no, one and two
// slots behind a pool that nearly nothing stays in, and with resets in the middle of it.
TEST(SchedulerCases, A10_LittleOrNoCapacityForPrefixes) {
  for (const bool caching : {false, true}) {
    for (const int32_t slots : {0, 1, 2}) {
      for (const bool resets : {false, true}) {
        SCOPED_TRACE(fmt::format("caching {} slots {} resets {}", caching, slots, resets));
        HarnessOptions o = Blocks16(24);
        o.num_host = slots;
        o.scheduler.enable_prefix_caching = caching;
        o.scheduler.max_num_seqs = 8;
        Harness h(o);
        for (int32_t i = 0; i < 50; ++i) h.Submit(Iota(3, 40) + Iota(60 + 3 * i, 5), 12);
        for (int32_t step = 0; h.Step(); ++step) {
          if (!resets || step % 7 != 3) continue;
          const int32_t used = h.pool().num_active();
          h.blocks().Flush();
          EXPECT_EQ(h.pool().num_active(), used) << "a reset takes nothing from who runs";
          EXPECT_EQ(h.pool().num_cached(), 0);
          EXPECT_EQ(h.blocks().MatchPrefix(h.blocks().InternRoot(""), Iota(3, 40), {}).num_tokens,
                    0);
        }
        EXPECT_EQ(h.stats().prefix_hit_tokens > 0, caching);
        h.ExpectOutputsAsSolo();
        h.ExpectIdleAndClean();
      }
    }
  }
}

// With branches in the place of beams: forks of a large prompt, ends at different times, a cancel.
TEST(SchedulerCases, B01_ForkedPromptIsFreedOnce) {
  HarnessOptions o = Blocks16(300);
  o.scheduler.enable_prefix_caching = false;
  Harness h(o);
  std::vector<RequestId> ids;
  for (const int32_t n : {4, 8, 8}) {
    Request r = h.Make(Iota(n, 163), 60, n);
    for (TokenId t = 0; t < kVocab; t += 40) r.stop.stop_token_ids.push_back(t);
    ids.push_back(h.Submit(std::move(r)));
  }
  for (int32_t i = 0; i < 10; ++i) ASSERT_TRUE(h.Step());
  h.Cancel(ids[1]);
  ASSERT_TRUE(h.RunUntilIdle());
  EXPECT_EQ(h.stats().forks, 3 + 7 + 7);
  EXPECT_GE(h.stats().page_copies, 3 + 7 + 7);
  h.ExpectOutputsAsSolo();
  h.ExpectIdleAndClean();
  EXPECT_EQ(h.pool().num_blank(), 300);
}

TEST(SchedulerCases, B02_NoPageIsLostOverThousandsOfRequests) {
  HarnessOptions o = Blocks16(8);
  o.scheduler.enable_prefix_caching = false;
  Harness h(o);
  std::mt19937 rng(2);
  const auto pick = [&](int32_t low, int32_t high) {
    return low + static_cast<int32_t>(rng() % static_cast<uint32_t>(high - low + 1));
  };
  for (int32_t i = 0; i < 2000; ++i) {
    Request r = h.Make(Iota(pick(0, 200), pick(1, 40)), pick(1, 20));
    const int32_t how = pick(0, 3);  // length, eos, stop string, cancel
    if (how == 1) {
      for (TokenId t = 0; t < kVocab; t += 5) r.stop.eos_token_ids.push_back(t);
    }
    const RequestId id = h.Submit(std::move(r));
    if (how >= 2) {
      for (int32_t k = pick(1, 20); k > 0; --k) h.Step();
      const auto said = static_cast<int32_t>(h.seen(id).outputs[0].size());
      if (how == 2) {
        h.Apply(Finish{.request = id, .num_output_tokens = pick(1, std::max(1, said))});
      } else {
        h.Cancel(id);
      }
    }
    ASSERT_TRUE(h.RunUntilIdle());
    ASSERT_EQ(h.pool().num_active(), 0);
    ASSERT_EQ(h.pool().num_blank(), 8);
  }
  EXPECT_GT(h.stats().num_finished(FinishReason::kStop), 300);
  EXPECT_GT(h.stats().num_finished(FinishReason::kLength), 300);
  EXPECT_GT(h.stats().num_finished(FinishReason::kCancelled), 100);
  const RequestId whole = h.Submit(Iota(1, 100), 28);  // 128 tokens: the whole pool
  ASSERT_TRUE(h.RunUntilIdle());
  EXPECT_EQ(h.seen(whole).finish[0], FinishReason::kLength);
  h.ExpectOutputsAsSolo();
  h.ExpectIdleAndClean();
}

TEST(SchedulerCases, B03_CancelledBranchesLeaveNoParentBehind) {
  HarnessOptions o = Blocks16(200);
  Harness h(o);
  for (int32_t i = 0; i < 1000; ++i) {
    Request r = h.Make(Iota(i, 20), 30, 4);
    r.id = 1 + static_cast<RequestId>(i % 3);  // each id can be used again
    h.Submit(r);
    ASSERT_TRUE(h.Step());
    ASSERT_EQ(h.seen(r.id).num_token_events, 4);
    h.Cancel(r.id);
    ASSERT_TRUE(h.scheduler().idle());
    ASSERT_EQ(h.pool().num_active(), 0);
  }
  for (RequestId id = 4; id < 14; ++id) {
    Request r = h.Make(Iota(static_cast<TokenId>(id), 20), 30);
    r.id = id;
    h.Submit(r);
  }
  ASSERT_TRUE(h.RunUntilIdle());
  EXPECT_EQ(h.stats().num_finished(FinishReason::kCancelled), 1000);
  EXPECT_EQ(h.stats().num_finished(FinishReason::kLength), 10);
  h.ExpectOutputsAsSolo();
  h.ExpectIdleAndClean();
}

TEST(SchedulerCases, B04_BranchesEndAtDifferentTimes) {
  Harness h(Blocks16(64));
  const auto make = [&] {
    Request r = h.Make(Iota(1, 20), 200, 3);
    for (TokenId t = 0; t < kVocab; t += 10) r.stop.stop_token_ids.push_back(t);
    return r;
  };
  const RequestId id = h.Submit(make());
  ASSERT_TRUE(h.RunUntilIdle());
  const Seen& seen = h.seen(id);
  std::set<size_t> lengths;
  int32_t sum = 0;
  for (const auto& output : seen.outputs) {
    lengths.insert(output.size());
    sum += static_cast<int32_t>(output.size());
  }
  EXPECT_EQ(lengths.size(), 3u) << "they are meant to differ";
  EXPECT_EQ(seen.finish, (std::vector<FinishReason>(3, FinishReason::kStop)));
  EXPECT_EQ(seen.stats.completion_tokens, sum);

  const RequestId cancelled = h.Submit(make());
  const auto ended = [&] {
    const auto& finish = h.seen(cancelled).finish;
    return std::count(finish.begin(), finish.end(), FinishReason::kStop);
  };
  while (ended() == 0) ASSERT_TRUE(h.Step());
  h.Cancel(cancelled);
  EXPECT_EQ(ended(), 1);
  EXPECT_EQ(h.stats().num_finished(FinishReason::kCancelled), 1);
  EXPECT_EQ(h.stats().num_finished(FinishReason::kStop), 1);
  EXPECT_EQ(h.pool().num_active(), 0);
  h.ExpectOutputsAsSolo();
  h.ExpectIdleAndClean();
}

TEST(SchedulerCases, B06_EndAtAnyPlaceInAPage) {
  for (const int32_t block_size : {1, 4}) {
    HarnessOptions o;
    o.block_size = block_size;
    o.num_pages = 256;
    o.scheduler.max_num_seqs = 2;
    o.scheduler.max_num_batched_tokens = 4;
    Harness h(o);
    h.Submit(Iota(1, 5), 200);
    ASSERT_TRUE(h.RunUntilIdle());
    for (int32_t total = 15; total <= 21; ++total) h.Submit(Iota(1, 5), total - 5);
    ASSERT_TRUE(h.RunUntilIdle());
    h.ExpectOutputsAsSolo();
    h.ExpectIdleAndClean();
  }
}

TEST(SchedulerCases, B08_PlacesAreNotKeptByWhoGotNoPages) {
  HarnessOptions o = Blocks16(64);
  o.scheduler.max_num_seqs = 4;
  Harness h(o);
  const RequestId large = h.Submit(Iota(1, 900), 60);  // 57 of 64 pages
  h.Step();
  h.Step();
  std::vector<RequestId> queued;
  for (int32_t i = 0; i < 500; ++i) queued.push_back(h.Submit(Iota(i, 200), 20));
  for (int32_t i = 0; i < 5; ++i) ASSERT_TRUE(h.Step());
  EXPECT_EQ(h.stats().running_seqs, 1) << "they fit the places, but not the pages";
  EXPECT_EQ(h.stats().queued_requests, 500);
  for (int32_t i = 0; i < 490; ++i) h.Cancel(queued[static_cast<size_t>(i)]);
  while (!h.seen(large).done) ASSERT_TRUE(h.Step());
  ASSERT_TRUE(h.Step());  // 512 tokens: two prompts and a part of a third
  ASSERT_TRUE(h.Step());
  EXPECT_EQ(h.stats().running_seqs, 4);
  ASSERT_TRUE(h.RunUntilIdle());
  EXPECT_EQ(h.stats().num_finished(FinishReason::kLength), 11);
  h.ExpectOutputsAsSolo();
  h.ExpectIdleAndClean();
}

// P of 4 blocks is cached and idle; Q needs 6 new ones. Both come in one step, in either order, to
// a pool of 10 and of 9.
TEST(SchedulerCases, B10_AHitAndAnEvictionInOneStep) {
  for (const int32_t num_pages : {10, 9}) {
    for (const bool q_first : {false, true}) {
      SCOPED_TRACE(fmt::format("{} pages, Q first: {}", num_pages, q_first));
      HarnessOptions o = Blocks16(num_pages);
      o.scheduler.watermark = 0;
      Harness h(o);
      const std::vector<TokenId> p = Iota(3, 64);
      h.Submit(p, 1);
      ASSERT_TRUE(h.RunUntilIdle());
      ASSERT_EQ(h.pool().num_cached(), 4);
      RequestId ids[2] = {};
      for (int32_t i = 0; i < 2; ++i) {
        const bool is_q = (i == 0) == q_first;
        ids[is_q ? 1 : 0] = is_q ? h.Submit(Iota(100, 90), 6) : h.Submit(p, 1);
      }
      ASSERT_TRUE(h.RunUntilIdle());
      if (!q_first) {
        EXPECT_GE(h.seen(ids[0]).stats.cached_tokens, 48) << "P comes before anything is evicted";
      }
      h.ExpectOutputsAsSolo();
      h.ExpectIdleAndClean();
    }
  }
}

}  // namespace
}  // namespace quire::sched_test
