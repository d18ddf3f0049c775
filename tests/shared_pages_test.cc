// tests/shared_pages_test.cc -- how many pages and copies sharing costs, at the sizes in which it
// is promised. The fake executor checks every cache read on the way.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <random>
#include <set>

#include "tests/scheduler_harness.h"

namespace quire::sched_test {
namespace {

constexpr int32_t kBlock = 16;

HarnessOptions Blocks16(int32_t num_pages, int32_t max_seqs, int32_t budget) {
  HarnessOptions o;
  o.num_pages = num_pages;
  o.block_size = kBlock;
  o.scheduler.max_num_seqs = max_seqs;
  o.scheduler.max_num_batched_tokens = budget;
  return o;
}

std::vector<TokenId> Random(std::mt19937& rng, int32_t count) {
  std::vector<TokenId> ids(static_cast<size_t>(count));
  for (TokenId& id : ids) id = static_cast<TokenId>(rng() % kVocab);
  return ids;
}
std::vector<TokenId> operator+(std::vector<TokenId> a, const std::vector<TokenId>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// Pages in use: tokens in each, by the sequence that has most of them.
std::map<PageId, int32_t> Filled(const Scheduler& scheduler) {
  std::map<PageId, int32_t> filled;
  scheduler.ForEachBranch([&](const LiveRequest&, int32_t, const Sequence* seq) {
    if (seq == nullptr || seq->tables.groups.empty()) return;
    int32_t left = seq->num_computed_tokens;
    for (const PageId page : seq->tables.groups[0].ids()) {
      int32_t& n = filled[page];
      n = std::max(n, std::clamp(left, 0, kBlock));
      left -= kBlock;
    }
  });
  return filled;
}

// 256 requests with one prefix of 2,048 tokens: at every moment they use at most 1.02 times the
// pages of one prefix and of what each has of its own.
TEST(SharedPages, OnePrefixIsHeldOnce) {
  for (const int32_t unaligned : {0, 5}) {
    SCOPED_TRACE(unaligned);
    Harness h(Blocks16(4000, 256, 8192));
    std::mt19937 rng(1);
    const std::vector<TokenId> prefix = Random(rng, 2048 + unaligned);
    for (int32_t i = 0; i < 256; ++i) {
      h.Submit(prefix + Random(rng, 1 + static_cast<int32_t>(rng() % 60)),
               8 + static_cast<int32_t>(rng() % 40));
    }
    int32_t most_running = 0, most_pages = 0;
    while (h.Step()) {
      int32_t own = 0, running = 0;
      h.scheduler().ForEachBranch([&](const LiveRequest&, int32_t, const Sequence* seq) {
        if (seq == nullptr || seq->num_computed_tokens < 2048) return;
        ++running;
        own += (seq->num_computed_tokens - 2048 + kBlock - 1) / kBlock;
      });
      if (running == 0) continue;
      EXPECT_LE(h.pool().num_active(), 1.02 * (128 + own)) << "at step " << h.step();
      most_running = std::max(most_running, running);
      most_pages = std::max(most_pages, h.pool().num_active());
    }
    EXPECT_EQ(most_running, 256) << "all at a time";
    EXPECT_GT(most_pages, 600);
    EXPECT_EQ(h.stats().preemptions, 0);
    EXPECT_GE(h.stats().prefix_hit_tokens, 255 * 2048) << "computed once";
    h.ExpectOutputsAsSolo();
    h.ExpectIdleAndClean();
  }
}

TEST(SharedPages, EightSamplesOfOnePromptCopySevenTails) {
  Harness h(Blocks16(400, 64, 512));
  const RequestId id = h.Submit(Iota(3, 500), 40, /*n=*/8);
  std::set<PageId> tails;
  int64_t copies = 0;
  while (h.Step()) {
    for (const PageCopy& copy : h.batch().copies) {
      ++copies;
      tails.insert(copy.src);
    }
  }
  EXPECT_EQ(copies, 7);
  EXPECT_EQ(tails.size(), 1u) << "of the one page that is not full";
  EXPECT_EQ(h.stats().page_copies, 7);
  EXPECT_EQ(h.seen(id).stats.completion_tokens, 8 * 40);
  // A prompt that ends with a page leaves no tail to copy.
  Harness aligned(Blocks16(400, 64, 512));
  aligned.Submit(Iota(3, 496), 40, 8);
  ASSERT_TRUE(aligned.RunUntilIdle());
  EXPECT_EQ(aligned.stats().page_copies, 0);
  for (Harness* x : {&h, &aligned}) {
    x->ExpectOutputsAsSolo();
    x->ExpectIdleAndClean();
  }
}

// Waste: slots of pages in use that hold no token, of all slots of the pool.
TEST(SharedPages, WasteAtSteadyLoad) {
  Harness h(Blocks16(2000, 64, 512));
  std::mt19937 rng(7);
  std::lognormal_distribution<double> prompt_len(5.0, 0.9);  // median 148, now and then 2,000
  std::lognormal_distribution<double> output_len(5.0, 0.6);
  const std::vector<TokenId> system = Random(rng, 150);
  const auto submit = [&] {
    const auto prompt = std::clamp(static_cast<int32_t>(prompt_len(rng)), 8, 2000);
    const auto output = std::clamp(static_cast<int32_t>(output_len(rng)), 4, 800);
    // A third begins alike; some ask for two samples.
    const std::vector<TokenId> stem = rng() % 3 == 0 ? system : std::vector<TokenId>{};
    h.Submit(stem + Random(rng, prompt), output, rng() % 8 == 0 ? 2 : 1);
  };
  int32_t submitted = 0, steps = 0;
  double sum = 0, most = 0, used = 0;
  while (!h.scheduler().idle() || submitted == 0) {
    while (submitted < 400 && h.clients().live().size() < 80) {
      submit();
      ++submitted;
    }
    ASSERT_TRUE(h.Step() || submitted == 400);
    if (submitted < 150 || submitted == 400) continue;  // filling up and running out
    int32_t empty = 0;
    for (const auto& [page, n] : Filled(h.scheduler())) empty += kBlock - n;
    const double waste = static_cast<double>(empty) / (2000.0 * kBlock);
    sum += waste;
    most = std::max(most, waste);
    used += h.pool().num_active() / 2000.0;
    ++steps;
  }
  ASSERT_GT(steps, 500);
  EXPECT_GT(used / steps, 0.5) << "the load fills the pool";
  EXPECT_LT(sum / steps, 0.04);
  EXPECT_LT(most, 0.04);
  EXPECT_GT(sum, 0);
  std::printf("waste: %.2f %% on average, %.2f %% at most; %.0f %% of the pool in use\n",
              100 * sum / steps, 100 * most, 100 * used / steps);
  h.ExpectOutputsAsSolo();
  h.ExpectIdleAndClean();
}

// 64 requests at once and cold, one prefix of 512 tokens: it is computed once, 63 find it, whether
// the step takes all of them or the first fills it alone.
TEST(SharedPages, SixtyFourColdRequestsHitOnePrefix) {
  for (const int32_t budget : {512, 1024, 8192}) {
    SCOPED_TRACE(budget);
    Harness h(Blocks16(2000, 64, budget));
    std::mt19937 rng(3);
    const std::vector<TokenId> prefix = Random(rng, 512);
    for (int32_t i = 0; i < 64; ++i) h.Submit(prefix + Random(rng, 32), 16);
    int32_t first_tokens_at = 0;
    while (h.Step()) {
      if (first_tokens_at == 0 && h.stats().generated_tokens >= 64) {
        first_tokens_at = static_cast<int32_t>(h.step());
      }
    }
    int32_t hits = 0;
    for (const auto& [id, seen] : h.clients().all()) hits += seen.stats.cached_tokens == 512;
    EXPECT_EQ(hits, 63);
    EXPECT_EQ(h.stats().prefix_hit_tokens, 63 * 512);
    // With the smallest budget the prefix fills the first step, and nobody else is in it.
    EXPECT_EQ(h.blocks().stats().in_step_tokens > 0, budget > 512);
    EXPECT_EQ(h.stats().preemptions, 0);
    // Prefix once and 64 endings, then 15 tokens each: not a token more is computed ...
    EXPECT_EQ(h.stats().scheduled_tokens, 512 + 64 * 32 + 64 * 15);
    // ... and nobody waits in line: a step more than the budget asks for, at most.
    EXPECT_LE(first_tokens_at, (512 + 64 * 32 + budget - 1) / budget + 1);
    h.ExpectOutputsAsSolo();
    h.ExpectIdleAndClean();
  }
}

}  // namespace
}  // namespace quire::sched_test
