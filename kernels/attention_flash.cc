// kernels/attention_flash.cc -- the backend `flash`: online softmax straight from the pages.
//
// plan: query rows of a sequence that share a kv head are cut into blocks; long contexts are cut at
// multiples of kKeySplit as well when there are too few blocks to fill the threads. A row's bits do
// not depend on either cut (attention_flash-inl.h says why), so the plan may look at thread counts.
// What sequences of a step have in common at their beginning is read first, for the rows of all of
// them; each goes on from there (attention_cascade.h).
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

constexpr int32_t kReadBoundRows = 16;  // of a kv head: up to here memory is waited for

constexpr int64_t RoundUp16(int64_t n) { return (n + 15) / 16 * 16; }

struct ScratchLayout {
  int64_t q, scores, acc, run_acc, keys, values, total;  // offsets in floats
};

ScratchLayout LayoutOf(const AttentionShape& s) {
  const int64_t dv16 = FlashDv16(s);
  ScratchLayout l{};
  if (s.dot == DType::kBF16) {
    const int64_t rows = kFlashBlock + 15;
    l.scores = int64_t{kFlashRows} * FlashDotDims(s);
    l.acc = l.scores + rows * kFlashLdScores;
    l.run_acc = l.acc + rows * dv16;
    l.keys = l.run_acc + kFlashRows * dv16;
    l.values = l.keys + int64_t{FlashDotDims(s)} * 8;
    l.total = l.values + kKeySplit / 2 * kFlashValueDims;
    return l;
  }
  l.scores = RoundUp16(int64_t{kFlashRows} * s.head_dim);
  l.acc = l.scores + int64_t{kFlashBlock} * kFlashLdScores;
  l.run_acc = l.acc + kFlashBlock * dv16;
  l.keys = l.run_acc + kFlashRows * dv16;
  l.values = l.keys + int64_t{kKeyTile} * s.head_dim;
  l.total = l.values + kKeyTile * dv16;
  return l;
}

// Floats of partial results that this shape may need at most: never less than one row block's.
int64_t PartialFloats(const AttentionShape& s) {
  return std::max(kPartialBudget, 64 * FlashPartialFloats(s));
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

// Blocks of kKeySplit that the keys [lo, hi) lie in.
constexpr int32_t NumSplits(int32_t lo, int32_t hi) {
  return (hi + kKeySplit - 1) / kKeySplit - lo / kKeySplit;
}

// Items for what groups of sequences read together, if there is room for what they give. Returns
// the floats of partial results that are taken.
int64_t PlanShared(const AttentionMetadata& m, const AttentionShape& s, int32_t num_threads,
                   AttentionPlan& plan) {
  plan.shared.clear();
  plan.shared_rows.clear();
  plan.own.assign(static_cast<size_t>(m.num_seqs), {0, -1});
  if (s.window > 0 || s.chunk > 0) return 0;
  FindPrefixGroups(m, TokensPerItem(s), plan.prefixes);
  const int64_t per_row = s.num_heads * FlashPartialFloats(s);
  int64_t taken = 0;
  for (const PrefixGroup& g : plan.prefixes.groups) {
    const auto begin = plan.prefixes.members.begin() + g.first;
    int32_t rows = 0;
    for (auto seq = begin; seq != begin + g.count; ++seq) rows += NumQueries(m, *seq);
    if (taken + rows * per_row > PartialFloats(s) / 2) continue;
    const auto first_row = static_cast<int32_t>(plan.shared_rows.size());
    for (auto seq = begin; seq != begin + g.count; ++seq) {
      plan.own[static_cast<size_t>(*seq)] = {g.num_keys, taken};
      for (int32_t i = 0; i < NumQueries(m, *seq); ++i, taken += per_row) {
        plan.shared_rows.push_back({.token = m.cu_seqlens_q[static_cast<size_t>(*seq)] + i,
                                    .pos = FirstPosition(m, *seq) + i,
                                    .prefix = taken});
      }
    }
    // Few rows are cut finer, so that each thread has some: keys are read once a thread then.
    const int32_t fair = (rows * s.num_kv_heads + num_threads - 1) / num_threads;
    const int32_t step = std::min(TokensPerItem(s), fair);
    for (int32_t row = 0; row < rows; row += step) {
      for (int32_t kv_head = 0; kv_head < s.num_kv_heads; ++kv_head) {
        plan.shared.push_back({.seq = *begin,
                               .kv_head = kv_head,
                               .first_q = first_row + row,
                               .num_q = std::min(step, rows - row),
                               .first_k = 0,
                               .num_k = g.num_keys,
                               .partial = -1});
      }
    }
  }
  return taken;
}

void PlanFlash(const AttentionMetadata& m, const AttentionShape& s, int32_t num_threads,
               AttentionPlan& plan) {
  plan.items.clear();
  plan.merges.clear();
  plan.num_threads = num_threads;
  plan.workspace_bytes =
      static_cast<size_t>(num_threads * LayoutOf(s).total + PartialFloats(s)) * sizeof(float);
  int64_t partial = PlanShared(m, s, num_threads, plan);
  const int32_t group = s.num_heads / s.num_kv_heads;
  const int32_t step = TokensPerItem(s);
  const int64_t per_row = s.num_heads * FlashPartialFloats(s);
  int64_t total = 0;       // cost in row x key pairs
  int64_t num_blocks = 0;  // that one head's items may be cut into
  for (int32_t seq = 0; seq < m.num_seqs; ++seq) {
    const int32_t first_pos = FirstPosition(m, seq);
    const int32_t n = NumQueries(m, seq);
    for (int32_t q0 = 0; q0 < n; q0 += step) {
      const int32_t q1 = std::min(n, q0 + step);
      const KeyRange k = UnionOf(s, first_pos, q0, q1, m.seqlens_k[static_cast<size_t>(seq)]);
      const int32_t lo = std::max(k.lo, plan.own[static_cast<size_t>(seq)].first);
      total += int64_t{k.hi - lo} * (q1 - q0) * group * s.num_kv_heads;
      num_blocks += NumSplits(lo, k.hi);
    }
  }
  const int64_t target = num_threads > 1 ? total / (num_threads * kItemsPerThread) : total;
  const bool few_items = num_blocks < num_threads * kItemsPerThread;

  const int64_t budget = PartialFloats(s);
  for (int32_t seq = 0; seq < m.num_seqs; ++seq) {
    const int32_t first_pos = FirstPosition(m, seq);
    const int32_t n = NumQueries(m, seq);
    const auto [shared_keys, prefix] = plan.own[static_cast<size_t>(seq)];
    // Few rows are done as soon as their keys are read.
    const int32_t heads = few_items || n * group > kReadBoundRows ? 1 : s.num_kv_heads;
    for (int32_t kv_head = 0; kv_head < s.num_kv_heads; kv_head += heads) {
      for (int32_t q0 = 0; q0 < n; q0 += step) {
        const int32_t q1 = std::min(n, q0 + step);
        KeyRange k = UnionOf(s, first_pos, q0, q1, m.seqlens_k[static_cast<size_t>(seq)]);
        k.lo = std::max(k.lo, shared_keys);
        WorkItem item{.seq = seq,
                      .kv_head = kv_head,
                      .first_q = q0,
                      .num_q = q1 - q0,
                      .first_k = k.lo,
                      .num_k = k.hi - k.lo,
                      .partial = -1,
                      .prefix = prefix < 0 ? -1 : prefix + q0 * per_row,
                      .num_kv_heads = heads};
        const int64_t rows = int64_t{q1 - q0} * group * heads;
        const int32_t first_split = k.lo / kKeySplit;
        const int32_t num_splits = NumSplits(k.lo, k.hi);
        const int64_t per_split = rows / heads * FlashPartialFloats(s);
        const bool cut = num_threads > 1 && num_splits > 1 && rows * (k.hi - k.lo) > target &&
                         partial + heads * num_splits * per_split <= budget;
        if (!cut) {
          plan.items.push_back(item);
          continue;
        }
        item.partial_stride = num_splits * per_split;
        for (int32_t h = 0; h < heads; ++h) {
          WorkItem merge = item;
          merge.kv_head = kv_head + h;
          merge.num_kv_heads = 1;
          merge.partial = partial + h * item.partial_stride;
          plan.merges.push_back(merge);
        }
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
        partial += heads * item.partial_stride;
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
                     .rows = nullptr,
                     .partials = partials};
  };
  pool.ParallelFor(static_cast<int64_t>(plan.shared.size()), [&](int64_t i, int32_t worker) {
    FlashTask shared = task(plan.shared[static_cast<size_t>(i)], worker);
    shared.rows = plan.shared_rows.data();
    run_item(shared);
  });
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
