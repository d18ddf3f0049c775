// kernels/attention_flex.cc -- the backend `flex`: any mask composed of functions, any change of
// scores (attention_mask.h); tiles that the mask rules out are skipped.
//
// plan: a sequence's query rows that share a kv head are cut into blocks, one work item each. The
// workspace depends on the shape and the number of threads alone (C4).
#include <algorithm>

#include "kernels/attention_common.h"
#include "kernels/attention_mask.h"
#include "kernels/cpu_isa.h"
#include "kernels/kv_layout.h"

namespace quire::kernels {
namespace {

constexpr int32_t kFlexRows = 32;  // of a pass

struct FlexRow {
  ScoreRow score;
  float max, sum;
  uint64_t bits;  // of the current tile
};

// Of one worker; 64-byte aligned.
struct FlexScratch {
  float* keys;    // [head_dim, kKeyTile]
  float* values;  // [kKeyTile, dv16]
  float* scores;  // [kFlexRows, kKeyTile]
  float* acc;     // [kFlexRows, dv16]
};

struct FlexTask {
  const AttentionMetadata* m;
  const AttentionShape* s;
  const AttentionArgs* a;
  const AttentionMask* mask;
  WorkItem item;
  FlexScratch scratch;
};

// Out of the ISA regions, which may not instantiate templates of the standard library.
uint64_t FlexRowBits(const FlexTask& t, int32_t pos, int32_t first_key) {
  return t.mask->Row(t.item.seq, pos, first_key);
}
void FlexApply(const ScoreMod& mod, const ScoreRow& row, int32_t first_key, float* scores) {
  mod.apply(mod.context, row, first_key, {scores, size_t{kKeyTile}});
}

}  // namespace
}  // namespace quire::kernels

#define QUIRE_BODY "kernels/cpu/attention_flex-inl.h"
#include "kernels/cpu/foreach_isa-inl.h"

namespace quire::kernels {
namespace {

struct Scratch {
  int64_t values, scores, acc, floats;  // offsets of the parts; keys come first
};

Scratch ScratchFor(const AttentionShape& s) {
  const int64_t dv16 = (s.head_dim_v + 15) / 16 * 16;
  Scratch x{};
  x.values = int64_t{kKeyTile} * s.head_dim;
  x.scores = x.values + kKeyTile * dv16;
  x.acc = x.scores + int64_t{kFlexRows} * kKeyTile;
  x.floats = x.acc + kFlexRows * dv16;
  return x;
}

void PlanFlex(const AttentionMetadata& m, const AttentionShape& s, int32_t num_threads,
              AttentionPlan& plan) {
  plan.items.clear();
  plan.merges.clear();
  plan.num_threads = num_threads;
  plan.workspace_bytes = static_cast<size_t>(num_threads * ScratchFor(s).floats) * sizeof(float);
  const int32_t tokens = std::max(1, kFlexRows / (s.num_heads / s.num_kv_heads));
  for (int32_t seq = 0; seq < m.num_seqs; ++seq) {
    const int32_t n = NumQueries(m, seq);
    for (int32_t h = 0; h < s.num_kv_heads; ++h) {
      for (int32_t q0 = 0; q0 < n; q0 += tokens) {
        plan.items.push_back({.seq = seq,
                              .kv_head = h,
                              .first_q = q0,
                              .num_q = std::min(tokens, n - q0),
                              .first_k = 0,
                              .num_k = m.seqlens_k[static_cast<size_t>(seq)],
                              .partial = -1});
      }
    }
  }
}

void RunFlex(const AttentionPlan& plan, const AttentionMetadata& m, const AttentionShape& s,
             const AttentionArgs& a, std::byte* workspace, ThreadPool& pool) {
  CHECK(a.weights == nullptr, "flex makes no attention weights");
  CheckArgs(s, a);
  CHECK(pool.num_threads() <= plan.num_threads, "{} threads, planned for {}", pool.num_threads(),
        plan.num_threads);
  const AttentionMask standard = AttentionMask::Of(s);
  const Scratch x = ScratchFor(s);
  auto* const base = reinterpret_cast<float*>(workspace);
  const auto run = QUIRE_FOR_ISA(FlexItem);
  pool.ParallelFor(static_cast<int64_t>(plan.items.size()), [&](int64_t i, int32_t worker) {
    float* const w = base + worker * x.floats;
    run({.m = &m,
         .s = &s,
         .a = &a,
         .mask = a.mask != nullptr ? a.mask : &standard,
         .item = plan.items[static_cast<size_t>(i)],
         .scratch = {.keys = w, .values = w + x.values, .scores = w + x.scores, .acc = w + x.acc}});
  });
}

}  // namespace

const AttentionBackend kFlexAttention = {
    .name = "flex",
    .summary = "masks and score changes as composed functions; skips tiles that no row sees",
    .batch_invariant = true,
    .supports = CheckComposedShape,
    .plan = PlanFlex,
    .run = RunFlex,
};

}  // namespace quire::kernels
