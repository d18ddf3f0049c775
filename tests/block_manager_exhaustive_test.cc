// tests/block_manager_exhaustive_test.cc -- BlockManager against the model of cache_model.h: every
// sequence of operations on tiny pools, to a depth.
#include <gtest/gtest.h>

#include <array>
#include <string>

#include "tests/cache_model.h"

namespace quire {
namespace {

// Each level costs about seven times the one before.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr size_t kDepth = 6;
constexpr size_t kTierDepth = 5;
#else
constexpr size_t kDepth = 8;
constexpr size_t kTierDepth = 7;
#endif

class Exhaustive {
 public:
  // Does operation `op`; false: it makes no sense now (the path is cut, another one covers it).
  using ApplyFn = bool (*)(CacheModel& model, int op);

  Exhaustive(const ModelOptions& options, int num_ops, ApplyFn apply)
      : options_(options), num_ops_(num_ops), apply_(apply) {}

  void Run(size_t depth) {
    path_.clear();
    Visit(depth);
  }
  int64_t num_paths() const { return num_paths_; }

  // Of all paths, the counters of their last operation's world.
  const CacheStats& sum() const { return sum_; }
  int64_t dropped(DropReason reason) const { return dropped_[static_cast<size_t>(reason)]; }

 private:
  void Visit(size_t depth) {
    for (int op = 0; op < num_ops_; ++op) {
      path_.push_back(op);
      CacheModel model(options_);
      bool ok = true;
      model.set_checks(false);  // shorter paths have been here
      for (size_t i = 0; i < path_.size(); ++i) {
        if (i + 1 == path_.size()) model.set_checks(true);
        ok = apply_(model, path_[i]);
      }
      if (ok) {
        ++num_paths_;
        model.Check();
        if (testing::Test::HasFailure()) {
          std::string text;
          for (const int o : path_) text += std::to_string(o) + " ";
          ADD_FAILURE() << "operations " << text;
          return;
        }
        Count(model);
        if (depth > 1) Visit(depth - 1);
        if (testing::Test::HasFailure()) return;
      }
      path_.pop_back();
    }
  }

  void Count(CacheModel& model) {
    const CacheStats& s = model.manager().stats();
    sum_.partial_tokens += s.partial_tokens;
    sum_.in_step_tokens += s.in_step_tokens;
    sum_.dedupe_hits += s.dedupe_hits;
    sum_.unsealed_writes += s.unsealed_writes;
    sum_.copies += s.copies;
    sum_.saved += s.saved;
    sum_.loaded += s.loaded;
    sum_.swap_outs += s.swap_outs;
    sum_.swap_ins += s.swap_ins;
    for (const PagePool& pool : model.pools()) {
      for (size_t r = 0; r < dropped_.size(); ++r) dropped_[r] += pool.stats().dropped[r];
    }
  }

  const ModelOptions options_;
  const int num_ops_;
  const ApplyFn apply_;
  std::vector<int> path_;
  int64_t num_paths_ = 0;
  CacheStats sum_;
  std::array<int64_t, kNumDropReasons> dropped_{};
};

constexpr int kNumOps = 9;
bool Apply(CacheModel& m, int op) {
  std::list<ModelSeq>& live = m.live();
  if (op > 2 && live.empty()) return false;
  switch (op) {
    case 0:
      if (live.size() >= 3) return false;
      m.Start("", true, {0, 0, 0, 0, 0});
      return true;
    case 1:
      if (live.size() >= 3) return false;
      m.Start("", true, {0, 0, 1});
      return true;
    case 2:
      m.Flush();
      return true;
    case 3:    // the oldest computes all it has, or one new token
    case 4: {  // the newest, two tokens
      if (op == 4 && live.size() < 2) return false;
      ModelSeq& s = op == 3 ? live.front() : live.back();
      int32_t end = op == 3 ? static_cast<int32_t>(s.tokens.size()) : s.computed + 2;
      end = std::max(end, s.computed + 1);
      while (static_cast<int32_t>(s.tokens.size()) < end) m.Append(s, 0);
      const bool planned = m.Plan(s, end);
      m.Run();
      return planned;
    }
    case 5:
      if (live.size() >= 3) return false;
      m.Fork(live.front());
      return true;
    case 6: {
      ModelSeq& s = live.back();
      const int32_t to = std::max(m.LowestCut(s), s.computed - 3);
      if (to == s.computed) return false;
      m.Truncate(s, to);
      return true;
    }
    case 7:
      m.Cancel(live.front());
      return true;
    case 8:
      if (live.size() < 2) return false;
      m.Cancel(live.back());
      return true;
    default:
      return false;
  }
}

// What came with tiers and with sharing inside a step.
constexpr int kNumTierOps = 12;
bool ApplyTiers(CacheModel& m, int op) {
  std::list<ModelSeq>& live = m.live();
  constexpr size_t kMost = 3;
  if (op > 2 && live.empty()) return false;
  // Sequences that are swapped out do nothing until they are back.
  const bool front_here = !live.empty() && !live.front().swapped;
  const bool back_here = !live.empty() && !live.back().swapped;
  const auto plan = [&](ModelSeq& s) {
    const auto end = std::max(static_cast<int32_t>(s.tokens.size()), s.computed + 1);
    while (static_cast<int32_t>(s.tokens.size()) < end) m.Append(s, 0);
    return m.Plan(s, end, /*announce=*/true);
  };
  switch (op) {
    case 0:
      if (live.size() >= kMost) return false;
      m.Start("", true, {0, 0, 0, 0, 0});
      return true;
    case 1:
      if (live.size() >= kMost) return false;
      m.Start("", true, {0, 0, 0, 1, 1});  // half a page in common behind a page
      return true;
    case 2:
      m.Resize(0, m.pools()[0].num_usable() == 4 ? 3 : 4);
      return true;
    case 3:    // one computes all it has; another comes and shares it in the same step
    case 4: {  // the same, and the step fails
      if (!front_here || live.size() >= kMost || !plan(live.front())) return false;
      ModelSeq& late = m.Start("", true, {0, 0, 0, 0, 1});
      const bool fits = plan(late);
      if (!fits) m.Cancel(late);
      op == 3 ? m.Run() : m.Fail();
      return true;
    }
    case 5:  // the newest computes all it has
      if (!back_here || !plan(live.back())) return false;
      m.Run();
      return true;
    case 6:
      if (live.size() >= kMost || !front_here) return false;
      m.Fork(live.front());
      return true;
    case 7: {
      ModelSeq& s = live.back();
      const int32_t to = std::max(m.LowestCut(s), s.computed - 3);
      if (!back_here || to == s.computed) return false;
      m.Truncate(s, to);
      return true;
    }
    case 8:
      m.Cancel(live.front());
      return true;
    case 9:
      if (live.size() < 2) return false;
      m.Cancel(live.back());
      return true;
    case 10:
      if (live.front().swapped) {
        m.SwapIn(live.front(), /*keep=*/true);
      } else {
        if (live.front().computed == 0) return false;
        m.SwapOut(live.front());
        if (!live.front().swapped) return false;  // no room there: nothing has changed
      }
      return true;
    case 11:
      m.Flush();
      return true;
    default:
      return false;
  }
}

TEST(Exhaustive, TiersAndSharingInsideAStep) {
  Exhaustive walk({.num_pages = {4}, .num_host = {2}}, kNumTierOps, ApplyTiers);
  walk.Run(kTierDepth);
  EXPECT_GT(walk.num_paths(), 10'000);
  const CacheStats& s = walk.sum();
  EXPECT_GT(s.partial_tokens, 0);
  EXPECT_GT(s.in_step_tokens, 0);
  EXPECT_GT(s.dedupe_hits, 0);
  EXPECT_GT(s.unsealed_writes, 0);
  EXPECT_GT(s.copies, 0);
  EXPECT_GT(s.saved, 0);
  EXPECT_GT(s.loaded, 0);
  EXPECT_GT(s.swap_outs, 0);
  EXPECT_GT(s.swap_ins, 0);
  for (const DropReason reason : {DropReason::kEvicted, DropReason::kFlushed, DropReason::kShrunk,
                                  DropReason::kFailed, DropReason::kRewritten}) {
    EXPECT_GT(walk.dropped(reason), 0) << static_cast<int>(reason);
  }
}

TEST(Exhaustive, FullGroupOverFourPages) {
  Exhaustive walk({.num_pages = {4}}, kNumOps, Apply);
  walk.Run(kDepth);
  EXPECT_GT(walk.num_paths(), 20'000);
}

TEST(Exhaustive, FullAndSlidingGroups) {
  Exhaustive walk(
      {.groups = {ModelGroup(CacheKind::kFull), ModelGroup(CacheKind::kSlidingWindow, 3)},
       .num_pages = {7},
       .manager = {.max_truncate_tokens = 2}},
      kNumOps, Apply);
  walk.Run(kDepth - 1);
  EXPECT_GT(walk.num_paths(), 3'000);
}

}  // namespace
}  // namespace quire
