// kernels/attention_sdpa.cc -- the backend `sdpa`: dense tiles by the read table, two-pass softmax.
//
// plan: a sequence's query rows that share a kv head are cut into blocks, one work item each. All
// scores of a block are kept at once, so the block gets fewer rows the longer the context is: the
// workspace is a fixed budget, or one row's scores where a context is longer than that. It depends
// on the shape, the longest context and the number of threads alone and grows with each, so that a
// dry run at the longest context sees the peak (C4). A row's bits do not depend on the cut.
#include <algorithm>

#include "kernels/attention_common.h"
#include "kernels/attention_mask.h"
#include "kernels/cpu_isa.h"
#include "kernels/kv_layout.h"

namespace quire::kernels {
namespace {

constexpr int32_t kSdpaRows = 32;                   // of a pass at most
constexpr int64_t kScoreBudget = int64_t{1} << 15;  // floats of scores per worker

struct SdpaRow {
  int32_t head;
  int32_t pos;
  int64_t token;     // row of q and out
  int32_t from, to;  // visible keys
};

// Of one worker; 64-byte aligned.
struct SdpaScratch {
  float* keys;    // [head_dim, kKeyTile]
  float* values;  // [kKeyTile, dv16]
  float* acc;     // [kSdpaRows, dv16]: sums of one split
  float* total;   // [kSdpaRows, dv16]
  float* scores;  // [rows_per_pass, ld_scores]
};

struct SdpaTask {
  const AttentionMetadata* m;
  const AttentionShape* s;
  const AttentionArgs* a;
  WorkItem item;
  SdpaScratch scratch;
  int64_t ld_scores;
  int32_t rows_per_pass;
};

}  // namespace
}  // namespace quire::kernels

#define QUIRE_BODY "kernels/cpu/attention_sdpa-inl.h"
#include "kernels/cpu/foreach_isa-inl.h"

namespace quire::kernels {
namespace {

constexpr int64_t RoundUp(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

struct Scratch {
  int64_t values, acc, total_sums, scores, floats;  // offsets of the parts; keys come first
};

Scratch ScratchFor(const AttentionMetadata& m, const AttentionShape& s) {
  const int64_t dv16 = RoundUp(s.head_dim_v, 16);
  Scratch x{};
  x.values = int64_t{kKeyTile} * s.head_dim;
  x.acc = x.values + kKeyTile * dv16;
  x.total_sums = x.acc + kSdpaRows * dv16;
  x.scores = x.total_sums + kSdpaRows * dv16;
  x.floats = x.scores + std::max(kScoreBudget, RoundUp(MaxSeqlenK(m), kKeyTile));
  return x;
}

void PlanSdpa(const AttentionMetadata& m, const AttentionShape& s, int32_t num_threads,
              AttentionPlan& plan) {
  plan.items.clear();
  plan.merges.clear();
  plan.num_threads = num_threads;
  plan.workspace_bytes = static_cast<size_t>(num_threads * ScratchFor(m, s).floats) * sizeof(float);
  const int32_t tokens = std::max(1, kSdpaRows / (s.num_heads / s.num_kv_heads));
  for (int32_t seq = 0; seq < m.num_seqs; ++seq) {
    const int32_t n = NumQueries(m, seq);
    const int32_t first_pos = FirstPosition(m, seq);
    const int32_t seqlen_k = m.seqlens_k[static_cast<size_t>(seq)];
    for (int32_t h = 0; h < s.num_kv_heads; ++h) {
      for (int32_t q0 = 0; q0 < n; q0 += tokens) {
        const int32_t q1 = std::min(n, q0 + tokens);
        const int32_t lo = std::max(0, FirstVisible(s, first_pos + q0));
        const int32_t hi = std::max(lo, EndVisible(s, first_pos + q1 - 1, seqlen_k));
        plan.items.push_back({.seq = seq,
                              .kv_head = h,
                              .first_q = q0,
                              .num_q = q1 - q0,
                              .first_k = lo,
                              .num_k = hi - lo,
                              .partial = -1});
      }
    }
  }
  // Long items first: what is left for the end is small. Order changes no bits.
  std::stable_sort(plan.items.begin(), plan.items.end(), [](const WorkItem& a, const WorkItem& b) {
    return int64_t{a.num_q} * a.num_k > int64_t{b.num_q} * b.num_k;
  });
}

void RunSdpa(const AttentionPlan& plan, const AttentionMetadata& m, const AttentionShape& s,
             const AttentionArgs& a, std::byte* workspace, ThreadPool& pool) {
  CHECK(a.weights == nullptr, "sdpa makes no attention weights");
  CheckArgs(s, a);
  CHECK(pool.num_threads() <= plan.num_threads, "{} threads, planned for {}", pool.num_threads(),
        plan.num_threads);
  const Scratch x = ScratchFor(m, s);
  auto* const base = reinterpret_cast<float*>(workspace);
  const auto run = QUIRE_FOR_ISA(SdpaItem);
  pool.ParallelFor(static_cast<int64_t>(plan.items.size()), [&](int64_t i, int32_t worker) {
    const WorkItem& item = plan.items[static_cast<size_t>(i)];
    float* const w = base + worker * x.floats;
    // Scores begin at a tile's border.
    const int64_t span = RoundUp(item.num_k + item.first_k % kKeyTile, kKeyTile);
    run({.m = &m,
         .s = &s,
         .a = &a,
         .item = item,
         .scratch = {.keys = w,
                     .values = w + x.values,
                     .acc = w + x.acc,
                     .total = w + x.total_sums,
                     .scores = w + x.scores},
         .ld_scores = span,
         .rows_per_pass = static_cast<int32_t>(
             std::clamp<int64_t>(kScoreBudget / std::max<int64_t>(span, 1), 1, kSdpaRows))});
  });
}

}  // namespace

const AttentionBackend kSdpaAttention = {
    .name = "sdpa",
    .summary = "dense tiles gathered by the read table, two-pass softmax",
    .batch_invariant = true,
    .supports = CheckBiasedShape,
    .plan = PlanSdpa,
    .run = RunSdpa,
};

}  // namespace quire::kernels
