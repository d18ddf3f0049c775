// tests/in_step_sharing_test.cc -- a prefix that somebody computes right now is not computed again:
// shared in the very step where each layer writes before it reads, from the next step on where a
// state has to be there first.
#include <gtest/gtest.h>

#include <map>
#include <numeric>

#include "scheduler/scheduler.h"

namespace quire {
namespace {

constexpr int32_t kBlock = 16;

struct Served {
  std::vector<int32_t> tokens_of_step;
  std::vector<size_t> seqs_of_step;
  SchedulerStats stats;
  CacheStats cache;
  std::map<RequestId, int32_t> cached;
};

// Submits `num` requests with one prefix at once and plays the executor, which answers 0.
Served Serve(const CacheLayout& layout, int32_t num, int32_t prefix, int32_t own, int32_t budget) {
  std::vector<PagePool> pools;
  for (size_t i = 0; i < layout.pools.size(); ++i) pools.emplace_back(2000, kBlock);
  BlockManager blocks(layout, pools, {.max_step_tokens = budget});
  Scheduler scheduler({.max_num_seqs = 64, .max_num_batched_tokens = budget, .max_model_len = 4096},
                      blocks);
  std::vector<TokenEvent> events;
  for (int32_t i = 0; i < num; ++i) {
    auto r = std::make_shared<Request>();
    r->id = static_cast<RequestId>(i + 1);
    r->prompt.resize(static_cast<size_t>(prefix + own));
    std::iota(r->prompt.begin(), r->prompt.end(), 0);
    for (int32_t k = 0; k < own; ++k)
      r->prompt[static_cast<size_t>(prefix + k)] = 5000 + i * 100 + k;
    r->stop.max_tokens = 2;
    scheduler.Apply(Submit{r}, events);
  }
  Served run;
  while (!scheduler.idle()) {
    const ScheduledBatch batch = scheduler.Schedule(events);
    run.tokens_of_step.push_back(batch.num_tokens);
    run.seqs_of_step.push_back(batch.seqs.size());
    StepOutput out;
    for (size_t i = 0; i < batch.seqs.size(); ++i) {
      if (batch.seqs[i].num_samples > 0) {
        out.rows.push_back({static_cast<int32_t>(i), batch.seqs[i].seq->branch, 0, {.token = 0}});
      }
    }
    scheduler.Commit(batch, out, events);
    const absl::Status audit = scheduler.Audit();
    EXPECT_TRUE(audit.ok()) << audit;
  }
  for (const TokenEvent& e : events) {
    if (e.kind == TokenEvent::Kind::kAccepted) run.cached[e.request] = e.stats.cached_tokens;
  }
  run.stats = scheduler.stats();
  run.cache = blocks.stats();
  return run;
}

CacheLayout Full() {
  return MakeCacheLayout(1, kBlock, {{.layer = 0, .key_bytes_per_page = 64}}).value();
}
CacheLayout WithStates(int32_t interval) {
  return MakeCacheLayout(2, kBlock,
                         {{.layer = 0, .key_bytes_per_page = 64},
                          {.layer = 1,
                           .kind = CacheKind::kState,
                           .key_bytes_per_page = 128,
                           .snapshot_interval = interval}})
      .value();
}

// 64 cold requests with one 512-token prefix: 63 hits, the prefix is computed once, whatever the
// budget cuts it into.
TEST(InStepSharing, SixtyFourColdRequestsComputeOnePrefix) {
  for (const int32_t budget : {64, 200, 512, 4096}) {
    const Served run = Serve(Full(), 64, 512, 5, budget);
    int32_t hits = 0;
    for (const auto& [id, cached] : run.cached) hits += cached == 512;
    EXPECT_EQ(hits, 63) << budget;
    EXPECT_EQ(run.stats.prefix_hit_tokens, 63 * 512) << budget;
    EXPECT_EQ(run.stats.scheduled_tokens, 512 + 64 * 5 + 64) << budget;
  }
  const Served run = Serve(Full(), 64, 512, 5, 4096);
  EXPECT_EQ(run.cache.in_step_tokens, 63 * 512);
  EXPECT_EQ(run.seqs_of_step[0], 64u) << "all in the first step";
}

// A step that ends inside the prefix: its part is found by whoever joins in the step that ends it.
TEST(InStepSharing, TheLastChunkIsSharedInItsStep) {
  const Served run = Serve(Full(), 8, 512, 5, 300);
  // 300, then 212 + 5 and seven times 5 beside it, then eight times one token.
  EXPECT_EQ(run.tokens_of_step, (std::vector<int32_t>{300, 217 + 35, 8}));
  EXPECT_EQ(run.cache.in_step_tokens, 7 * (512 - 288)) << "288 tokens were whole blocks before";
}

TEST(InStepSharing, AStateIsWaitedForNotComputedTwice) {
  const Served run = Serve(WithStates(64), 8, 512, 5, 4096);
  EXPECT_EQ(run.stats.scheduled_tokens, 512 + 8 * 5 + 8);
  EXPECT_EQ(run.stats.prefix_hit_tokens, 7 * 512);
  EXPECT_EQ(run.seqs_of_step[0], 1u) << "the others wait one step";
  EXPECT_EQ(run.seqs_of_step[1], 8u);
  EXPECT_EQ(run.cache.in_step_tokens, 0);
}

// No snapshot will be there to go on from: nobody waits for nothing.
TEST(InStepSharing, NobodyWaitsForAStateThatIsNotKept) {
  const Served run = Serve(WithStates(4096), 3, 500, 40, 4096);
  EXPECT_EQ(run.seqs_of_step[0], 3u);
  EXPECT_EQ(run.stats.prefix_hit_tokens, 0);
}

// The state at the prompt's end is one: a prompt that goes on elsewhere starts from there.
TEST(InStepSharing, ThePromptsLastBlockBorderIsAState) {
  const Served run = Serve(WithStates(4096), 3, 500, 5, 4096);
  EXPECT_EQ(run.stats.prefix_hit_tokens, 2 * 496);
}

}  // namespace
}  // namespace quire
