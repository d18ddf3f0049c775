// kernels/cpu/attention_flash_bf16-inl.h -- `flash` with products of bf16 (attention.h: dot), once
// per ISA and once more with QUIRE_TILES for AMX.
//
// Both matrix products have one form: out[r][lane] += sum over pairs i of a[r][2i] * b[i][lane][0]
// + a[r][2i + 1] * b[i][lane][1], in runs of 16 pairs: one tile instruction, or two fma chains. For
// scores a is the queries and lanes are keys, b the page itself. For values a is softmax's
// numerators and lanes are dimensions; b is the page itself if one page holds all keys of the run
// and all are visible, else a copy that is 0 where nobody may look. A numerator is 0 where its own
// row may not look; so that 0 x NaN adds nothing, rows are computed one by one if a value that only
// some of them see is no number.

namespace quire::kernels::QUIRE_ISA {

#ifdef QUIRE_TILES
using namespace avx512;
#endif

struct Bf16Dot {
  // 16 rows of 16 pairs, `stride` elements apart.
  struct Pairs {
    const uint16_t* p;
    int64_t stride;
  };
#ifdef QUIRE_TILES
  static constexpr int32_t kBlock = 32;  // two tiles
#else
  static constexpr int32_t kBlock = kFlashBlock;
#endif
  static constexpr int32_t kPairs = kDotRun / 2;
  static constexpr int32_t kRuns = kKeySplit / kDotRun;
  static constexpr int32_t kAheadKeys = 64;
  static constexpr float kLog2E = 1.44269504f;
  static constexpr float kLn2 = 0.693147182f;

  // Two pairs of 16 bit behind each other are the 32 bits of a lane.
  static uint16_t* Halves(float* p) { return reinterpret_cast<uint16_t*>(p); }

  // 2^x for x <= 0, relative error below 3e-6 (rounding to bf16 is 4e-3), 1 for 0; 0 below
  // -126. Our own minimax fit.
  static Vec Exp2(Vec x) {
    const Vec magic = Set1(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
    const Vec t = Add(x, magic);
    const Vec r = Sub(x, Sub(t, magic));
    Vec p = Set1(0.00958285294f);
    p = Fma(p, r, Set1(0.0559064262f));
    p = Fma(p, r, Set1(0.240240991f));
    p = Fma(p, r, Set1(0.693124175f));
    p = Fma(p, r, Set1(1.0f));
    return SelectLt(x, Set1(-126.0f), Zero(), AddExponent(p, t));
  }

  // Queries carry the scale, and the change of base that spares the softmax a product.
  static void PackQuery(const FlashTask& t, const FlashPass&, int32_t r, const float* q) {
    const int32_t dim = t.s->head_dim;
    const int32_t dims = FlashDotDims(*t.s);
    const Vec by = Set1(t.s->softmax_scale * kLog2E);
    for (int32_t d = 0; d < dims; d += 16) {
      Vec x = dim - d >= 16 ? Load(q + d) : LoadN(q + d, dim > d ? dim - d : 0);
      x = Mul(x, by);
#ifdef QUIRE_TILES
      StoreHigh(RoundBF16(x), Halves(t.scratch.q) + int64_t{r} * dims + d);
#else
      Store(RoundBF16(x), t.scratch.q + int64_t{r} * dims + d);
#endif
    }
  }

  // Sixteen numerators of a row, v vectors from its first key. Where they are bf16 they lie over
  // the scores that they replace: half as wide, so ascending order overwrites none that is still
  // needed.
  static void StoreP(Vec p, float* row, int32_t v) {
#ifdef QUIRE_TILES
    StoreRounded(p, Halves(row) + v * 16);
#else
    Store(RoundBF16(p), row + v * 16);
#endif
  }

  // Scores of rows to exp(score - max), 0 for keys of their common runs that a row may not see.
  // All maxima come first: a row's numerators wait for its own, but not for the row before.
  static void Softmax(const FlashTask& t, FlashPass& pass) {
    float tops[kFlashRows];
    for (int32_t r = pass.block; r < pass.block_end; ++r) tops[r] = RowMax(t, pass, r);
    for (int32_t r = pass.block; r < pass.block_end; ++r) {
      pass.max[r] = tops[r] * kLn2;
      pass.sum[r] = Numerators(t, pass, r, tops[r]);
      if (tops[r] == -__builtin_inff()) pass.to[r] = pass.from[r];  // nothing is seen
    }
  }

  // -inf if the row sees nothing. Scores of keys that it may not see become -inf.
  static float RowMax(const FlashTask& t, const FlashPass& pass, int32_t r) {
    const int32_t a = pass.from[r] - pass.split;
    const int32_t b = pass.to[r] - pass.split;
    const Vec minus_inf = Set1(-__builtin_inff());
    if (a >= b) return -__builtin_inff();
    float* const s = t.scratch.scores + int64_t{r - pass.block} * kFlashLdScores;
    const int32_t v0 = a / 16;
    const int32_t v1 = (b + 15) / 16;
    // Only the first and the last vector may hold such keys.
    if (a % 16 != 0) Store(KeepLanes(Load(s + v0 * 16), a - v0 * 16, 16, minus_inf), s + v0 * 16);
    if (b % 16 != 0) {
      Store(KeepLanes(Load(s + v1 * 16 - 16), 0, b - v1 * 16 + 16, minus_inf), s + v1 * 16 - 16);
    }
    if (t.s->logit_softcap > 0.0f || t.a->alibi_slopes != nullptr) Transform(t, pass, r, s, v0, v1);
    Vec max = minus_inf;
    for (int32_t v = v0; v < v1; ++v) max = Max(Load(s + v * 16), max);
    return ReduceMax(max);
  }

  // Returns their sum.
  static float Numerators(const FlashTask& t, const FlashPass& pass, int32_t r, float max) {
    float* const s = t.scratch.scores + int64_t{r - pass.block} * kFlashLdScores;
    const int32_t z0 = (pass.runs_from - pass.split) / 16;
    const int32_t z1 = (pass.runs_to - pass.split) / 16;
    if (max == -__builtin_inff()) {
      for (int32_t v = z0; v < z1; ++v) StoreP(Zero(), s, v);
      return 0.0f;
    }
    const int32_t v0 = (pass.from[r] - pass.split) / 16;
    const int32_t v1 = (pass.to[r] - pass.split + 15) / 16;
    for (int32_t v = z0; v < v0; ++v) StoreP(Zero(), s, v);
    const Vec top = Set1(max);
    Vec sum = Zero();
    for (int32_t v = v0; v < v1; ++v) {
      const Vec p = Exp2(Sub(Load(s + v * 16), top));
      sum = Add(sum, p);
      StoreP(p, s, v);
    }
    for (int32_t v = v1; v < z1; ++v) StoreP(Zero(), s, v);
    return ReduceAdd(sum);
  }

  // Soft-cap and slopes.
  static void Transform(const FlashTask& t, const FlashPass& pass, int32_t r, float* s, int32_t v0,
                        int32_t v1) {
    const AttentionShape& shape = *t.s;
    const float* slopes = t.a->alibi_slopes;
    const Vec slope = Set1(slopes != nullptr ? slopes[pass.head[r]] : 0.0f);
    const Vec cap = Set1(shape.logit_softcap);
    for (int32_t v = v0; v < v1; ++v) {
      Vec x = Mul(Load(s + v * 16), Set1(kLn2));
      if (shape.logit_softcap > 0.0f) x = Mul(cap, Tanh(Div(x, cap)));
      if (slopes != nullptr) {
        float distance[16];
        for (int32_t i = 0; i < 16; ++i) {
          distance[i] = static_cast<float>(pass.split + v * 16 + i - pass.pos[r]);
        }
        x = Fma(slope, Load(distance), x);
      }
      Store(Mul(x, Set1(kLog2E)), s + v * 16);
    }
    // Soft-capping has made numbers of the -inf of unseen keys.
    const int32_t a = pass.from[r] - pass.split;
    const int32_t b = pass.to[r] - pass.split;
    const Vec minus_inf = Set1(-__builtin_inff());
    Store(KeepLanes(Load(s + v0 * 16), a - v0 * 16, 16, minus_inf), s + v0 * 16);
    Store(KeepLanes(Load(s + v1 * 16 - 16), 0, b - v1 * 16 + 16, minus_inf), s + v1 * 16 - 16);
  }

  // Narrows the keys [lo, hi) that some row of the pass sees to those that the block's rows do.
  static bool SetRuns(FlashPass& pass, int32_t* lo, int32_t* hi) {
    int32_t from = *hi;
    int32_t to = *lo;
    for (int32_t r = pass.block; r < pass.block_end; ++r) {
      if (pass.from[r] >= pass.to[r]) continue;
      if (pass.from[r] < from) from = pass.from[r];
      if (pass.to[r] > to) to = pass.to[r];
    }
    if (from >= to) from = to = *lo;
    *lo = from;
    *hi = to;
    pass.runs_from = from / kDotRun * kDotRun;
    pass.runs_to = from < to ? (to + kDotRun - 1) / kDotRun * kDotRun : pass.runs_from;
    return from < to;
  }

  // The 16 keys from `key` on: dimensions in whole runs, and the last, shorter run filled up.
  struct Column {
    Pairs whole;
    Pairs rest;
  };
  static Column KeyColumn(const FlashTask& t, const FlashPages& pages, int32_t key, int32_t lo,
                          int32_t hi) {
    const int32_t pairs = (t.s->head_dim + 1) / 2;
    const int32_t whole = t.s->head_dim / kDotRun * kPairs;
    const int32_t all = FlashDotDims(*t.s) / 2;
    uint16_t* const copy = Halves(t.scratch.keys);
    const int64_t ps2 = int64_t{pages.page_size} * 2;
    const Pairs copied = {copy, 32};
    const Pairs copied_rest = {copy + whole * 32, 32};
    if (pages.page_size >= 16) {
      const auto* src = reinterpret_cast<const uint16_t*>(pages.Key(key, 0));
      for (int32_t i = whole; i < all; ++i) {
        if (i < pairs) {
          __builtin_memcpy(copy + i * 32, src + i * ps2, 64);
        } else {
          __builtin_memset(copy + i * 32, 0, 64);
        }
      }
      return {{src, ps2}, copied_rest};
    }
    for (int32_t half = 0; half < 2; ++half) {  // pages of 8 keys
      const int32_t first = key + half * 8;
      if (first + 8 <= lo || first >= hi) continue;  // masked, whatever is here
      const auto* src = reinterpret_cast<const uint16_t*>(pages.Key(first, 0));
      for (int32_t i = 0; i < pairs; ++i) {
        __builtin_memcpy(copy + i * 32 + half * 16, src + i * 16, 32);
      }
    }
    for (int32_t i = pairs; i < all; ++i) __builtin_memset(copy + i * 32, 0, 64);
    return {copied, copied_rest};
  }

  // Asks for the keys of a column, or the values of two runs, that are needed soon.
  static void PrefetchKeys(const FlashPages& pages, int32_t key, int32_t pairs) {
    const std::byte* p = pages.Key(key, 0);
    for (int32_t i = 0; i < pairs; ++i) Prefetch(p + int64_t{i} * pages.page_size * 4);
  }

  // Values of the keys [k0, k0 + 32) that lie within [lo, hi), dimensions [dim0, dim0 + dims): in
  // place, or copied to `copy` with zeros where there is nothing to see.
  static Pairs ValueRun(const FlashTask& t, const FlashPages& pages, int32_t k0, int32_t lo,
                        int32_t hi, int32_t dim0, int32_t dims, uint16_t* copy) {
    const int32_t dv = t.s->head_dim_v;
    if (pages.page_size >= kDotRun && lo <= k0 && hi >= k0 + kDotRun && dims % 16 == 0) {
      return {reinterpret_cast<const uint16_t*>(pages.Value(k0, dv)) + dim0 * 2, int64_t{dv} * 2};
    }
    if (lo <= k0 && hi >= k0 + kDotRun && dims % 16 == 0) {
      const int32_t pairs = (pages.page_size < kDotRun ? pages.page_size : kDotRun) / 2;
      for (int32_t i = 0; i < kPairs; i += pairs) {
        const auto* src = reinterpret_cast<const uint16_t*>(pages.Value(k0 + 2 * i, dv)) + dim0 * 2;
        for (int32_t j = 0; j < pairs; ++j) {
          for (int32_t d = 0; d < dims; d += 16) {
            __builtin_memcpy(copy + (i + j) * 128 + d * 2, src + (int64_t{j} * dv + d) * 2, 64);
          }
        }
      }
      return {copy, 128};
    }
    for (int32_t i = 0; i < kPairs; ++i) {
      const int32_t key = k0 + 2 * i;
      uint16_t* const dst = copy + i * 128;
      if (key + 1 < lo || key >= hi) {
        __builtin_memset(dst, 0, 256);
        continue;
      }
      const auto* src = reinterpret_cast<const uint16_t*>(pages.Value(key, dv)) + dim0 * 2;
      int32_t d = 0;
      for (; d + 16 <= dims; d += 16) __builtin_memcpy(dst + d * 2, src + d * 2, 64);
      for (; d < dims; ++d) __builtin_memcpy(dst + d * 2, src + d * 2, 4);
      for (; d % 16 != 0; ++d) __builtin_memset(dst + d * 2, 0, 4);
      if (key < lo || key + 1 >= hi) {
        const int32_t unseen = key < lo ? 0 : 1;
        for (d = 0; d < dims; ++d) dst[d * 2 + unseen] = 0;
      }
    }
    return {copy, 128};
  }

  static bool AllFinite(Pairs x, int32_t dims) {
    uint32_t bad = 0;
    for (int32_t i = 0; i < kPairs; ++i) {
      for (int32_t d = 0; d < dims * 2; ++d) {
        bad |= ((x.p[i * x.stride + d] & 0x7f80u) + 0x80u) & 0x8000u;
      }
    }
    return bad == 0;
  }

  // The keys that all rows of a pass see.
  struct KeyRange {
    int32_t from, to;
    // Whether they are all keys of [lo, hi) in the run at k0.
    bool Holds(int32_t k0, int32_t lo, int32_t hi) const {
      return k0 >= from / kDotRun * kDotRun && (k0 > from || from <= lo) &&
             (k0 + kDotRun <= to || to >= hi);
    }
  };

  static void Values(const FlashTask& t, const FlashPages& pages, FlashPass& pass, int32_t lo,
                     int32_t hi) {
    const int32_t dv = t.s->head_dim_v;
    const int32_t num_rows = pass.block_end - pass.block;
    KeyRange shared = {lo, hi};
    for (int32_t r = pass.block; r < pass.block_end; ++r) {
      if (pass.from[r] > shared.from) shared.from = pass.from[r];
      if (pass.to[r] < shared.to) shared.to = pass.to[r];
    }
    Pairs runs[kRuns];
    for (int32_t dim0 = 0; dim0 < dv; dim0 += kFlashValueDims) {
      const int32_t dims = dv - dim0 < kFlashValueDims ? dv - dim0 : kFlashValueDims;
      if (ValuesFew(t, pages, pass, lo, hi, dim0, dims, shared)) continue;
      bool finite = true;
      if (dim0 > 0) pass.copied = 0;
      for (int32_t k0 = pass.runs_from; k0 < pass.runs_to; k0 += kDotRun) {
        const int32_t n = (k0 - pass.split) / kDotRun;
        if ((pass.copied >> n & 1u) != 0) {
          runs[n] = {CopyOf(t, n), 128};
        } else {
          PrefetchValues(pages, k0 + kAheadKeys, hi, dv, dim0, dims);
          runs[n] = ValueRun(t, pages, k0, lo, hi, dim0, dims, CopyOf(t, n));
          if (runs[n].p == CopyOf(t, n)) pass.copied |= 1u << n;
        }
        if (!shared.Holds(k0, lo, hi) && !AllFinite(runs[n], dims)) finite = false;
      }
      if (finite) {
        Multiply(t, pass, runs, 0, num_rows, pass.runs_from, pass.runs_to, dim0, dims);
        continue;
      }
      pass.copied = 0;
      for (int32_t r = pass.block; r < pass.block_end; ++r) {
        const int32_t from = pass.from[r] / kDotRun * kDotRun;
        for (int32_t k0 = from; k0 < pass.to[r]; k0 += kDotRun) {
          const int32_t n = (k0 - pass.split) / kDotRun;
          runs[n] = ValueRun(t, pages, k0, pass.from[r], pass.to[r], dim0, dims, CopyOf(t, n));
        }
        Multiply(t, pass, runs, r - pass.block, 1, from,
                 (pass.to[r] + kDotRun - 1) / kDotRun * kDotRun, dim0, dims);
      }
    }
    if (dv > kFlashValueDims) pass.copied = 0;
    // -0 and 0 differ between a run that is not there and one of zeros: make them one.
    float* acc = t.scratch.acc;
    for (int32_t i = 0; i < num_rows * FlashDv16(*t.s); i += 16) {
      Store(Add(Load(acc + i), Zero()), acc + i);
    }
  }

  static uint16_t* CopyOf(const FlashTask& t, int32_t run) {
    return Halves(t.scratch.values) + int64_t{run} * kPairs * 128;
  }

  static void PrefetchValues(const FlashPages& pages, int32_t k0, int32_t hi, int32_t dv,
                             int32_t dim0, int32_t dims) {
    for (int32_t key = k0; key < k0 + kDotRun && key < hi; key += 2) {
      const std::byte* p = pages.Value(key, dv) + int64_t{dim0} * 4;
      for (int32_t d = 0; d < dims; d += 16) Prefetch(p + d * 4);
    }
  }

#ifdef QUIRE_TILES
#include "kernels/cpu/attention_flash_tiles-inl.h"
#else
  // acc[r][c] += a[r] x b[c] over one run, for R rows of `a` that are `lda` floats apart.
  template <int R, int C>
  static void Run(const float* a, int64_t lda, const Pairs* b, Vec (*acc)[C]) {
    Vec even[R][C], odd[R][C];
    QUIRE_UNROLL
    for (int r = 0; r < R; ++r) {
      QUIRE_UNROLL
      for (int c = 0; c < C; ++c) even[r][c] = odd[r][c] = Zero();
    }
    for (int32_t i = 0; i < kPairs; ++i) {
      Vec x[C], y[C];
      QUIRE_UNROLL
      for (int c = 0; c < C; ++c) {
        x[c] = LoadEvenBF16(b[c].p + i * b[c].stride);
        y[c] = LoadOddBF16(b[c].p + i * b[c].stride);
        Pin(x[c]);
        Pin(y[c]);
      }
      QUIRE_UNROLL
      for (int r = 0; r < R; ++r) {
        const Vec first = Set1(a[r * lda + 2 * i]), second = Set1(a[r * lda + 2 * i + 1]);
        QUIRE_UNROLL
        for (int c = 0; c < C; ++c) {
          even[r][c] = Fma(first, x[c], even[r][c]);
          odd[r][c] = Fma(second, y[c], odd[r][c]);
        }
      }
    }
    QUIRE_UNROLL
    for (int r = 0; r < R; ++r) {
      QUIRE_UNROLL
      for (int c = 0; c < C; ++c) acc[r][c] = Add(acc[r][c], Add(even[r][c], odd[r][c]));
    }
  }

  // Rows whose sums fit into registers share each load of a key or value, and their chains of
  // multiply-adds hide each other's latency. Few rows take several columns of b at once instead.
  static constexpr int32_t kMostRows = kMaxVecs >= 4 ? 6 : 3;
  template <int R>
  static constexpr int kColumnsOf = (kMaxVecs < 4 || R >= 6) ? 1 : (R >= 4 ? 2 : 4);

  // The next 16 * C keys, of one page each.
  template <int R, int C>
  static void ScoreRows(const float* q, int32_t dims, int32_t num_whole, const Column* columns,
                        float* s) {
    Vec acc[R][C];
    for (int r = 0; r < R; ++r) {
      for (int c = 0; c < C; ++c) acc[r][c] = Zero();
    }
    for (int32_t n = 0; n * kDotRun < dims; ++n) {
      Pairs b[C];
      for (int c = 0; c < C; ++c) {
        const Pairs& whole = columns[c].whole;
        b[c] = n < num_whole ? Pairs{whole.p + n * kPairs * whole.stride, whole.stride}
                             : columns[c].rest;
      }
      Run<R, C>(q + n * kDotRun, dims, b, acc);
    }
    for (int r = 0; r < R; ++r) {
      for (int c = 0; c < C; ++c) Store(acc[r][c], s + r * kFlashLdScores + c * 16);
    }
  }

  // Scores of R rows, q and s their first, for the keys [key, hi) in whole vectors, of which none
  // lies before `lo`. Returns where it has stopped: after C columns, if C keys are in their pages.
  template <int R>
  static int32_t ScoreColumns(const FlashTask& t, const FlashPages& pages, const float* q,
                              int32_t key, int32_t lo, int32_t hi, float* s) {
    constexpr int C = kColumnsOf<R>;
    const int32_t dims = FlashDotDims(*t.s);
    const int32_t num_whole = t.s->head_dim / kDotRun;
    const bool in_place = pages.page_size >= 16 && num_whole * kDotRun == dims;
    Column columns[C];
    if (C > 1 && in_place && key + 16 * (C - 1) < hi) {
      for (int c = 0; c < C; ++c) columns[c] = KeyColumn(t, pages, key + c * 16, lo, hi);
      ScoreRows<R, C>(q, dims, num_whole, columns, s);
      return key + 16 * C;
    }
    columns[0] = KeyColumn(t, pages, key, lo, hi);
    ScoreRows<R, 1>(q, dims, num_whole, columns, s);
    return key + 16;
  }

  // All rows of a block, if they are few.
  template <int R>
  static void ScoreFew(const FlashTask& t, const FlashPages& pages, const FlashPass& pass,
                       int32_t lo, int32_t hi) {
    const float* q = t.scratch.q + int64_t{pass.block} * FlashDotDims(*t.s);
    for (int32_t key = lo / 16 * 16; key < hi;) {
      for (int32_t c = 0; c < 16 * kColumnsOf<R> && key + c + kAheadKeys < hi; c += 16) {
        PrefetchKeys(pages, key + c + kAheadKeys, (t.s->head_dim + 1) / 2);
      }
      key = ScoreColumns<R>(t, pages, q, key, lo, hi, t.scratch.scores + (key - pass.split));
    }
  }

  // Many: what a column brings into the nearest cache is for all of them.
  static void ScoreMany(const FlashTask& t, const FlashPages& pages, const FlashPass& pass,
                        int32_t lo, int32_t hi) {
    const int32_t dims = FlashDotDims(*t.s);
    const int32_t num_whole = t.s->head_dim / kDotRun;
    const int32_t rows = pass.block_end - pass.block;
    for (int32_t key = lo / 16 * 16; key < hi; key += 16) {
      const Column column = KeyColumn(t, pages, key, lo, hi);
      if (key + kAheadKeys < hi) PrefetchKeys(pages, key + kAheadKeys, (t.s->head_dim + 1) / 2);
      const float* q = t.scratch.q + int64_t{pass.block} * dims;
      float* s = t.scratch.scores + (key - pass.split);
      int32_t r = 0;
      for (; r + kMostRows <= rows; r += kMostRows) {
        ScoreRows<kMostRows, 1>(q + r * dims, dims, num_whole, &column, s + r * kFlashLdScores);
      }
      for (; r < rows; ++r) {
        ScoreRows<1, 1>(q + r * dims, dims, num_whole, &column, s + r * kFlashLdScores);
      }
    }
  }

  __attribute__((noinline)) static void ScoresFlushed(const FlashTask& t, const FlashPages& pages,
                                                      const FlashPass& pass, int32_t lo,
                                                      int32_t hi) {
    switch (pass.block_end - pass.block) {
      case 1:
        return ScoreFew<1>(t, pages, pass, lo, hi);
      case 2:
        return ScoreFew<2>(t, pages, pass, lo, hi);
      case 3:
        return ScoreFew<3>(t, pages, pass, lo, hi);
      case 4:
        if (kMostRows >= 4) return ScoreFew<4>(t, pages, pass, lo, hi);
        break;
      case 5:
        if (kMostRows >= 5) return ScoreFew<5>(t, pages, pass, lo, hi);
        break;
      default:
        break;
    }
    ScoreMany(t, pages, pass, lo, hi);
  }

  // Sums of 16 * C dimensions from dim0 + d on.
  template <int R, int C>
  static void MultiplyRows(const FlashTask& t, const Pairs* runs, int32_t r, int32_t from,
                           int32_t to, int32_t split, int32_t dim0, int32_t d) {
    const float* p = t.scratch.scores + int64_t{r} * kFlashLdScores;
    Vec acc[R][C];
    for (int i = 0; i < R; ++i) {
      for (int c = 0; c < C; ++c) acc[i][c] = Zero();
    }
    for (int32_t k0 = from; k0 < to; k0 += kDotRun) {
      const Pairs run = runs[(k0 - split) / kDotRun];
      Pairs b[C];
      for (int c = 0; c < C; ++c) b[c] = {run.p + (d + c * 16) * 2, run.stride};
      Run<R, C>(p + (k0 - split), kFlashLdScores, b, acc);
    }
    const int32_t dv16 = FlashDv16(*t.s);
    for (int i = 0; i < R; ++i) {
      for (int c = 0; c < C; ++c) {
        Store(acc[i][c], t.scratch.acc + (r + i) * dv16 + dim0 + d + c * 16);
      }
    }
  }

  template <int R>
  static void MultiplyDims(const FlashTask& t, const Pairs* runs, int32_t r, int32_t from,
                           int32_t to, int32_t split, int32_t dim0, int32_t dims) {
    constexpr int C = kColumnsOf<R>;
    int32_t d = 0;
    for (; d + 16 * C <= dims; d += 16 * C) {
      MultiplyRows<R, C>(t, runs, r, from, to, split, dim0, d);
    }
    for (; d < dims; d += 16) MultiplyRows<R, 1>(t, runs, r, from, to, split, dim0, d);
  }

  __attribute__((noinline)) static void MultiplyFlushed(const FlashTask& t, const FlashPass& pass,
                                                        const Pairs* runs, int32_t row,
                                                        int32_t num_rows, int32_t from, int32_t to,
                                                        int32_t dim0, int32_t dims) {
    for (int32_t i = 0; i < num_rows; i += kMostRows) {
      const int32_t r = row + i;
      switch (num_rows - i) {
        case 1:
          MultiplyDims<1>(t, runs, r, from, to, pass.split, dim0, dims);
          continue;
        case 2:
          MultiplyDims<2>(t, runs, r, from, to, pass.split, dim0, dims);
          continue;
        case 3:
          MultiplyDims<3>(t, runs, r, from, to, pass.split, dim0, dims);
          continue;
        case 4:
          MultiplyDims < kMostRows<4 ? kMostRows : 4>(t, runs, r, from, to, pass.split, dim0, dims);
          continue;
        case 5:
          MultiplyDims < kMostRows<5 ? kMostRows : 5>(t, runs, r, from, to, pass.split, dim0, dims);
          continue;
        default:
          MultiplyDims<kMostRows>(t, runs, r, from, to, pass.split, dim0, dims);
      }
    }
  }

  // What AMX always does. The work is in functions of their own, so that the compiler moves none of
  // it out of the object's life.
  struct FlushDenormals {
#if defined(__x86_64__)
    const unsigned saved = _mm_getcsr();
    FlushDenormals() { _mm_setcsr(saved | 0x8040u); }
    ~FlushDenormals() { _mm_setcsr(saved); }
#endif
  };
  static void Scores(const FlashTask& t, const FlashPages& pages, FlashPass& pass, int32_t lo,
                     int32_t hi) {
    if (!SetRuns(pass, &lo, &hi)) return;
    const FlushDenormals flush;
    ScoresFlushed(t, pages, pass, lo, hi);
  }
  static void Multiply(const FlashTask& t, const FlashPass& pass, const Pairs* runs, int32_t row,
                       int32_t num_rows, int32_t from, int32_t to, int32_t dim0, int32_t dims) {
    const FlushDenormals flush;
    MultiplyFlushed(t, pass, runs, row, num_rows, from, to, dim0, dims);
  }
  static void Begin(int32_t) {}
  static bool ValuesFew(const FlashTask&, const FlashPages&, const FlashPass&, int32_t, int32_t,
                        int32_t, int32_t, KeyRange) {
    return false;
  }
#endif
};

void FlashItemBF16(const FlashTask& t) {
  Bf16Dot::Begin(t.item.num_q * (t.s->num_heads / t.s->num_kv_heads));
  FlashItemOf<Bf16Dot>(t);
}

}  // namespace quire::kernels::QUIRE_ISA
