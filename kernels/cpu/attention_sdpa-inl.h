// kernels/cpu/attention_sdpa-inl.h -- the loops of `sdpa`, once per ISA (foreach_isa-inl.h).
//
// One kv head of one sequence against a block of rows, row = (query token, query head of the kv
// head's group), token-major: the group's heads read each gathered tile, so keys and values are
// never copied per head. All scores of a row are kept; softmax takes two passes over them (largest,
// then exponentials and their sum), and values follow.
//
// What a row's bits depend on (C1): a score is one fma chain over d (runs of kDimChain); sums of
// exponentials and of values run within each kKeySplit of keys at absolute multiples, in 16 lanes
// (lane = key % 16) and key by key, and the splits are added in ascending order. Rows never mix.

// clang-format off
#include "kernels/cpu/kv_gather-inl.h"
// clang-format on

namespace quire::kernels::QUIRE_ISA {

// to[r][i] = sum over d of q[r][d] * tile[d][i] for R rows and NV vectors of 16 keys.
template <int R, int NV>
inline void SdpaScoreBlock(const float* const* q, const float* tile, int32_t head_dim, float* to,
                           int64_t ld) {
  for (int32_t d0 = 0; d0 < head_dim; d0 += kDimChain) {
    const int32_t d1 = head_dim - d0 < kDimChain ? head_dim : d0 + kDimChain;
    Vec sum[R][NV];
    QUIRE_UNROLL
    for (int r = 0; r < R; ++r) {
      QUIRE_UNROLL
      for (int v = 0; v < NV; ++v) sum[r][v] = Zero();
    }
    for (int32_t d = d0; d < d1; ++d) {
      Vec key[NV];
      QUIRE_UNROLL
      for (int v = 0; v < NV; ++v) key[v] = Load(tile + int64_t{d} * kKeyTile + v * 16);
      QUIRE_UNROLL
      for (int r = 0; r < R; ++r) {
        const Vec x = Set1(q[r][d]);
        QUIRE_UNROLL
        for (int v = 0; v < NV; ++v) sum[r][v] = Fma(x, key[v], sum[r][v]);
      }
    }
    QUIRE_UNROLL
    for (int r = 0; r < R; ++r) {
      QUIRE_UNROLL
      for (int v = 0; v < NV; ++v) {
        float* const p = to + r * ld + v * 16;
        Store(d0 == 0 ? sum[r][v] : Add(Load(p), sum[r][v]), p);
      }
    }
  }
}

// Vectors [v0, v1) of a tile for `rows` rows.
inline void SdpaScoreTile(const float* const* q, int32_t rows, const float* tile, int32_t v0,
                          int32_t v1, int32_t head_dim, float* to, int64_t ld) {
  constexpr int kVecs = kMaxVecs >= 4 ? 2 : 1;
  for (int32_t r = 0; r < rows;) {
    const bool four = rows - r >= 4;
    for (int32_t v = v0; v < v1;) {
      float* const p = to + r * ld + v * 16;
      const float* const k = tile + v * 16;
      const bool wide = v1 - v >= kVecs;
      if (four && wide) {
        SdpaScoreBlock<4, kVecs>(q + r, k, head_dim, p, ld);
      } else if (four) {
        SdpaScoreBlock<4, 1>(q + r, k, head_dim, p, ld);
      } else if (wide) {
        SdpaScoreBlock<1, kVecs>(q + r, k, head_dim, p, ld);
      } else {
        SdpaScoreBlock<1, 1>(q + r, k, head_dim, p, ld);
      }
      v += wide ? kVecs : 1;
    }
    r += four ? 4 : 1;
  }
}

// Scale, soft-cap, ALiBi, bias and mask of one row's scores of the keys [from, to) of a tile.
// `s` is the score of key `first`, a multiple of 16. Returns the largest of them and `max`.
inline Vec SdpaFinishScores(const SdpaTask& t, const SdpaRow& row, float* s, int32_t first,
                            int32_t from, int32_t to, Vec max) {
  const AttentionShape& shape = *t.s;
  const AttentionArgs& a = *t.a;
  const Vec by = Set1(shape.softmax_scale);
  const Vec cap = Set1(shape.logit_softcap);
  const float* const bias =
      a.bias == nullptr ? nullptr
                        : a.bias + row.token * a.bias_token_stride + row.head * a.bias_head_stride;
  for (int32_t key = from / 16 * 16; key < to; key += 16) {
    float* const p = s + (key - first);
    Vec x = Mul(Load(p), by);
    if (shape.logit_softcap > 0.0f) x = Mul(cap, Tanh(Div(x, cap)));
    if (a.alibi_slopes != nullptr) {
      float distance[16];
      for (int32_t i = 0; i < 16; ++i) distance[i] = static_cast<float>(key + i - row.pos);
      x = Fma(Set1(a.alibi_slopes[row.head]), Load(distance), x);
    }
    if (bias != nullptr) x = Add(x, LoadN(bias + key, to - key < 16 ? to - key : 16));
    if (key < from || key + 16 > to) {
      x = KeepLanes(x, from > key ? from - key : 0, to < key + 16 ? to - key : 16,
                    Set1(-__builtin_inff()));
    }
    Store(x, p);
    max = Max(x, max);
  }
  return max;
}

// Scores of the keys [from, to) become exp(score - max); returns their sum.
inline float SdpaExponentials(float* s, int32_t first, int32_t from, int32_t to, float max) {
  const Vec shift = Set1(max);
  float total = 0.0f;
  for (int32_t split = from / kKeySplit * kKeySplit; split < to; split += kKeySplit) {
    Vec sum = Zero();
    const int32_t begin = from / 16 * 16 > split ? from / 16 * 16 : split;
    const int32_t end = to < split + kKeySplit ? to : split + kKeySplit;
    for (int32_t key = begin; key < end; key += 16) {
      const Vec p = Exp(Sub(Load(s + (key - first)), shift));
      Store(p, s + (key - first));
      sum = Add(sum, p);
    }
    total += ReduceAdd(sum);
  }
  return total;
}

// acc[r][dim] += sum over `n` keys of p[r][key] * v[key][dim], key by key.
template <int R>
inline void SdpaValueBlock(const float* p, int64_t ld, int32_t n, const float* v, int32_t dv16,
                           float* acc) {
  for (int32_t d = 0; d < dv16; d += 16) {
    Vec sum[R];
    QUIRE_UNROLL
    for (int r = 0; r < R; ++r) sum[r] = Load(acc + r * dv16 + d);
    for (int32_t key = 0; key < n; ++key) {
      const Vec x = Load(v + int64_t{key} * dv16 + d);
      QUIRE_UNROLL
      for (int r = 0; r < R; ++r) sum[r] = Fma(Set1(p[r * ld + key]), x, sum[r]);
    }
    QUIRE_UNROLL
    for (int r = 0; r < R; ++r) Store(sum[r], acc + r * dv16 + d);
  }
}

// Sums of the values of the keys [k0, k1) of one gathered tile for all rows: those that four rows
// see together as a block, the others row by row; each row adds its keys in ascending order.
inline void SdpaValueTile(const SdpaTask& t, const SdpaRow* rows, int32_t num_rows, int32_t base,
                          int32_t k0, int32_t k1, int32_t dv16) {
  for (int32_t r = 0; r < num_rows; r += 4) {
    const int32_t count = num_rows - r < 4 ? num_rows - r : 4;
    int32_t from = k0;
    int32_t to = k1;
    for (int32_t i = r; i < r + count; ++i) {
      from = rows[i].from > from ? rows[i].from : from;
      to = rows[i].to < to ? rows[i].to : to;
    }
    if (count < 4 || from >= to) from = to = k1;
    for (int32_t i = r; i < r + count; ++i) {
      const int32_t a = rows[i].from > k0 ? rows[i].from : k0;
      const int32_t b = rows[i].to < from ? rows[i].to : from;
      if (a >= b) continue;
      SdpaValueBlock<1>(t.scratch.scores + i * t.ld_scores + (a - base), t.ld_scores, b - a,
                        t.scratch.values + int64_t{a - k0} * dv16, dv16, t.scratch.acc + i * dv16);
    }
    if (from >= to) continue;
    SdpaValueBlock<4>(t.scratch.scores + r * t.ld_scores + (from - base), t.ld_scores, to - from,
                      t.scratch.values + int64_t{from - k0} * dv16, dv16, t.scratch.acc + r * dv16);
    for (int32_t i = r; i < r + count; ++i) {
      const int32_t b = rows[i].to < k1 ? rows[i].to : k1;
      if (to >= b) continue;
      SdpaValueBlock<1>(t.scratch.scores + i * t.ld_scores + (to - base), t.ld_scores, b - to,
                        t.scratch.values + int64_t{to - k0} * dv16, dv16, t.scratch.acc + i * dv16);
    }
  }
}

// One row's result from its sums.
inline void SdpaFinishRow(const SdpaTask& t, const SdpaRow& row, float max, float sum,
                          const float* acc) {
  const AttentionArgs& a = *t.a;
  const int64_t at = row.token * t.s->num_heads + row.head;
  const int32_t dv = t.s->head_dim_v;
  float* const out = a.out + at * dv;
  float scale = 0.0f;
  float lse = -__builtin_inff();
  if (max != -__builtin_inff()) {
    lse = max + static_cast<float>(__builtin_log(static_cast<double>(sum)));
    float e[32];  // of the largest score and of the sink, less the larger of both
    const float sink = a.sinks != nullptr ? a.sinks[row.head] : -__builtin_inff();
    const float top = sink > max ? sink : max;
    Store(Exp(Set1(max - top)), e);
    Store(Exp(Set1(sink - top)), e + 16);
    scale = e[0] / __builtin_fmaf(sum, e[0], a.sinks != nullptr ? e[16] : 0.0f);
  }
  const Vec by = Set1(scale);
  for (int32_t d = 0; d < dv; d += 16) {
    // No visible key: the sums are zeros, or left over from keys that weigh nothing.
    const Vec x = scale == 0.0f ? Zero() : Mul(Load(acc + d), by);
    StoreN(x, out + d, dv - d < 16 ? dv - d : 16);
  }
  if (a.lse != nullptr) a.lse[at] = lse;
}

// Rows [first, first + num_rows) of the item.
inline void SdpaRows(const SdpaTask& t, const KvSource& src, int32_t first, int32_t num_rows) {
  const AttentionMetadata& m = *t.m;
  const AttentionShape& s = *t.s;
  const int32_t group = s.num_heads / s.num_kv_heads;
  const int32_t seqlen_k = m.seqlens_k[t.item.seq];
  const int32_t seq_row = m.cu_seqlens_q[t.item.seq];
  const int32_t first_pos = seqlen_k - (m.cu_seqlens_q[t.item.seq + 1] - seq_row);
  const int32_t dv16 = (s.head_dim_v + 15) / 16 * 16;
  SdpaRow rows[kSdpaRows];
  const float* q[kSdpaRows];
  int32_t lo = seqlen_k;
  int32_t hi = 0;
  for (int32_t r = 0; r < num_rows; ++r) {
    const int32_t token = t.item.first_q + (first + r) / group;
    SdpaRow& row = rows[r];
    row.pos = first_pos + token;
    row.token = seq_row + token;
    row.head = t.item.kv_head * group + (first + r) % group;
    row.from = FirstVisible(s, row.pos);
    row.to = EndVisible(s, row.pos, seqlen_k);
    if (row.from < 0) row.from = 0;
    if (row.to < row.from) row.to = row.from;
    q[r] = t.a->q + (row.token * s.num_heads + row.head) * s.head_dim;
    if (row.from == row.to) continue;
    lo = row.from < lo ? row.from : lo;
    hi = row.to > hi ? row.to : hi;
  }
  const int32_t base = lo / kKeyTile * kKeyTile;  // key of the first stored score
  Vec max[kSdpaRows];
  for (int32_t r = 0; r < num_rows; ++r) max[r] = Set1(-__builtin_inff());
  for (int32_t k0 = base; k0 < hi; k0 += kKeyTile) {
    const int32_t k1 = hi < k0 + kKeyTile ? hi : k0 + kKeyTile;
    GatherKeys(src, lo > k0 ? lo : k0, k1, t.scratch.keys);
    float* const scores = t.scratch.scores + (k0 - base);
    SdpaScoreTile(q, num_rows, t.scratch.keys, lo > k0 ? (lo - k0) / 16 : 0, (k1 - k0 + 15) / 16,
                  s.head_dim, scores, t.ld_scores);
    for (int32_t r = 0; r < num_rows; ++r) {
      const int32_t from = rows[r].from > k0 ? rows[r].from : k0;
      const int32_t to = rows[r].to < k1 ? rows[r].to : k1;
      if (from >= to) continue;
      max[r] = SdpaFinishScores(t, rows[r], scores + r * t.ld_scores, k0, from, to, max[r]);
    }
  }
  float top[kSdpaRows];
  float sum[kSdpaRows];
  for (int32_t r = 0; r < num_rows; ++r) {
    top[r] = ReduceMax(max[r]);
    sum[r] = 0.0f;
    if (top[r] == -__builtin_inff()) rows[r].to = rows[r].from;  // sees no key, or all are -inf
    if (rows[r].from < rows[r].to) {
      sum[r] = SdpaExponentials(t.scratch.scores + r * t.ld_scores, base, rows[r].from, rows[r].to,
                                top[r]);
    }
    for (int32_t d = 0; d < dv16; d += 16) Store(Zero(), t.scratch.total + r * dv16 + d);
  }
  for (int32_t split = lo / kKeySplit * kKeySplit; split < hi; split += kKeySplit) {
    for (int64_t i = 0; i < int64_t{num_rows} * dv16; i += 16) Store(Zero(), t.scratch.acc + i);
    const int32_t end = hi < split + kKeySplit ? hi : split + kKeySplit;
    for (int32_t tile = split; tile < end; tile += kKeyTile) {
      const int32_t k0 = lo > tile ? lo : tile;
      const int32_t k1 = end < tile + kKeyTile ? end : tile + kKeyTile;
      if (k0 >= k1) continue;
      GatherValues(src, k0, k0, k1, dv16, t.scratch.values);
      SdpaValueTile(t, rows, num_rows, base, k0, k1, dv16);
    }
    for (int64_t i = 0; i < int64_t{num_rows} * dv16; i += 16) {
      Store(Add(Load(t.scratch.total + i), Load(t.scratch.acc + i)), t.scratch.total + i);
    }
  }
  for (int32_t r = 0; r < num_rows; ++r) {
    SdpaFinishRow(t, rows[r], top[r], sum[r], t.scratch.total + r * dv16);
  }
}

void SdpaItem(const SdpaTask& t) {
  const KvSource src = SourceOf(*t.m, *t.s, *t.a, t.item.seq, t.item.kv_head);
  const int32_t rows = t.item.num_q * (t.s->num_heads / t.s->num_kv_heads);
  for (int32_t first = 0; first < rows; first += t.rows_per_pass) {
    SdpaRows(t, src, first, rows - first < t.rows_per_pass ? rows - first : t.rows_per_pass);
  }
}

}  // namespace quire::kernels::QUIRE_ISA
