// tests/block_manager_model_test.cc -- BlockManager against the model of cache_model.h.
#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <random>

#include "tests/cache_model.h"

namespace quire {
namespace {

constexpr size_t kMaxLive = 4;

// Of the exhaustive walk; each level costs about seven times the one before.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr size_t kDepth = 6;
constexpr size_t kTierDepth = 5;
#else
constexpr size_t kDepth = 8;
constexpr size_t kTierDepth = 7;
#endif

// ---- random walks ----

class Walk {
 public:
  Walk(uint32_t seed, const ModelOptions& options)
      : rng_(seed), options_(options), model_(options), max_step_(options.manager.max_step_tokens) {
    for (const GroupLayout& g : options.groups) {
      has_state_ |= g.group.kind == CacheKind::kState;
      if (g.group.kind == CacheKind::kCrossAttention) encoder_tokens_ = 5;
    }
  }
  int64_t num_pins() const { return num_pins_; }

  CacheModel& model() { return model_; }

  void Step() {
    model_.manager().SetTime(now_ms_ += Random(3));
    switch (Random(15)) {
      case 0:
      case 1:
        if (model_.live().size() < kMaxLive) Start();
        break;
      case 2:
        if (model_.live().size() < kMaxLive) {
          ModelSeq* s = PickHere();
          if (s != nullptr && (encoder_tokens_ == 0 || s->encoded)) model_.Fork(*s);
        }
        break;
      case 3:
        if (ModelSeq* s = PickHere()) Truncate(*s);
        break;
      case 4:
        if (!model_.live().empty()) model_.Cancel(Pick());
        break;
      case 6:
        if (!model_.live().empty()) Swap(Pick());
        break;
      case 7:
        if (Random(3) == 0) PinOrUnpin();
        break;
      case 8:
        if (Random(3) == 0) {
          const auto pool =
              static_cast<size_t>(Random(static_cast<int32_t>(model_.pools().size())));
          const int32_t n = options_.num_pages[pool];
          model_.Resize(pool, n / 2 + Random(n));
        }
        break;
      case 5:
        if (Random(8) == 0) model_.Flush();
        if (Random(8) == 0) model_.pools()[0].FlushCached();
        break;
      default:
        EngineStep();
        break;
    }
    model_.Check();
  }

  void Finish() {
    for (const PinInfo& pin : model_.manager().pins()) model_.manager().Unpin(pin.id);
    while (!model_.live().empty()) model_.Cancel(model_.live().back());
    model_.Check();
    for (PagePool& pool : model_.pools()) {
      EXPECT_EQ(pool.num_active(), 0);
      EXPECT_EQ(pool.num_blank() + pool.num_cached(), pool.num_usable());
    }
  }

 private:
  int32_t Random(int32_t n) { return static_cast<int32_t>(rng_() % static_cast<uint32_t>(n)); }
  // Two token values and a few pages make equal prefixes the common case.
  TokenId RandomToken() { return Random(2); }
  static constexpr int32_t kResumeReach = 8;
  // One that is not swapped out, or null.
  ModelSeq* PickHere() {
    if (model_.live().empty()) return nullptr;
    ModelSeq& s = Pick();
    return s.swapped ? nullptr : &s;
  }
  ModelSeq& Pick() {
    return *std::next(model_.live().begin(), Random(static_cast<int32_t>(model_.live().size())));
  }

  void Start() {
    std::vector<TokenId> tokens;
    for (int32_t n = Random(9); n >= 0; --n) tokens.push_back(RandomToken());
    const int32_t kind = Random(8);
    SequenceSpec spec{.prompt_tokens = static_cast<int32_t>(tokens.size()),
                      .encoder_tokens = encoder_tokens_ == 0 ? 0 : 1 + Random(encoder_tokens_)};
    if (Random(4) == 0) {
      RetentionPolicy policy;
      policy.ranges.push_back({0, 1 + Random(6), Random(101), Random(40)});
      if (Random(2) == 0) policy.ranges.push_back({2, INT32_MAX, Random(101), Random(40)});
      spec.retention = std::make_shared<const RetentionPolicy>(policy);
    }
    if (kind == 0) {
      model_.Start("private " + std::to_string(num_private_++), /*keep=*/false, tokens, spec);
    } else {
      model_.Start(kind == 1 ? "other" : "", /*keep=*/true, tokens, spec);
    }
  }

  void Truncate(ModelSeq& s) {
    const int32_t lowest = model_.LowestCut(s);
    int32_t to = lowest + Random(s.computed - lowest + 1);
    if (options_.manager.max_truncate_tokens > 0 || lowest == 0) {
      const int32_t back = std::max(0, s.computed - options_.manager.max_truncate_tokens);
      if (has_state_) to = back + Random(s.computed - back + 1);
    }
    const int32_t resume = model_.manager().ResumePoint(s.tables, s.computed, to);
    EXPECT_LE(resume, to);
    EXPECT_TRUE(has_state_ || resume == to);
    if (resume < s.most_computed - options_.manager.max_truncate_tokens - kResumeReach) return;
    if (resume < to && !WindowsReach(s, resume)) return;
    model_.Truncate(s, resume);
  }
  // Whether windowed groups still have what a sequence of so many tokens needs.
  bool WindowsReach(const ModelSeq& s, int32_t num_tokens) const {
    for (size_t g = 0; g < options_.groups.size(); ++g) {
      const CacheGroup& group = options_.groups[g].group;
      const int32_t first = FirstLivePage(group, num_tokens);
      if (group.kind != CacheKind::kSlidingWindow && group.kind != CacheKind::kChunkedLocal)
        continue;
      if (first < std::min(NumPages(group, num_tokens), s.tables.groups[g].num_pages()) &&
          s.tables.groups[g][first] == kNullPage) {
        return false;
      }
    }
    return true;
  }

  void Swap(ModelSeq& s) {
    if (s.swapped) {
      model_.SwapIn(s, !s.root.starts_with("private"));
    } else if (s.computed > 0) {
      model_.SwapOut(s);
    }
  }

  void PinOrUnpin() {
    BlockManager& m = model_.manager();
    const std::vector<PinInfo> pins = m.pins();
    if (pins.size() < 2 && !model_.live().empty()) {
      const ModelSeq& s = Pick();
      if (s.root.starts_with("private")) return;
      const auto pin = m.Pin(m.InternRoot(s.root, true), s.tokens, Random(30),
                             PageNeed(model_.pools().size(), 1));
      num_pins_ += pin.ok();
      model_.TakeAndRunOps();
    } else if (!pins.empty()) {
      EXPECT_TRUE(m.Unpin(pins[0].id));
    }
  }

  // Some sequences compute some tokens; others come, or leave, in the middle of the step.
  void EngineStep() {
    std::vector<ModelSeq*> seqs;
    for (ModelSeq& s : model_.live()) {
      if (!s.swapped && Random(2) == 0) seqs.push_back(&s);
    }
    std::shuffle(seqs.begin(), seqs.end(), rng_);
    const int32_t rejected = Random(3) == 0 ? Random(4) : 0;
    const auto plan = [&](ModelSeq& s) {
      const int32_t end = s.computed + 1 + Random(max_step_);
      while (static_cast<int32_t>(s.tokens.size()) < end) model_.Append(s, RandomToken());
      return model_.Plan(s, end, /*announce=*/rejected == 0 && Random(3) > 0);
    };
    for (ModelSeq* s : seqs) plan(*s);
    if (Random(2) == 0 && model_.live().size() < kMaxLive) {
      Start();
      // Who shares what is being written is computed in the same step, or not at all.
      ModelSeq& s = model_.live().back();
      if (model_.announced() && !plan(s)) model_.Cancel(s);
    }
    if (Random(4) == 0 && !model_.announced() && !model_.live().empty()) model_.Cancel(Pick());
    if (Random(12) == 0) {
      model_.Fail();
    } else {
      model_.Run(rejected);
    }
  }

  std::mt19937 rng_;
  ModelOptions options_;
  CacheModel model_;
  int32_t max_step_;
  int32_t encoder_tokens_ = 0;
  bool has_state_ = false;
  int64_t now_ms_ = 0;
  int64_t num_pins_ = 0;
  int num_private_ = 0;
};

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

// ---- every sequence of operations, to a depth ----

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
