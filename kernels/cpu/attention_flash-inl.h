// kernels/cpu/attention_flash-inl.h -- the inner loops of `flash`, once per ISA
// (foreach_isa-inl.h).
//
// For each split of keys: scores of all rows (register blocks of rows x keys), one softmax pass
// per row, then sums of values (register blocks of rows x dims). Keys and values are read from
// their pages; only 16-bit types, pages of 8 and odd value widths pass through a small tile. How an
// item is walked: attention_flash_passes-inl.h.
//
// What a row's result depends on (C1): a score is an fma chain over d (runs of kDimChain); a
// split's sum runs in 16 lanes, lane = key % 16, then a fixed tree; values are added key by key,
// ascending; splits merge in ascending order. Blocking over rows and tiles decides only when a
// number is computed. Lanes of keys that a row does not see are dropped by selection, never
// multiplied by zero.

// clang-format off
#include "kernels/cpu/attention_flash_blocks-inl.h"
#include "kernels/cpu/attention_flash_pages-inl.h"
// clang-format on

namespace quire::kernels::QUIRE_ISA {

struct FlashPass {
  int32_t num_rows;
  int32_t first;              // the pass's first row, counted from the item's
  int32_t item_lo, item_hi;   // keys that some row sees
  int32_t block, block_end;   // the rows whose scores and sums the scratch holds
  uint32_t copied;            // dot = BF16: runs of the split whose values have been copied
  int32_t token[kFlashRows];  // row of q and of out
  int32_t head[kFlashRows];
  int32_t pos[kFlashRows];
  int32_t lo[kFlashRows];  // visible keys of each row, within the item's key range
  int32_t hi[kFlashRows];
  float run_max[kFlashRows];
  float run_sum[kFlashRows];
  float max[kFlashRows];  // of the current split
  float sum[kFlashRows];
  int32_t split;             // first key of the current split
  int32_t from[kFlashRows];  // keys of the current split
  int32_t to[kFlashRows];
  int32_t runs_from;  // dot = BF16: runs of keys that some row of the block sees
  int32_t runs_to;
};

// Turns a row's scores of the keys [a, b) of the split into exp(score - max); lanes outside of it
// become 0. `s` is the row's first score, key `split`.
inline void SoftmaxRow(const AttentionShape& shape, float* s, int32_t split, int32_t a, int32_t b,
                       int32_t pos, const float* slope, float* max_out, float* sum_out) {
  const int32_t v0 = (a - split) / 16;
  const int32_t v1 = (b - split + 15) / 16;
  const Vec minus_inf = Set1(-__builtin_inff());
  const Vec cap = Set1(shape.logit_softcap);
  Vec max = minus_inf;
  for (int32_t v = v0; v < v1; ++v) {
    const int32_t key = split + v * 16;
    Vec x = Load(s + v * 16);
    if (shape.logit_softcap > 0.0f) x = Mul(cap, Tanh(Div(x, cap)));
    if (slope != nullptr) {
      float distance[16];
      for (int32_t i = 0; i < 16; ++i) distance[i] = static_cast<float>(key + i - pos);
      x = Fma(Set1(*slope), Load(distance), x);
    }
    if (key < a || key + 16 > b) {
      x = KeepLanes(x, a > key ? a - key : 0, b < key + 16 ? b - key : 16, minus_inf);
    }
    Store(x, s + v * 16);
    max = Max(x, max);
  }
  const float m = ReduceMax(max);
  *max_out = m;
  *sum_out = 0.0f;
  if (m == -__builtin_inff()) return;
  const Vec shift = Set1(m);
  Vec sum = Zero();
  for (int32_t v = v0; v < v1; ++v) {
    const Vec p = Exp(Sub(Load(s + v * 16), shift));
    Store(p, s + v * 16);
    sum = Add(sum, p);
  }
  *sum_out = ReduceAdd(sum);
}

inline float ExpOne(float x) {
  float r[16];
  Store(Exp(Set1(x)), r);
  return r[0];
}

// Adds a split's (max, sum, acc) to a row's running result.
inline void MergePartial(float max, float sum, const float* acc, int32_t dv16, float* run_max,
                         float* run_sum, float* run_acc) {
  if (max == -__builtin_inff()) return;
  if (*run_max == -__builtin_inff()) {
    *run_max = max;
    *run_sum = sum;
    for (int32_t d = 0; d < dv16; d += 16) Store(Load(acc + d), run_acc + d);
    return;
  }
  const float top = *run_max > max ? *run_max : max;
  const float old_by = ExpOne(*run_max - top);
  const float new_by = ExpOne(max - top);
  const Vec x = Set1(old_by);
  const Vec y = Set1(new_by);
  for (int32_t d = 0; d < dv16; d += 16) {
    Store(Fma(Load(run_acc + d), x, Mul(Load(acc + d), y)), run_acc + d);
  }
  *run_sum = __builtin_fmaf(*run_sum, old_by, sum * new_by);
  *run_max = top;
}

// The same for all rows of a pass whose sums lie dv16 apart.
inline void MergeRows(const float* max, const float* sum, const float* acc, int32_t num_rows,
                      int32_t dv16, float* run_max, float* run_sum, float* run_acc) {
  for (int32_t r0 = 0; r0 < num_rows; r0 += 16) {
    const Vec top = Max(Load(run_max + r0), Load(max + r0));
    float tops[16], old_by[16], new_by[16];
    Store(top, tops);
    Store(Exp(Sub(Load(run_max + r0), top)), old_by);
    Store(Exp(Sub(Load(max + r0), top)), new_by);
    for (int32_t r = r0; r < num_rows && r < r0 + 16; ++r) {
      if (max[r] == -__builtin_inff()) continue;
      const float* const from = acc + r * dv16;
      float* const to = run_acc + r * dv16;
      if (run_max[r] == -__builtin_inff()) {
        run_max[r] = max[r];
        run_sum[r] = sum[r];
        for (int32_t d = 0; d < dv16; d += 16) Store(Load(from + d), to + d);
        continue;
      }
      const Vec x = Set1(old_by[r - r0]);
      const Vec y = Set1(new_by[r - r0]);
      for (int32_t d = 0; d < dv16; d += 16) {
        Store(Fma(Load(to + d), x, Mul(Load(from + d), y)), to + d);
      }
      run_sum[r] = __builtin_fmaf(run_sum[r], old_by[r - r0], sum[r] * new_by[r - r0]);
      run_max[r] = tops[r - r0];
    }
  }
}

inline void StorePartial(float max, float sum, const float* acc, int32_t dv16, float* out) {
  out[0] = max;
  out[1] = sum;
  if (max == -__builtin_inff()) return;
  for (int32_t d = 0; d < dv16; d += 16) Store(Load(acc + d), out + kFlashPartialHead + d);
}

// What a row of the item got from the keys before item.first_k.
inline void LoadPrefix(const FlashTask& t, int32_t token, int32_t head, float* max, float* sum,
                       float* acc) {
  const int32_t dv16 = FlashDv16(*t.s);
  const float* from = t.partials + t.item.prefix +
                      (int64_t{token} * t.s->num_heads + head) * (kFlashPartialHead + dv16);
  MergePartial(from[0], from[1], from + kFlashPartialHead, dv16, max, sum, acc);
}

inline void FinishRow(const AttentionShape& s, const AttentionArgs& a, int64_t row, int32_t head,
                      float max, float sum, const float* acc) {
  float* out = a.out + (row * s.num_heads + head) * s.head_dim_v;
  float scale = 0.0f;
  float lse = -__builtin_inff();
  if (max != -__builtin_inff()) {
    if (a.lse != nullptr) lse = max + static_cast<float>(__builtin_log(static_cast<double>(sum)));
    if (a.sinks != nullptr) {
      const float sink = a.sinks[head];
      const float top = sink > max ? sink : max;
      const float by = ExpOne(max - top);
      scale = by / __builtin_fmaf(sum, by, ExpOne(sink - top));
    } else {
      scale = 1.0f / sum;
    }
    int32_t d = 0;
    const Vec x = Set1(scale);
    for (; d + 16 <= s.head_dim_v; d += 16) Store(Mul(Load(acc + d), x), out + d);
    if (d < s.head_dim_v) StoreN(Mul(Load(acc + d), x), out + d, s.head_dim_v - d);
  } else {
    for (int32_t d = 0; d < s.head_dim_v; ++d) out[d] = 0.0f;
  }
  if (a.lse != nullptr) a.lse[row * s.num_heads + head] = lse;
}

// Scores of all rows for the keys of one split.
inline void ScoreSplit(const FlashTask& t, const FlashPages& pages, const FlashPass& pass,
                       int32_t split, int32_t lo, int32_t hi) {
  const AttentionShape& s = *t.s;
  const float* k[kKeyTile / 16] = {};
  for (int32_t t0 = lo / kKeyTile * kKeyTile; t0 < hi; t0 += kKeyTile) {
    const int64_t stride = KeyTile(pages, s.head_dim, t0, lo, hi, t.scratch.keys, k);
    Ahead ahead;
    ahead.stride = int64_t{pages.page_size} * pages.size;
    for (int32_t v = 0; v < kKeyTile / 16; ++v) {
      const int32_t key = t0 + kKeyTile + v * 16;
      ahead.k[v] = key < hi ? pages.Key(key, 0) : reinterpret_cast<const std::byte*>(k[v]);
    }
    for (int32_t r = pass.block; r < pass.block_end; r += kFlashRowBlock) {
      const int32_t left = pass.block_end - r;
      const int32_t rows = left < kFlashRowBlock ? left : kFlashRowBlock;
      // Ranges grow with the row's position: the block's union is [first from, last to).
      int32_t from = pass.from[r];
      int32_t to = pass.to[r + rows - 1];
      if (from < t0) from = t0;
      if (to > t0 + kKeyTile) to = t0 + kKeyTile;
      if (from >= to) continue;
      ScoreDispatch(rows, t.scratch.q + int64_t{r} * s.head_dim, k, ahead, stride, (from - t0) / 16,
                    (to - t0 + 15) / 16, s.head_dim, s.softmax_scale,
                    t.scratch.scores + (r - pass.block) * kFlashLdScores + (t0 - split));
    }
  }
}

// Sums of values of all rows for the keys of one split, run by run: a run is in one page and tile.
inline void ValueSplit(const FlashTask& t, const FlashPages& pages, const FlashPass& pass,
                       int32_t split, int32_t lo, int32_t hi) {
  const AttentionShape& s = *t.s;
  const int32_t dv16 = FlashDv16(s);
  const int32_t unit = pages.page_size < kKeyTile ? pages.page_size : kKeyTile;
  for (int32_t k0 = lo; k0 < hi;) {
    int32_t k1 = (k0 / unit + 1) * unit;
    if (k1 > hi) k1 = hi;
    const float* v = ValueRun(pages, s.head_dim_v, dv16, k0, k1, t.scratch.values);
    const int64_t stride = dv16;
    const int64_t bytes = k1 < hi ? pages.size : 4;
    const AheadValues ahead = {
        .v = k1 < hi ? pages.Value(k1, s.head_dim_v) : reinterpret_cast<const std::byte*>(v),
        .stride = s.head_dim_v * bytes,
        .vec_bytes = 16 * bytes * (pages.pairs ? 2 : 1)};
    for (int32_t r = pass.block; r < pass.block_end; r += kFlashRowBlock) {
      const int32_t left = pass.block_end - r;
      const int32_t rows = left < kFlashRowBlock ? left : kFlashRowBlock;
      // Keys that all rows see go through the register block; the rest row by row, in order.
      int32_t from = k0;
      int32_t to = k1;
      for (int32_t i = r; i < r + rows; ++i) {
        if (pass.from[i] > from) from = pass.from[i];
        if (pass.to[i] < to) to = pass.to[i];
      }
      const bool shared = from < to;
      for (int32_t i = r; i < r + rows; ++i) {
        const int32_t a = pass.from[i] > k0 ? pass.from[i] : k0;
        int32_t b = pass.to[i] < k1 ? pass.to[i] : k1;
        if (shared && b > from) b = from;
        if (a < b) {
          ValueRows<1>(t.scratch.scores + (i - pass.block) * kFlashLdScores + (a - split), b - a,
                       v + (a - k0) * stride, ahead, stride, dv16,
                       t.scratch.acc + (i - pass.block) * dv16);
        }
      }
      if (!shared) continue;
      ValueDispatch(rows, t.scratch.scores + (r - pass.block) * kFlashLdScores + (from - split),
                    to - from, v + (from - k0) * stride, ahead, stride, dv16,
                    t.scratch.acc + (r - pass.block) * dv16);
      for (int32_t i = r; i < r + rows; ++i) {
        const int32_t b = pass.to[i] < k1 ? pass.to[i] : k1;
        if (to < b) {
          ValueRows<1>(t.scratch.scores + (i - pass.block) * kFlashLdScores + (to - split), b - to,
                       v + (to - k0) * stride, ahead, stride, dv16,
                       t.scratch.acc + (i - pass.block) * dv16);
        }
      }
    }
    k0 = k1;
  }
}

// Products in float32.
struct Float32Dot {
  static constexpr int32_t kBlock = kFlashBlock;
  // Queries of a register block are interleaved: [head_dim][rows of the block].
  static void PackQuery(const FlashTask& t, const FlashPass& pass, int32_t r, const float* q) {
    const int32_t block = r / kFlashRowBlock * kFlashRowBlock;
    const int32_t left = pass.num_rows - block;
    const int32_t rows = left < kFlashRowBlock ? left : kFlashRowBlock;
    float* dst = t.scratch.q + int64_t{block} * t.s->head_dim + (r - block);
    for (int32_t d = 0; d < t.s->head_dim; ++d) dst[d * rows] = q[d];
  }
  static void Scores(const FlashTask& t, const FlashPages& pages, FlashPass& pass, int32_t lo,
                     int32_t hi) {
    ScoreSplit(t, pages, pass, pass.split, lo, hi);
  }
  static void Softmax(const FlashTask& t, FlashPass& pass) {
    const float* slopes = t.a->alibi_slopes;
    for (int32_t r = pass.block; r < pass.block_end; ++r) {
      if (pass.from[r] >= pass.to[r]) continue;
      SoftmaxRow(*t.s, t.scratch.scores + (r - pass.block) * kFlashLdScores, pass.split,
                 pass.from[r], pass.to[r], pass.pos[r],
                 slopes != nullptr ? slopes + pass.head[r] : nullptr, &pass.max[r], &pass.sum[r]);
      if (pass.max[r] == -__builtin_inff()) pass.to[r] = pass.from[r];  // all scores -inf
    }
  }
  static void Values(const FlashTask& t, const FlashPages& pages, FlashPass& pass, int32_t lo,
                     int32_t hi) {
    const int32_t dv16 = FlashDv16(*t.s);
    for (int32_t i = 0; i < (pass.block_end - pass.block) * dv16; i += 16)
      Store(Zero(), t.scratch.acc + i);
    ValueSplit(t, pages, pass, pass.split, lo, hi);
  }
};

}  // namespace quire::kernels::QUIRE_ISA

// clang-format off
#include "kernels/cpu/attention_flash_passes-inl.h"
// clang-format on

namespace quire::kernels::QUIRE_ISA {

void FlashItem(const FlashTask& t) { FlashItemOf<Float32Dot>(t); }

// Joins the partial results of one item's rows, split by split.
void FlashMerge(const FlashTask& t) {
  const AttentionShape& s = *t.s;
  const WorkItem& item = t.item;
  const int32_t group = s.num_heads / s.num_kv_heads;
  const int32_t dv16 = FlashDv16(s);
  const int64_t stride = kFlashPartialHead + dv16;
  const int64_t rows = int64_t{item.num_q} * group;
  const int32_t first_split = item.first_k / kKeySplit;
  const int32_t end_split = (item.first_k + item.num_k + kKeySplit - 1) / kKeySplit;
  const int64_t row0 = t.m->cu_seqlens_q[item.seq] + item.first_q;
  for (int64_t r = 0; r < rows; ++r) {
    const int32_t head = item.kv_head * group + static_cast<int32_t>(r % group);
    float max = -__builtin_inff();
    float sum = 0.0f;
    if (item.prefix >= 0) {
      LoadPrefix(t, static_cast<int32_t>(r / group), head, &max, &sum, t.scratch.run_acc);
    }
    for (int32_t n = 0; n < end_split - first_split; ++n) {
      const float* part = t.partials + item.partial + (n * rows + r) * stride;
      MergePartial(part[0], part[1], part + kFlashPartialHead, dv16, &max, &sum, t.scratch.run_acc);
    }
    FinishRow(s, *t.a, row0 + r / group, head, max, sum, t.scratch.run_acc);
  }
}

}  // namespace quire::kernels::QUIRE_ISA

// clang-format off
#include "kernels/cpu/attention_flash_bf16-inl.h"
// clang-format on
