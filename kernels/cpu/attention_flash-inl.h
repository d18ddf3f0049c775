// kernels/cpu/attention_flash-inl.h -- the inner loops of `flash`, once per ISA
// (foreach_isa-inl.h).
//
// For each split of 512 keys: scores of all rows (register blocks of rows x keys), one softmax pass
// per row, then sums of values (register blocks of rows x dims). Keys and values are read from
// their pages; only 16-bit types, pages of 8 and odd value widths pass through a small tile.
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

// A kv head's share of a pass: the task with scratch of its own.
struct FlashSection {
  FlashTask t;
  FlashPages pages;
  FlashPass pass;
};

// Rows [first, first + num_rows) of the item: what they see, and their queries.
template <typename Dot>
inline void BeginSection(FlashSection& section, int32_t first, int32_t num_rows) {
  const FlashTask& t = section.t;
  const AttentionMetadata& m = *t.m;
  const AttentionShape& s = *t.s;
  const WorkItem& item = t.item;
  const int32_t group = s.num_heads / s.num_kv_heads;
  const int32_t first_row = m.cu_seqlens_q[item.seq];
  const int32_t seqlen_q = m.cu_seqlens_q[item.seq + 1] - first_row;
  const int32_t seqlen_k = m.seqlens_k[item.seq];
  const int32_t end_k = item.first_k + item.num_k;

  FlashPass& pass = section.pass;
  pass.num_rows = num_rows;
  pass.first = first;
  pass.item_lo = end_k;
  pass.item_hi = item.first_k;
  int32_t query = first / group;
  int32_t head = first % group;
  for (int32_t r = 0; r < num_rows; ++r) {
    const int32_t i = item.first_q + query;
    pass.head[r] = item.kv_head * group + head;
    pass.lo[r] = item.first_k;
    pass.hi[r] = end_k;
    if (t.rows != nullptr) {  // sees all of what is shared
      pass.token[r] = t.rows[i].token;
      pass.pos[r] = t.rows[i].pos;
    } else if (head > 0 && r > 0) {  // as the same token's head before
      pass.token[r] = pass.token[r - 1];
      pass.pos[r] = pass.pos[r - 1];
      pass.lo[r] = pass.lo[r - 1];
      pass.hi[r] = pass.hi[r - 1];
    } else {
      pass.token[r] = first_row + i;
      pass.pos[r] = seqlen_k - seqlen_q + i;
      const int32_t lo = FirstVisible(s, pass.pos[r]);
      const int32_t hi = EndVisible(s, pass.pos[r], seqlen_k);
      pass.lo[r] = lo > item.first_k ? lo : item.first_k;
      pass.hi[r] = hi < end_k ? hi : end_k;
    }
    if (pass.lo[r] < pass.hi[r]) {
      pass.item_lo = pass.lo[r] < pass.item_lo ? pass.lo[r] : pass.item_lo;
      pass.item_hi = pass.hi[r] > pass.item_hi ? pass.hi[r] : pass.item_hi;
    }
    pass.run_max[r] = -__builtin_inff();
    pass.run_sum[r] = 0.0f;
    if (item.prefix >= 0 && item.partial < 0) {
      LoadPrefix(t, query, pass.head[r], &pass.run_max[r], &pass.run_sum[r],
                 t.scratch.run_acc + r * FlashDv16(s));
    }
    Dot::PackQuery(t, pass, r,
                   t.a->q + (int64_t{pass.token[r]} * s.num_heads + pass.head[r]) * s.head_dim);
    if (++head == group) {
      head = 0;
      ++query;
    }
  }
}

// The rows' keys in one split. False if nobody sees one.
inline bool BeginSplit(FlashSection& section, int32_t split, int32_t* lo, int32_t* hi) {
  FlashPass& pass = section.pass;
  *lo = pass.item_lo > split ? pass.item_lo : split;
  *hi = pass.item_hi < split + kKeySplit ? pass.item_hi : split + kKeySplit;
  pass.split = split;
  for (int32_t r = 0; r < pass.num_rows; ++r) {
    pass.from[r] = pass.lo[r] > split ? pass.lo[r] : split;
    pass.to[r] = pass.hi[r] < split + kKeySplit ? pass.hi[r] : split + kKeySplit;
    // An empty range stays empty and keeps the order that Scores relies on.
    if (pass.to[r] < split) pass.to[r] = split;
    pass.max[r] = -__builtin_inff();
    pass.sum[r] = 0.0f;
  }
  pass.copied = 0;
  pass.block = 0;
  pass.block_end = pass.num_rows;
  return *lo < *hi;
}

// What the block's rows have got from the split, to where it is joined.
inline void EndBlock(FlashSection& section) {
  const FlashTask& t = section.t;
  FlashPass& pass = section.pass;
  const int32_t dv16 = FlashDv16(*t.s);
  const int32_t b = pass.block;
  if (t.item.partial < 0) {
    MergeRows(pass.max + b, pass.sum + b, t.scratch.acc, pass.block_end - b, dv16, pass.run_max + b,
              pass.run_sum + b, t.scratch.run_acc + b * dv16);
    return;
  }
  const int64_t item_rows = int64_t{t.item.num_q} * (t.s->num_heads / t.s->num_kv_heads);
  const int64_t n = (pass.split - t.item.first_k / kKeySplit * kKeySplit) / kKeySplit;
  for (int32_t r = b; r < pass.block_end; ++r) {
    float* out =
        t.partials + t.item.partial + (n * item_rows + pass.first + r) * (kFlashPartialHead + dv16);
    StorePartial(pass.max[r], pass.sum[r], t.scratch.acc + (r - b) * dv16, dv16, out);
  }
}

inline void EndSection(const FlashSection& section) {
  const FlashTask& t = section.t;
  const FlashPass& pass = section.pass;
  if (t.item.partial >= 0) return;
  const int32_t dv16 = FlashDv16(*t.s);
  const int32_t group = t.s->num_heads / t.s->num_kv_heads;
  for (int32_t r = 0; r < pass.num_rows; ++r) {
    const float* acc = t.scratch.run_acc + r * dv16;
    if (t.rows != nullptr) {
      float* out = t.partials + t.rows[t.item.first_q + (pass.first + r) / group].prefix +
                   pass.head[r] * int64_t{kFlashPartialHead + dv16};
      StorePartial(pass.run_max[r], pass.run_sum[r], acc, dv16, out);
    } else {
      FinishRow(*t.s, *t.a, pass.token[r], pass.head[r], pass.run_max[r], pass.run_sum[r], acc);
    }
  }
}

// A split's keys for one head's rows, block by block.
template <typename Dot>
inline void SplitByBlocks(FlashSection& section, bool seen, int32_t lo, int32_t hi) {
  FlashPass& pass = section.pass;
  for (int32_t b = 0; b < pass.num_rows; b += Dot::kBlock) {
    pass.block = b;
    pass.block_end = pass.num_rows < b + Dot::kBlock ? pass.num_rows : b + Dot::kBlock;
    if (seen) {
      Dot::Scores(section.t, section.pages, pass, lo, hi);
      Dot::Softmax(section.t, pass);
      Dot::Values(section.t, section.pages, pass, lo, hi);
    }
    EndBlock(section);
  }
}

// A split's keys for the few rows of some heads. All keys come before all values: neighbours in
// memory are read together, and the wait for the first ones is one for all heads.
template <typename Dot>
inline void SplitByHeads(FlashSection* sections, int32_t num_sections, bool seen, int32_t lo,
                         int32_t hi) {
  for (int32_t i = 0; i < num_sections && seen; ++i) {
    Dot::Scores(sections[i].t, sections[i].pages, sections[i].pass, lo, hi);
  }
  for (int32_t i = 0; i < num_sections && seen; ++i) {
    Dot::Softmax(sections[i].t, sections[i].pass);
  }
  for (int32_t i = 0; i < num_sections && seen; ++i) {
    Dot::Values(sections[i].t, sections[i].pages, sections[i].pass, lo, hi);
  }
  for (int32_t i = 0; i < num_sections; ++i) EndBlock(sections[i]);
}

// One pass: the same rows of some kv heads against the item's keys.
template <typename Dot>
inline void FlashRowsPass(FlashSection* sections, int32_t num_sections, int32_t first,
                          int32_t num_rows) {
  const WorkItem& item = sections[0].t.item;
  for (int32_t i = 0; i < num_sections; ++i) BeginSection<Dot>(sections[i], first, num_rows);
  const int32_t end_k = item.first_k + item.num_k;
  for (int32_t split = item.first_k / kKeySplit * kKeySplit; split < end_k; split += kKeySplit) {
    int32_t lo = 0;
    int32_t hi = 0;
    bool seen = false;
    for (int32_t i = 0; i < num_sections; ++i) seen = BeginSplit(sections[i], split, &lo, &hi);
    if (num_sections == 1) {
      SplitByBlocks<Dot>(sections[0], seen, lo, hi);
    } else {
      SplitByHeads<Dot>(sections, num_sections, seen, lo, hi);
    }
  }
  for (int32_t i = 0; i < num_sections; ++i) EndSection(sections[i]);
}

template <typename Dot>
inline void FlashItemOf(const FlashTask& task) {
  const AttentionShape& s = *task.s;
  const int32_t rows = task.item.num_q * (s.num_heads / s.num_kv_heads);
  const int32_t pass_rows = rows < kFlashRows ? rows : kFlashRows;
  const int32_t dv16 = FlashDv16(s);
  FlashSection sections[kFlashSections];
  for (int32_t h = 0; h < task.item.num_kv_heads;) {
    int32_t n = 0;
    for (; n < kFlashSections && (n == 0 || (n + 1) * pass_rows <= Dot::kBlock) &&
           h < task.item.num_kv_heads;
         ++n, ++h) {
      FlashTask& t = sections[n].t;
      t = task;
      t.item.kv_head += h;
      if (t.item.partial >= 0) t.item.partial += h * t.item.partial_stride;
      const int32_t row = n * pass_rows;
      t.scratch.q += int64_t{row} * (s.dot == DType::kBF16 ? FlashDotDims(s) : s.head_dim);
      t.scratch.scores += row * kFlashLdScores;
      t.scratch.acc += row * dv16;
      t.scratch.run_acc += row * dv16;
      sections[n].pages = PagesOf(t);
    }
    for (int32_t first = 0; first < rows; first += kFlashRows) {
      FlashRowsPass<Dot>(sections, n, first, rows - first < kFlashRows ? rows - first : kFlashRows);
    }
  }
}

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
