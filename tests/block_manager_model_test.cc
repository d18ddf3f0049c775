// tests/block_manager_model_test.cc -- BlockManager against the model of cache_model.h.
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>

#include "tests/cache_model.h"

namespace quire {
namespace {

constexpr size_t kMaxLive = 4;

// Of the exhaustive walk; each level costs about seven times the one before.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr size_t kDepth = 6;
#else
constexpr size_t kDepth = 8;
#endif

// ---- random walks ----

class Walk {
 public:
  Walk(uint32_t seed, const ModelOptions& options)
      : rng_(seed), model_(options), max_step_(options.manager.max_step_tokens) {}

  CacheModel& model() { return model_; }

  void Step() {
    switch (Random(12)) {
      case 0:
      case 1:
        if (model_.live().size() < kMaxLive) Start();
        break;
      case 2:
        if (!model_.live().empty() && model_.live().size() < kMaxLive) model_.Fork(Pick());
        break;
      case 3:
        if (!model_.live().empty()) Truncate(Pick());
        break;
      case 4:
        if (!model_.live().empty()) model_.Cancel(Pick());
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
  ModelSeq& Pick() {
    return *std::next(model_.live().begin(), Random(static_cast<int32_t>(model_.live().size())));
  }

  void Start() {
    std::vector<TokenId> tokens;
    for (int32_t n = Random(9); n >= 0; --n) tokens.push_back(RandomToken());
    const int32_t kind = Random(8);
    if (kind == 0) {
      model_.Start("private " + std::to_string(num_private_++), /*keep=*/false, tokens);
    } else {
      model_.Start(kind == 1 ? "other" : "", /*keep=*/true, tokens);
    }
  }

  void Truncate(ModelSeq& s) {
    const int32_t lowest = model_.LowestCut(s);
    model_.Truncate(s, lowest + Random(s.computed - lowest + 1));
  }

  // Some sequences compute some tokens; others come, or leave, in the middle of the step.
  void EngineStep() {
    std::vector<ModelSeq*> seqs;
    for (ModelSeq& s : model_.live()) {
      if (Random(2) == 0) seqs.push_back(&s);
    }
    std::shuffle(seqs.begin(), seqs.end(), rng_);
    for (ModelSeq* s : seqs) {
      const int32_t end = s->computed + 1 + Random(max_step_);
      while (static_cast<int32_t>(s->tokens.size()) < end) model_.Append(*s, RandomToken());
      model_.Plan(*s, end);
    }
    if (Random(3) == 0 && model_.live().size() < kMaxLive) Start();
    if (Random(4) == 0 && !model_.live().empty()) model_.Cancel(Pick());
    model_.Run(/*rejected=*/Random(3) == 0 ? Random(4) : 0);
  }

  std::mt19937 rng_;
  CacheModel model_;
  int32_t max_step_;
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
       {.groups = {full, ModelGroup(CacheKind::kState, 0, 1)},
        .num_pages = {8, 8},
        .manager = step5}},
      {"state_only",
       {.groups = {ModelGroup(CacheKind::kState)}, .num_pages = {8}, .manager = step5}},
      {"everything",
       {.groups = {ModelGroup(CacheKind::kState, 0, 1), full,
                   ModelGroup(CacheKind::kSlidingWindow, 5), full,
                   ModelGroup(CacheKind::kChunkedLocal, 6)},
        .num_pages = {30, 8},
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
    EXPECT_EQ(walk.model().hit_tokens(), s.hit_tokens);
  }
  if (only != nullptr) return;
  // The walks were about something.
  EXPECT_GT(sum.hit_tokens, 0);
  EXPECT_GT(sum.copies, 0);
  EXPECT_GT(sum.dedupe_hits, 0);
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
  explicit Exhaustive(const ModelOptions& options) : options_(options) {}

  void Run(size_t depth) {
    path_.clear();
    Visit(depth);
  }
  int64_t num_paths() const { return num_paths_; }

 private:
  static constexpr int kNumOps = 9;

  // False: the operation makes no sense now (the path is cut, another one covers it).
  static bool Apply(CacheModel& m, int op) {
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

  void Visit(size_t depth) {
    for (int op = 0; op < kNumOps; ++op) {
      path_.push_back(op);
      CacheModel model(options_);
      bool ok = true;
      model.set_checks(false);  // shorter paths have been here
      for (size_t i = 0; i < path_.size(); ++i) {
        if (i + 1 == path_.size()) model.set_checks(true);
        ok = Apply(model, path_[i]);
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
        if (depth > 1) Visit(depth - 1);
        if (testing::Test::HasFailure()) return;
      }
      path_.pop_back();
    }
  }

  ModelOptions options_;
  std::vector<int> path_;
  int64_t num_paths_ = 0;
};

TEST(Exhaustive, FullGroupOverFourPages) {
  Exhaustive walk({.num_pages = {4}});
  walk.Run(kDepth);
  EXPECT_GT(walk.num_paths(), 20'000);
}

TEST(Exhaustive, FullAndSlidingGroups) {
  Exhaustive walk(
      {.groups = {ModelGroup(CacheKind::kFull), ModelGroup(CacheKind::kSlidingWindow, 3)},
       .num_pages = {7},
       .manager = {.max_truncate_tokens = 2}});
  walk.Run(kDepth - 1);
  EXPECT_GT(walk.num_paths(), 3'000);
}

}  // namespace
}  // namespace quire
