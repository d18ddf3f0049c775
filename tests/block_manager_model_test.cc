// tests/block_manager_model_test.cc -- BlockManager against the model of cache_model.h, in random
// walks over every kind of cache; block_manager_exhaustive_test walks everywhere.
#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/cache_walk.h"

namespace quire {
namespace {

struct WalkCase {
  const char* name;
  ModelOptions options;
  bool collisions_expected = false;
};

std::vector<WalkCase> Cases() {
  const BlockManagerOptions step5{.max_step_tokens = 5};
  const BlockManagerOptions rollback{.max_step_tokens = 5, .max_truncate_tokens = 3};
  const GroupLayout full = ModelGroup(CacheKind::kFull);
  return {
      {"full", {.num_pages = {6}, .manager = step5}},
      {"full_roomy", {.num_pages = {24}, .manager = step5}},
      {"full_4_bits", {.num_pages = {12}, .manager = {.max_step_tokens = 5, .hash_bits = 4}}, true},
      {"full_constant_hash",
       {.num_pages = {12}, .manager = {.max_step_tokens = 5, .hash_bits = 0}},
       true},
      {"full_and_sliding",
       {.groups = {full, ModelGroup(CacheKind::kSlidingWindow, 3)},
        .num_pages = {14},
        .manager = rollback}},
      {"sliding_and_full_in_two_pools",
       {.groups = {ModelGroup(CacheKind::kSlidingWindow, 5, 1), full},
        .num_pages = {8, 6},
        .manager = rollback}},
      {"sliding_only",
       {.groups = {ModelGroup(CacheKind::kSlidingWindow, 4)}, .num_pages = {8}, .manager = step5}},
      {"tiny_window",
       {.groups = {ModelGroup(CacheKind::kSlidingWindow, 1), full},
        .num_pages = {12},
        .manager = rollback}},
      {"full_and_chunked",
       {.groups = {full, ModelGroup(CacheKind::kChunkedLocal, 4)},
        .num_pages = {14},
        .manager = rollback}},
      {"full_and_state",
       {.groups = {full, StateGroup(2, 1)}, .num_pages = {8, 24}, .manager = step5}},
      {"full_and_rare_states",
       {.groups = {full, StateGroup(6, 1)}, .num_pages = {8, 14}, .manager = rollback}},
      {"state_only", {.groups = {StateGroup(2, 0)}, .num_pages = {24}, .manager = step5}},
      {"full_and_host", {.num_pages = {6}, .num_host = {5}, .manager = step5}},
      {"full_and_roomy_host", {.num_pages = {8}, .num_host = {40}, .manager = rollback}},
      {"latent_and_indexer",
       {.groups = {ModelGroup(CacheKind::kLatent), EntryGroup(CacheKind::kIndexer, 1)},
        .num_pages = {14},
        .manager = step5}},
      {"compressed_and_remainder",
       {.groups = {EntryGroup(CacheKind::kCompressed, 4), ModelGroup(CacheKind::kChunkedLocal, 4),
                   EntryGroup(CacheKind::kIndexer, 2)},
        .num_pages = {20},
        .num_host = {12},
        .manager = rollback}},
      {"compressed_overlapping",
       {.groups = {EntryGroup(CacheKind::kCompressed, 2, 1),
                   ModelGroup(CacheKind::kSlidingWindow, 4),
                   EntryGroup(CacheKind::kCompressed, 8, 1),
                   ModelGroup(CacheKind::kChunkedLocal, 8)},
        .num_pages = {20, 8},
        .manager = rollback}},
      {"encoder_decoder",
       {.groups = {full, ModelGroup(CacheKind::kCrossAttention)},
        .num_pages = {20},
        .manager = step5}},
      {"sliding_and_host",
       {.groups = {full, ModelGroup(CacheKind::kSlidingWindow, 5, 1)},
        .num_pages = {10, 8},
        .num_host = {8, 6},
        .manager = rollback}},
      {"everything",
       {.groups = {StateGroup(4, 1), full, ModelGroup(CacheKind::kSlidingWindow, 5),
                   EntryGroup(CacheKind::kCompressed, 4), ModelGroup(CacheKind::kLatent),
                   ModelGroup(CacheKind::kChunkedLocal, 6), EntryGroup(CacheKind::kIndexer, 2)},
        .num_pages = {60, 16},
        .num_host = {20, 4},
        .manager = {.max_step_tokens = 5, .hash_bits = 4}},
       true},
  };
}

class Walks : public testing::TestWithParam<WalkCase> {};

TEST_P(Walks, EverySequenceReadsItsOwnTokens) {
  // QUIRE_SEED=n runs that walk alone.
  const char* only = std::getenv("QUIRE_SEED");
  const uint32_t first = only == nullptr ? 0 : static_cast<uint32_t>(std::atoi(only));
  const uint32_t last = only == nullptr ? 60 : first + 1;
  CacheStats sum;
  PoolStats pool;
  int64_t pins = 0;
  for (uint32_t seed = first; seed < last; ++seed) {
    SCOPED_TRACE(testing::Message() << "reproduce with QUIRE_SEED=" << seed);
    Walk walk(seed, GetParam().options);
    for (int i = 0; i < 300 && !HasFailure(); ++i) {
      SCOPED_TRACE(testing::Message() << "step " << i);
      walk.Step();
    }
    if (HasFailure()) return;
    walk.Finish();
    const CacheStats& s = walk.model().manager().stats();
    sum.hit_tokens += s.hit_tokens;
    sum.copies += s.copies;
    sum.unsealed_writes += s.unsealed_writes;
    sum.dedupe_hits += s.dedupe_hits;
    sum.collisions += s.collisions;
    const PoolStats& p = walk.model().pools()[0].stats();
    for (int r = 0; r < kNumDropReasons; ++r) pool.dropped[r] += p.dropped[r];
    pool.expired += p.expired;
    sum.partial_tokens += s.partial_tokens;
    sum.in_step_tokens += s.in_step_tokens;
    sum.loaded += s.loaded;
    sum.swap_outs += s.swap_outs;
    sum.swap_ins += s.swap_ins;
    pins += walk.num_pins();
    EXPECT_EQ(walk.model().hit_tokens(), s.hit_tokens);
    EXPECT_GE(s.swap_ins, walk.model().swapped_in());
  }
  if (only != nullptr) return;
  // The walks were about something.
  EXPECT_GT(sum.hit_tokens, 0);
  EXPECT_GT(sum.copies, 0);
  EXPECT_GT(sum.dedupe_hits, 0);
  bool states = false;
  for (const GroupLayout& g : GetParam().options.groups) {
    states |= g.group.kind == CacheKind::kState;
  }
  EXPECT_EQ(sum.partial_tokens > 0, !states);
  EXPECT_EQ(sum.in_step_tokens > 0, !states);
  const bool host = !GetParam().options.num_host.empty();
  EXPECT_EQ(sum.loaded > 0, host);
  EXPECT_EQ(sum.swap_outs > 0, host);
  EXPECT_EQ(sum.swap_ins > 0, host);
  EXPECT_GT(pins, 0);
  EXPECT_GT(pool.expired, 0);
  EXPECT_GT(pool.dropped[static_cast<int>(DropReason::kShrunk)], 0);
  EXPECT_EQ(pool.dropped[static_cast<int>(DropReason::kFailed)] > 0, true);
  EXPECT_EQ(sum.collisions > 0, GetParam().collisions_expected);
  EXPECT_GT(pool.dropped[static_cast<int>(DropReason::kEvicted)], 0);
  EXPECT_GT(pool.dropped[static_cast<int>(DropReason::kFlushed)], 0);
  EXPECT_GT(pool.dropped[static_cast<int>(DropReason::kPrivate)], 0);
}

INSTANTIATE_TEST_SUITE_P(Layouts, Walks, testing::ValuesIn(Cases()),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace quire
