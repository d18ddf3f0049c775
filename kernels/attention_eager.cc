// kernels/attention_eager.cc -- the backend `eager`: the textbook, with everything in memory.
//
// Keys and values of one kv head are gathered from the pages into dense float32, the additive mask
// [num_q, num_k] and the scores are materialised, softmax is float32 in two passes, and attention
// weights can be returned. The measured floor, and a second opinion: it shares no loop with others.
// Its workspace grows with num_q x num_k of the longest sequence; a dry run must plan that one.
#include <algorithm>
#include <cmath>

#include "kernels/attention_common.h"
#include "kernels/cpu_isa.h"
#include "kernels/kv_layout.h"

namespace quire::kernels {
namespace {

// One head of one sequence.
struct EagerHeadTask {
  const float* q;     // [num_q], rows of head_dim at q_stride floats
  const float* k;     // [head_dim, keys16]; unwritten slots are 0
  const float* v;     // [num_k, head_dim_v]
  const float* mask;  // [num_q, keys16]: 0 or -inf
  float* scores;      // [num_q, keys16]: scores, then weights
  float* out;         // [num_q], rows of head_dim_v at out_stride floats
  float* lse;         // or null
  const float* sink;  // or null
  int64_t q_stride, out_stride, lse_stride;
  int32_t num_q, num_k, keys16, head_dim, head_dim_v;
  int32_t pos;  // position of the first query
  float scale, softcap, slope;
};

}  // namespace
}  // namespace quire::kernels

#define QUIRE_BODY "kernels/cpu/attention_eager-inl.h"
#include "kernels/cpu/foreach_isa-inl.h"

namespace quire::kernels {
namespace {

constexpr int32_t RoundUp16(int32_t n) { return (n + 15) / 16 * 16; }

// Floats of one worker's scratch, and where its parts begin.
struct Scratch {
  int64_t k = 0, v = 0, mask = 0, scores = 0, total = 0;
};

Scratch ScratchFor(const AttentionMetadata& m, const AttentionShape& s) {
  int64_t keys = 0, queries_by_keys = 0;
  for (int32_t i = 0; i < m.num_seqs; ++i) {
    const int64_t n = RoundUp16(m.seqlens_k[static_cast<size_t>(i)]);
    keys = std::max(keys, n);
    queries_by_keys = std::max(queries_by_keys, n * NumQueries(m, i));
  }
  const auto round = [](int64_t n) { return (n + 15) / 16 * 16; };
  Scratch x;
  x.v = round(keys * s.head_dim);
  x.mask = x.v + round(keys * s.head_dim_v);
  x.scores = x.mask + round(queries_by_keys);
  x.total = x.scores + round(queries_by_keys);
  return x;
}

void PlanEager(const AttentionMetadata& m, const AttentionShape& s, int32_t num_threads,
               AttentionPlan& plan) {
  plan.items.clear();
  plan.merges.clear();
  plan.num_threads = num_threads;
  plan.workspace_bytes = static_cast<size_t>(num_threads * ScratchFor(m, s).total) * sizeof(float);
  for (int32_t seq = 0; seq < m.num_seqs; ++seq) {
    const int32_t n = NumQueries(m, seq);
    if (n == 0) continue;
    for (int32_t h = 0; h < s.num_kv_heads; ++h) {
      plan.items.push_back({.seq = seq,
                            .kv_head = h,
                            .first_q = 0,
                            .num_q = n,
                            .first_k = 0,
                            .num_k = m.seqlens_k[static_cast<size_t>(seq)],
                            .partial = -1});
    }
  }
}

float Value(DType type, const std::byte* p, int64_t i) {
  if (type == DType::kF32) return reinterpret_cast<const float*>(p)[i];
  const uint16_t h = reinterpret_cast<const uint16_t*>(p)[i];
  return type == DType::kBF16 ? BF16ToFloat(h) : F16ToFloat(h);
}

// Dense copies of the keys that some query sees; others stay 0 and their pages are not touched.
void Gather(const AttentionMetadata& m, const AttentionShape& s, const AttentionArgs& a,
            const WorkItem& item, int32_t from, int32_t to, float* k, float* v) {
  const int32_t keys16 = RoundUp16(item.num_k);
  std::fill_n(k, int64_t{keys16} * s.head_dim, 0.0f);
  std::fill_n(v, int64_t{item.num_k} * s.head_dim_v, 0.0f);
  const int64_t ps = m.page_size;
  const int32_t* table =
      &m.read_table[static_cast<size_t>(item.seq) * static_cast<size_t>(m.max_pages_per_seq)];
  for (int32_t j = from; j < to; ++j) {
    const int64_t page = table[j / m.page_size];
    const int64_t offset = j % ps;
    const std::byte* k_page = PageAddress(a.k_base, page, a.page_stride);
    const std::byte* v_page = PageAddress(a.v_base, page, a.page_stride);
    for (int64_t d = 0; d < s.head_dim; ++d) {
      k[d * keys16 + j] = Value(s.kv_dtype, k_page, KeyIndex(s, ps, item.kv_head, d, offset));
    }
    for (int64_t d = 0; d < s.head_dim_v; ++d) {
      v[int64_t{j} * s.head_dim_v + d] =
          Value(s.kv_dtype, v_page, ValueIndex(s, ps, item.kv_head, offset, d));
    }
  }
}

void RunItem(const AttentionMetadata& m, const AttentionShape& s, const AttentionArgs& a,
             const WorkItem& item, const Scratch& x, int32_t max_seqlen_k, float* scratch) {
  const int32_t group = s.num_heads / s.num_kv_heads;
  const int32_t pos = FirstPosition(m, item.seq);
  const int32_t keys16 = RoundUp16(item.num_k);
  float* const mask = scratch + x.mask;
  int32_t from = item.num_k;
  int32_t to = 0;
  for (int32_t i = 0; i < item.num_q; ++i) {
    const int32_t lo = FirstVisible(s, pos + i);
    const int32_t hi = EndVisible(s, pos + i, item.num_k);
    for (int32_t j = 0; j < keys16; ++j) {
      mask[int64_t{i} * keys16 + j] = j >= lo && j < hi ? 0.0f : -HUGE_VALF;
    }
    if (lo < hi) {
      from = std::min(from, std::max(lo, 0));
      to = std::max(to, hi);
    }
  }
  Gather(m, s, a, item, from, to, scratch + x.k, scratch + x.v);
  const int64_t row0 = m.cu_seqlens_q[static_cast<size_t>(item.seq)];
  const auto run = QUIRE_FOR_ISA(EagerHead);
  for (int32_t g = 0; g < group; ++g) {
    const int64_t head = item.kv_head * group + g;
    const int64_t first = row0 * s.num_heads + head;
    run({.q = a.q + first * s.head_dim,
         .k = scratch + x.k,
         .v = scratch + x.v,
         .mask = mask,
         .scores = scratch + x.scores,
         .out = a.out + first * s.head_dim_v,
         .lse = a.lse != nullptr ? a.lse + first : nullptr,
         .sink = a.sinks != nullptr ? a.sinks + head : nullptr,
         .q_stride = int64_t{s.num_heads} * s.head_dim,
         .out_stride = int64_t{s.num_heads} * s.head_dim_v,
         .lse_stride = s.num_heads,
         .num_q = item.num_q,
         .num_k = item.num_k,
         .keys16 = keys16,
         .head_dim = s.head_dim,
         .head_dim_v = s.head_dim_v,
         .pos = pos,
         .scale = s.softmax_scale,
         .softcap = s.logit_softcap,
         .slope = a.alibi_slopes != nullptr ? a.alibi_slopes[head] : 0.0f});
    if (a.weights == nullptr) continue;
    for (int32_t i = 0; i < item.num_q; ++i) {
      float* w = a.weights + (first + int64_t{i} * s.num_heads) * max_seqlen_k;
      std::copy_n(scratch + x.scores + int64_t{i} * keys16, item.num_k, w);
      std::fill(w + item.num_k, w + max_seqlen_k, 0.0f);
    }
  }
}

void RunEager(const AttentionPlan& plan, const AttentionMetadata& m, const AttentionShape& s,
              const AttentionArgs& a, std::byte* workspace, ThreadPool& pool) {
  CHECK(pool.num_threads() <= plan.num_threads, "{} threads, planned for {}", pool.num_threads(),
        plan.num_threads);
  const Scratch x = ScratchFor(m, s);
  const int32_t max_seqlen_k = MaxSeqlenK(m);
  pool.ParallelFor(static_cast<int64_t>(plan.items.size()), [&](int64_t i, int32_t worker) {
    RunItem(m, s, a, plan.items[static_cast<size_t>(i)], x, max_seqlen_k,
            reinterpret_cast<float*>(workspace) + worker * x.total);
  });
}

}  // namespace

const AttentionBackend kEagerAttention = {
    .name = "eager",
    .summary = "float32 softmax over materialised scores and mask; can return attention weights",
    .batch_invariant = true,
    .supports = CheckFloat32Shape,
    .plan = PlanEager,
    .run = RunEager,
};

}  // namespace quire::kernels
