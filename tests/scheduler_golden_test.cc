// tests/scheduler_golden_test.cc -- the batches that transformers' continuous batching chooses,
// step by step, against the scheduler that serves.
//
// tests/reference/paged/scheduler.json: requests that come before given steps, and for each step
// who computes how many tokens from where, who ends, and how many blocks are free. The requests
// make tokens of their own here; only the recorded ones' hashes of blocks matter, so the prompts
// are the recorded ones. Every step that differs is named with its reason in kDiffers.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <sstream>

#include "base/json.h"
#include "tests/scheduler_harness.h"

namespace quire::sched_test {
namespace {

int32_t Int(const Json& value) { return static_cast<int32_t>(value.as_int().value()); }

enum class Why {
  kAhead,  // there, blocks for a whole prompt, and those of the next token, are taken beforehand
  kOrder,  // there, who has a prompt left is served first; all the same are served here
  // There, layers with windows share nothing; here a prefix is found, so it is not computed again.
  // And pages that leave a window are given back, so fewer are in use.
  kWindows,
};
// Of every step of a trace that is not named: batch, ends and free blocks are equal.
const std::map<std::string, std::map<size_t, Why>> kDiffers = {
    {"fifo_full_24", {{5, Why::kAhead}}},
    {"fifo_full_12", {{0, Why::kAhead}, {1, Why::kAhead}, {2, Why::kAhead}, {6, Why::kAhead}}},
    {"prefill_first_full_24", {{1, Why::kOrder}, {5, Why::kAhead}}},
    {"prefill_first_full_12",
     {{0, Why::kAhead}, {1, Why::kAhead}, {2, Why::kAhead}, {3, Why::kOrder}, {6, Why::kAhead}}},
    {"fifo_alternating_30",
     {{0, Why::kAhead},
      {1, Why::kAhead},
      {2, Why::kWindows},
      {3, Why::kWindows},
      {4, Why::kWindows},
      {5, Why::kWindows},
      {6, Why::kWindows},
      {7, Why::kWindows},
      {8, Why::kWindows},
      {9, Why::kWindows},
      {10, Why::kWindows}}},
    {"prefill_first_alternating_30",
     {{0, Why::kAhead},
      {1, Why::kAhead},
      {2, Why::kWindows},
      {3, Why::kWindows},
      {4, Why::kWindows},
      {5, Why::kWindows},
      {6, Why::kWindows},
      {7, Why::kWindows},
      {8, Why::kWindows},
      {9, Why::kWindows},
      {10, Why::kWindows}}},
};

// One step as text: "a@10+1" for who computes what, "-x" for who ends.
struct StepText {
  std::vector<std::string> batch;
  std::vector<std::string> ended;
  int32_t free = 0;
  int32_t num_tokens = 0;
  friend bool operator==(const StepText&, const StepText&) = default;
};

StepText Theirs(const Json& step) {
  StepText text{.free = Int(step["free_after"]), .num_tokens = Int(step["query_tokens"])};
  for (size_t i = 0; i < step["batch"].size(); ++i) {
    const Json b = step["batch"].at(i);
    text.batch.push_back(
        fmt::format("{}@{}+{}", *b["request"].as_string(), Int(b["position"]), Int(b["tokens"])));
  }
  for (size_t i = 0; i < step["finished"].size(); ++i) {
    text.ended.push_back(std::string(*step["finished"].at(i).as_string()));
  }
  return text;
}

std::vector<std::string> Sorted(std::vector<std::string> v) {
  std::sort(v.begin(), v.end());
  return v;
}

TEST(SchedulerGolden, BatchesOfTransformers) {
  std::ifstream file(QUIRE_TEST_REFERENCE "/paged/scheduler.json");
  std::stringstream text;
  text << file.rdbuf();
  const absl::StatusOr<Json> traces = Json::Parse(text.str());
  ASSERT_TRUE(traces.ok()) << traces.status();
  int32_t steps = 0, different = 0;
  for (const std::string& name : traces->keys()) {
    SCOPED_TRACE(name);
    const Json t = (*traces)[name];
    const bool windows = *t["config"].as_string() != "full";
    HarnessOptions o;
    o.num_pages = Int(t["num_blocks"]);
    o.block_size = Int(t["block_size"]);
    o.scheduler.max_num_seqs = Int(t["max_requests_per_batch"]);
    o.scheduler.max_num_batched_tokens = Int(t["token_budget"]);
    o.scheduler.watermark = 0;
    o.blocks.partial_hit_share = 2;  // there, whole blocks only
    if (windows) o.groups = {{.group = {.kind = CacheKind::kSlidingWindow, .window = 12}}, {}};
    Harness h(o);
    int32_t ours_computed = 0, theirs_computed = 0;
    std::map<RequestId, std::string> names;
    const auto arrive = [&](int32_t before_step) {
      for (size_t i = 0; i < t["requests"].size(); ++i) {
        const Json r = t["requests"].at(i);
        if (Int(r["arrives_before_step"]) != before_step) continue;
        std::vector<TokenId> prompt;
        for (size_t k = 0; k < r["tokens"].size(); ++k) prompt.push_back(Int(r["tokens"].at(k)));
        const RequestId id = h.Submit(std::move(prompt), Int(r["max_new_tokens"]));
        names[id] = *r["request"].as_string();
      }
    };
    for (size_t s = 0; s < t["steps"].size(); ++s) {
      arrive(static_cast<int32_t>(s));
      std::map<RequestId, bool> was_done;
      for (const auto& [id, n] : names) was_done[id] = h.seen(id).done;
      StepText ours;
      if (h.Step()) {
        for (const Harness::Part& p : h.parts()) {
          ours.batch.push_back(
              fmt::format("{}@{}+{}", names.at(p.request), p.first_pos, p.num_tokens));
          ours.num_tokens += p.num_tokens;
        }
      }
      for (const auto& [id, n] : names) {
        if (h.seen(id).done && !was_done[id]) ours.ended.push_back(n);
      }
      ours.free = h.pool().num_available();
      const StepText theirs = Theirs(t["steps"].at(s));
      ours_computed += ours.num_tokens;
      theirs_computed += theirs.num_tokens;
      ++steps;
      SCOPED_TRACE(testing::Message() << "step " << s);
      const auto& differs = kDiffers.at(name);
      const auto it = differs.find(s);
      if (it == differs.end()) {
        EXPECT_EQ(ours.batch, theirs.batch);
        EXPECT_EQ(ours.ended, theirs.ended);
        EXPECT_EQ(ours.free, theirs.free);
        continue;
      }
      ++different;
      EXPECT_NE(ours, theirs) << "does not differ any more";
      switch (it->second) {
        case Why::kAhead:
          EXPECT_EQ(ours.batch, theirs.batch);
          EXPECT_EQ(ours.ended, theirs.ended);
          EXPECT_EQ(ours.free, theirs.free + (windows ? 2 : 1)) << "a block of each group";
          break;
        case Why::kOrder:
          EXPECT_NE(ours.batch, theirs.batch);
          EXPECT_EQ(Sorted(ours.batch), Sorted(theirs.batch));
          EXPECT_EQ(ours.ended, theirs.ended);
          EXPECT_EQ(ours.free, theirs.free);
          break;
        case Why::kWindows:
          EXPECT_TRUE(windows);
          break;
      }
    }
    EXPECT_EQ(ours_computed == theirs_computed, !windows);
    EXPECT_LE(ours_computed, theirs_computed) << "hits save work";
    ASSERT_TRUE(h.RunUntilIdle());
    h.ExpectOutputsAsSolo();
  }
  EXPECT_EQ(steps, 6 * 13);
  EXPECT_EQ(different, 1 + 4 + 2 + 5 + 11 + 11);
}

}  // namespace
}  // namespace quire::sched_test
