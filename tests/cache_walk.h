// tests/cache_walk.h -- random operations on a CacheModel: sequences that come, fork, compute, are
// cut, swapped, pinned and cancelled; flushes, steps that fail, pools that change size.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tests/cache_model.h"

namespace quire {

class Walk {
 public:
  static constexpr size_t kMaxLive = 4;

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
      const auto pin = m.Pin(model_.InternRoot(s.root, true), s.tokens, Random(30),
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

}  // namespace quire
