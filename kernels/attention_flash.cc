// kernels/attention_flash.cc -- the backend `flash`: online softmax straight from the pages.
//
// plan: query rows of a sequence that share a kv head are cut into blocks; long contexts are cut at
// multiples of kKeySplit as well when there are too few blocks to fill the threads. A row's bits do
// not depend on either cut (attention_flash-inl.h says why), so the plan may look at thread counts.
// The workspace depends on the shape and the number of threads alone, so that a dry run sees its
// true peak (C4): partial results have a fixed budget, and a plan that would exceed it cuts less.
#include "kernels/cpu/attention_flash.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/attention_common.h"
#include "kernels/cpu/tile_config.h"
#include "kernels/cpu_isa.h"
#include "kernels/kv_layout.h"

#define QUIRE_BODY "kernels/cpu/attention_flash-inl.h"
#include "kernels/cpu/foreach_isa-inl.h"

#if defined(__x86_64__)
QUIRE_BEGIN_AMX
#define QUIRE_ISA amx
#define QUIRE_TILES
#include "kernels/cpu/attention_flash_bf16-inl.h"
#undef QUIRE_TILES
#undef QUIRE_ISA
QUIRE_END_ISA
#endif

namespace quire::kernels {
namespace {

constexpr int64_t kPartialBudget = int64_t{2} << 20;  // floats per run
constexpr int64_t kItemsPerThread = 4;                // enough to balance, few enough to be cheap

constexpr int64_t RoundUp16(int64_t n) { return (n + 15) / 16 * 16; }

struct ScratchLayout {
  int64_t q, scores, acc, run_acc, keys, values, total;  // offsets in floats
};

ScratchLayout LayoutOf(const AttentionShape& s) {
  const int64_t dv16 = FlashDv16(s);
  ScratchLayout l{};
  if (s.dot == DType::kBF16) {
    const int64_t rows = kFlashRows + 15;
    l.scores = int64_t{kFlashRows} * FlashDotDims(s);
    l.acc = l.scores + rows * kFlashLdScores;
    l.run_acc = l.acc + rows * dv16;
    l.keys = l.run_acc + kFlashRows * dv16;
    l.values = l.keys + int64_t{FlashDotDims(s)} * 8;
    l.total = l.values + kKeySplit / 2 * kFlashValueDims;
    return l;
  }
  l.scores = RoundUp16(int64_t{kFlashRows} * s.head_dim);
  l.acc = l.scores + int64_t{kFlashRows} * kFlashLdScores;
  l.run_acc = l.acc + kFlashRows * dv16;
  l.keys = l.run_acc + kFlashRows * dv16;
  l.values = l.keys + int64_t{kKeyTile} * s.head_dim;
  l.total = l.values + kKeyTile * dv16;
  return l;
}

// Floats of partial results that this shape may need at most: never less than one row block's.
int64_t PartialFloats(const AttentionShape& s, int32_t num_threads) {
  return num_threads > 1 ? std::max(kPartialBudget, 64 * FlashPartialFloats(s)) : 0;
}

// Query tokens per item: about kFlashRows rows.
int32_t TokensPerItem(const AttentionShape& s) {
  return std::max(1, kFlashRows / (s.num_heads / s.num_kv_heads));
}

// Keys that the query rows [q0, q1) of a sequence may see together.
struct KeyRange {
  int32_t lo, hi;
};
KeyRange UnionOf(const AttentionShape& s, int32_t first_pos, int32_t q0, int32_t q1,
                 int32_t seqlen_k) {
  const int32_t lo = std::max(0, FirstVisible(s, first_pos + q0));
  const int32_t hi = std::max(0, EndVisible(s, first_pos + q1 - 1, seqlen_k));
  return {std::min(lo, hi), hi};
}

void PlanFlash(const AttentionMetadata& m, const AttentionShape& s, int32_t num_threads,
               AttentionPlan& plan) {
  plan.items.clear();
  plan.merges.clear();
  plan.num_threads = num_threads;
  plan.workspace_bytes =
      static_cast<size_t>(num_threads * LayoutOf(s).total + PartialFloats(s, num_threads)) *
      sizeof(float);
  const int32_t group = s.num_heads / s.num_kv_heads;
  const int32_t step = TokensPerItem(s);
  int64_t total = 0;  // cost in row x key pairs
  for (int32_t seq = 0; seq < m.num_seqs; ++seq) {
    const int32_t first_pos = FirstPosition(m, seq);
    const int32_t n = NumQueries(m, seq);
    for (int32_t q0 = 0; q0 < n; q0 += step) {
      const int32_t q1 = std::min(n, q0 + step);
      const KeyRange k = UnionOf(s, first_pos, q0, q1, m.seqlens_k[static_cast<size_t>(seq)]);
      total += int64_t{k.hi - k.lo} * (q1 - q0) * group * s.num_kv_heads;
    }
  }
  const int64_t target = num_threads > 1 ? total / (num_threads * kItemsPerThread) : total;

  int64_t partial = 0;
  const int64_t budget = PartialFloats(s, num_threads);
  for (int32_t seq = 0; seq < m.num_seqs; ++seq) {
    const int32_t first_pos = FirstPosition(m, seq);
    const int32_t n = NumQueries(m, seq);
    for (int32_t kv_head = 0; kv_head < s.num_kv_heads; ++kv_head) {
      for (int32_t q0 = 0; q0 < n; q0 += step) {
        const int32_t q1 = std::min(n, q0 + step);
        const KeyRange k = UnionOf(s, first_pos, q0, q1, m.seqlens_k[static_cast<size_t>(seq)]);
        WorkItem item{.seq = seq,
                      .kv_head = kv_head,
                      .first_q = q0,
                      .num_q = q1 - q0,
                      .first_k = k.lo,
                      .num_k = k.hi - k.lo,
                      .partial = -1};
        const int64_t rows = int64_t{q1 - q0} * group;
        const int32_t first_split = k.lo / kKeySplit;
        const int32_t num_splits = (k.hi + kKeySplit - 1) / kKeySplit - first_split;
        const int64_t per_split = rows * FlashPartialFloats(s);
        const bool cut = num_threads > 1 && num_splits > 1 && rows * (k.hi - k.lo) > target &&
                         partial + num_splits * per_split <= budget;
        if (!cut) {
          plan.items.push_back(item);
          continue;
        }
        item.partial = partial;
        plan.merges.push_back(item);
        const int64_t splits_per_item = std::max<int64_t>(1, target / (rows * kKeySplit));
        for (int64_t i = 0; i < num_splits; i += splits_per_item) {
          const int64_t lo = (first_split + i) * kKeySplit;
          const int64_t hi = (first_split + i + splits_per_item) * kKeySplit;
          WorkItem part = item;
          part.first_k = static_cast<int32_t>(std::max<int64_t>(k.lo, lo));
          part.num_k = static_cast<int32_t>(std::min<int64_t>(k.hi, hi)) - part.first_k;
          part.partial = partial + i * per_split;
          plan.items.push_back(part);
        }
        partial += num_splits * per_split;
      }
    }
  }
  // Long items first: what is left for the end is small. Order changes no bits.
  std::stable_sort(plan.items.begin(), plan.items.end(), [](const WorkItem& a, const WorkItem& b) {
    return int64_t{a.num_q} * a.num_k > int64_t{b.num_q} * b.num_k;
  });
}

using ItemFn = void (*)(const FlashTask& t);

ItemFn ItemFor(const AttentionShape& s) {
  if (s.dot != DType::kBF16) return QUIRE_FOR_ISA(FlashItem);
#if defined(__x86_64__)
  if (ActiveIsa() == CpuIsa::kAmx) return amx::FlashItemBF16;
#endif
  return QUIRE_FOR_ISA(FlashItemBF16);
}

void RunFlash(const AttentionPlan& plan, const AttentionMetadata& m, const AttentionShape& s,
              const AttentionArgs& a, std::byte* workspace, ThreadPool& pool) {
  CHECK(a.weights == nullptr, "flash makes no attention weights");
  CHECK(pool.num_threads() <= plan.num_threads, "{} threads, planned for {}", pool.num_threads(),
        plan.num_threads);
  const ScratchLayout layout = LayoutOf(s);
  auto* const base = reinterpret_cast<float*>(workspace);
  float* const partials = base + plan.num_threads * layout.total;
  const ItemFn run_item = ItemFor(s);
  const auto run_merge = QUIRE_FOR_ISA(FlashMerge);
  const auto task = [&](const WorkItem& item, int32_t worker) {
    float* const w = base + worker * layout.total;
    return FlashTask{.m = &m,
                     .s = &s,
                     .a = &a,
                     .item = item,
                     .scratch = {.q = w,
                                 .scores = w + layout.scores,
                                 .acc = w + layout.acc,
                                 .run_acc = w + layout.run_acc,
                                 .keys = w + layout.keys,
                                 .values = w + layout.values},
                     .partials = partials};
  };
  pool.ParallelFor(static_cast<int64_t>(plan.items.size()), [&](int64_t i, int32_t worker) {
    run_item(task(plan.items[static_cast<size_t>(i)], worker));
  });
  pool.ParallelFor(static_cast<int64_t>(plan.merges.size()), [&](int64_t i, int32_t worker) {
    run_merge(task(plan.merges[static_cast<size_t>(i)], worker));
  });
}

}  // namespace

const AttentionBackend kFlashAttention = {
    .name = "flash",
    .summary = "online softmax straight from the pages; no score matrix in memory",
    .batch_invariant = true,
    .supports = CheckAttentionShape,
    .plan = PlanFlash,
    .run = RunFlash,
};

}  // namespace quire::kernels
