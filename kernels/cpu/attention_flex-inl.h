// kernels/cpu/attention_flex-inl.h -- the loops of `flex`, once per ISA (foreach_isa-inl.h).
//
// Online softmax over tiles of kKeyTile keys at absolute multiples. The mask says of a tile: no row
// sees any of it (it is not even gathered), all rows see all of it, or else which keys each row
// sees, as 64 bits. Rows are (query token, query head of the kv head's group), token-major.
//
// What a row's bits depend on (C1): a tile's score is one fma chain over d (runs of kDimChain), its
// sums run over the row's own visible keys in lanes (key % 16) and key by key; tiles join in
// ascending order, and a tile of which a row sees nothing leaves the row as it was.

// clang-format off
#include "kernels/cpu/kv_gather-inl.h"
// clang-format on

namespace quire::kernels::QUIRE_ISA {

// Scores of R rows against the whole tile, to[r][kKeyTile].
template <int R>
inline void FlexScoreBlock(const float* const* q, const float* tile, int32_t head_dim, float* to) {
  constexpr int kVecs = kMaxVecs >= 4 ? 4 : 1;
  for (int32_t v0 = 0; v0 < kKeyTile / 16; v0 += kVecs) {
    for (int32_t d0 = 0; d0 < head_dim; d0 += kDimChain) {
      const int32_t d1 = head_dim - d0 < kDimChain ? head_dim : d0 + kDimChain;
      Vec sum[R][kVecs];
      QUIRE_UNROLL
      for (int r = 0; r < R; ++r) {
        QUIRE_UNROLL
        for (int v = 0; v < kVecs; ++v) sum[r][v] = Zero();
      }
      for (int32_t d = d0; d < d1; ++d) {
        const float* const k = tile + int64_t{d} * kKeyTile + v0 * 16;
        QUIRE_UNROLL
        for (int v = 0; v < kVecs; ++v) {
          const Vec key = Load(k + v * 16);
          QUIRE_UNROLL
          for (int r = 0; r < R; ++r) sum[r][v] = Fma(Set1(q[r][d]), key, sum[r][v]);
        }
      }
      QUIRE_UNROLL
      for (int r = 0; r < R; ++r) {
        QUIRE_UNROLL
        for (int v = 0; v < kVecs; ++v) {
          float* const p = to + r * kKeyTile + (v0 + v) * 16;
          Store(d0 == 0 ? sum[r][v] : Add(Load(p), sum[r][v]), p);
        }
      }
    }
  }
}

// What the shape, the arguments and the score mods make of one row's raw scores of a tile.
inline void FlexModify(const FlexTask& t, const FlexRow& row, float* s, int32_t t0, int32_t end) {
  const AttentionShape& shape = *t.s;
  const AttentionArgs& a = *t.a;
  const int32_t head = row.score.head;
  const float* const bias = a.bias == nullptr ? nullptr
                                              : a.bias + row.score.token * a.bias_token_stride +
                                                    head * a.bias_head_stride;
  for (int32_t key = t0; key < end; key += 16) {
    float* const p = s + (key - t0);
    Vec x = Mul(Load(p), Set1(shape.softmax_scale));
    if (shape.logit_softcap > 0.0f) {
      const Vec cap = Set1(shape.logit_softcap);
      x = Mul(cap, Tanh(Div(x, cap)));
    }
    if (a.alibi_slopes != nullptr) {
      float distance[16];
      for (int32_t i = 0; i < 16; ++i) distance[i] = static_cast<float>(key + i - row.score.pos);
      x = Fma(Set1(a.alibi_slopes[head]), Load(distance), x);
    }
    if (bias != nullptr) x = Add(x, LoadN(bias + key, end - key < 16 ? end - key : 16));
    Store(x, p);
  }
  for (size_t i = 0; i < a.score_mods.size(); ++i) {
    FlexApply(a.score_mods[i], row.score, t0, s);
  }
}

// Scores of the keys whose bits are set become exp(score - the row's new largest), all others 0.
// Returns what the row's older sums are worth from now on; empties `bits` if all scores are -inf.
inline float FlexSoftmax(float* s, FlexRow* row) {
  const Vec minus_inf = Set1(-__builtin_inff());
  Vec max = minus_inf;
  for (int32_t v = 0; v < kKeyTile / 16; ++v) {
    float* const p = s + v * 16;
    const uint32_t seen = static_cast<uint32_t>(row->bits >> (v * 16)) & 0xffffu;
    if (seen == 0) {
      Store(minus_inf, p);
      continue;
    }
    if (seen != 0xffffu) {
      for (int32_t i = 0; i < 16; ++i) p[i] = (seen >> i & 1u) != 0 ? p[i] : -__builtin_inff();
    }
    max = Max(Load(p), max);
  }
  const float tile_max = ReduceMax(max);
  if (tile_max == -__builtin_inff()) {
    row->bits = 0;
    return 1.0f;
  }
  const float top = row->max > tile_max ? row->max : tile_max;
  Vec sum = Zero();
  for (int32_t v = 0; v < kKeyTile / 16; ++v) {
    const Vec p = Exp(Sub(Load(s + v * 16), Set1(top)));
    Store(p, s + v * 16);
    sum = Add(sum, p);
  }
  float old[16];
  Store(Exp(Set1(row->max - top)), old);
  row->max = top;
  row->sum = __builtin_fmaf(row->sum, old[0], ReduceAdd(sum));
  return old[0];
}

// acc[r] = acc[r] * worth[r] + sum over the set keys of p[r][key] * v[key], for R rows that see the
// same keys. v is the row of key `from` of the tile.
template <int R>
inline void FlexValues(const float* p, uint64_t bits, int32_t from, int32_t to, const float* v,
                       int32_t dv16, const float* worth, float* acc) {
  for (int32_t d = 0; d < dv16; d += 16) {
    Vec sum[R];
    QUIRE_UNROLL
    for (int r = 0; r < R; ++r) sum[r] = Zero();
    for (int32_t key = from; key < to; ++key) {
      if ((bits >> key & 1) == 0) continue;
      const Vec x = Load(v + int64_t{key - from} * dv16 + d);
      QUIRE_UNROLL
      for (int r = 0; r < R; ++r) sum[r] = Fma(Set1(p[r * kKeyTile + key]), x, sum[r]);
    }
    QUIRE_UNROLL
    for (int r = 0; r < R; ++r) {
      float* const to_row = acc + r * dv16 + d;
      Store(Fma(Load(to_row), Set1(worth[r]), sum[r]), to_row);
    }
  }
}

inline void FlexFinishRow(const FlexTask& t, const FlexRow& row, const float* acc) {
  const AttentionArgs& a = *t.a;
  const int64_t at = int64_t{row.score.token} * t.s->num_heads + row.score.head;
  const int32_t dv = t.s->head_dim_v;
  float lse = -__builtin_inff();
  Vec by = Zero();
  if (row.max != -__builtin_inff()) {
    lse = row.max + static_cast<float>(__builtin_log(static_cast<double>(row.sum)));
    float whole = row.sum;
    float e[16] = {1.0f};
    if (a.sinks != nullptr) {
      const float sink = a.sinks[row.score.head];
      const float top = sink > row.max ? sink : row.max;
      Store(Exp(Set1(sink - top)), e);
      const float at_sink = e[0];
      Store(Exp(Set1(row.max - top)), e);
      whole = __builtin_fmaf(row.sum, e[0], at_sink);
    }
    by = Set1(e[0] / whole);
  }
  for (int32_t d = 0; d < dv; d += 16) {
    StoreN(Mul(Load(acc + d), by), a.out + at * dv + d, dv - d < 16 ? dv - d : 16);
  }
  if (a.lse != nullptr) a.lse[at] = lse;
}

// The tile's keys that each row sees; returns those that any row sees.
inline uint64_t FlexBits(const FlexTask& t, FlexRow* rows, int32_t num_rows, int32_t t0,
                         int32_t end) {
  const MaskBlock block{.seq = t.item.seq,
                        .first_pos = rows[0].score.pos,
                        .end_pos = rows[num_rows - 1].score.pos + 1,
                        .first_key = t0,
                        .end_key = end};
  const MaskCoverage coverage = t.mask->Block(block);
  if (coverage == MaskCoverage::kNone) return 0;
  const uint64_t there = ~uint64_t{0} >> (64 - (end - t0));
  uint64_t any = 0;
  for (int32_t r = 0; r < num_rows; ++r) {
    const bool same = r > 0 && rows[r].score.pos == rows[r - 1].score.pos;
    rows[r].bits = coverage == MaskCoverage::kAll ? there
                   : same                         ? rows[r - 1].bits
                                                  : FlexRowBits(t, rows[r].score.pos, t0) & there;
    any |= rows[r].bits;
  }
  return any;
}

inline void FlexTile(const FlexTask& t, const KvSource& src, FlexRow* rows, int32_t num_rows,
                     uint64_t any, int32_t t0, int32_t end) {
  const int32_t dv16 = (t.s->head_dim_v + 15) / 16 * 16;
  const int32_t from = __builtin_ctzll(any);
  const int32_t to = 64 - __builtin_clzll(any);
  float* const scores = t.scratch.scores;
  // Pages of which no row sees anything may be absent: they are not touched.
  const int32_t unit = src.page_size < kKeyTile ? src.page_size : kKeyTile;
  const uint64_t unit_bits = ~uint64_t{0} >> (64 - unit);
  for (int32_t u = from / unit * unit; u < to; u += unit) {
    if ((any >> u & unit_bits) == 0) continue;
    const int32_t k0 = t0 + (u > from ? u : from);
    const int32_t k1 = t0 + (u + unit < to ? u + unit : to);
    GatherKeys(src, k0, k1, t.scratch.keys);
    GatherValues(src, t0 + from, k0, k1, dv16, t.scratch.values);
  }
  const float* q[kFlexRows];
  for (int32_t r = 0; r < num_rows; ++r) {
    q[r] = t.a->q +
           (int64_t{rows[r].score.token} * t.s->num_heads + rows[r].score.head) * t.s->head_dim;
  }
  int32_t row = 0;
  for (; row + 4 <= num_rows; row += 4) {
    FlexScoreBlock<4>(q + row, t.scratch.keys, t.s->head_dim, scores + row * kKeyTile);
  }
  for (; row < num_rows; ++row) {
    FlexScoreBlock<1>(q + row, t.scratch.keys, t.s->head_dim, scores + row * kKeyTile);
  }
  float worth[kFlexRows];
  for (int32_t r = 0; r < num_rows; ++r) {
    worth[r] = 1.0f;
    if (rows[r].bits == 0) continue;
    FlexModify(t, rows[r], scores + r * kKeyTile, t0, end);
    worth[r] = FlexSoftmax(scores + r * kKeyTile, &rows[r]);
  }
  for (int32_t r = 0; r < num_rows;) {
    const uint64_t bits = rows[r].bits;
    const bool four = r + 4 <= num_rows && rows[r + 1].bits == bits && rows[r + 2].bits == bits &&
                      rows[r + 3].bits == bits;
    const float* const p = scores + r * kKeyTile;
    float* const acc = t.scratch.acc + int64_t{r} * dv16;
    if (bits != 0 && four) {
      FlexValues<4>(p, bits, from, to, t.scratch.values, dv16, worth + r, acc);
    } else if (bits != 0) {
      FlexValues<1>(p, bits, from, to, t.scratch.values, dv16, worth + r, acc);
    }
    r += four ? 4 : 1;
  }
}

void FlexItem(const FlexTask& t) {
  const AttentionMetadata& m = *t.m;
  const AttentionShape& s = *t.s;
  const KvSource src = SourceOf(m, s, *t.a, t.item.seq, t.item.kv_head);
  const int32_t group = s.num_heads / s.num_kv_heads;
  const int32_t seq_row = m.cu_seqlens_q[t.item.seq];
  const int32_t seqlen_k = m.seqlens_k[t.item.seq];
  const int32_t first_pos = seqlen_k - (m.cu_seqlens_q[t.item.seq + 1] - seq_row);
  const int32_t dv16 = (s.head_dim_v + 15) / 16 * 16;
  const int32_t total = t.item.num_q * group;
  for (int32_t first = 0; first < total; first += kFlexRows) {
    const int32_t num_rows = total - first < kFlexRows ? total - first : kFlexRows;
    FlexRow rows[kFlexRows];
    for (int32_t r = 0; r < num_rows; ++r) {
      const int32_t token = t.item.first_q + (first + r) / group;
      rows[r].score = {.seq = t.item.seq,
                       .token = seq_row + token,
                       .pos = first_pos + token,
                       .head = t.item.kv_head * group + (first + r) % group};
      rows[r].max = -__builtin_inff();
      rows[r].sum = 0.0f;
    }
    for (int64_t i = 0; i < int64_t{num_rows} * dv16; i += 16) Store(Zero(), t.scratch.acc + i);
    for (int32_t t0 = 0; t0 < seqlen_k; t0 += kKeyTile) {
      const int32_t end = seqlen_k < t0 + kKeyTile ? seqlen_k : t0 + kKeyTile;
      const uint64_t any = FlexBits(t, rows, num_rows, t0, end);
      if (any != 0) FlexTile(t, src, rows, num_rows, any, t0, end);
    }
    for (int32_t r = 0; r < num_rows; ++r) {
      FlexFinishRow(t, rows[r], t.scratch.acc + int64_t{r} * dv16);
    }
  }
}

}  // namespace quire::kernels::QUIRE_ISA
