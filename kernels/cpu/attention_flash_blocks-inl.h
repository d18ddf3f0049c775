// kernels/cpu/attention_flash_blocks-inl.h -- register blocks of `flash`: rows x keys for scores,
// rows x dims for values. Part of attention_flash-inl.h, once per ISA.

namespace quire::kernels::QUIRE_ISA {

// Where the next tile's keys are: read ahead while this one is computed, since pages lie anywhere
// and the hardware's prefetchers stop at their ends. A pointer to what is in use asks for nothing
// new.
struct Ahead {
  const std::byte* k[kKeyTile / 16];
  int64_t stride;  // bytes from d to d + 1
};
struct AheadValues {
  const std::byte* v;
  int64_t stride;     // bytes from key to key + 1
  int64_t vec_bytes;  // of 16 values
};

// s[r][key] = scale * sum over d of q[d][r] * k[d][key]: R rows, NV vectors of 16 keys. Heads wider
// than kDimChain are summed in runs of it, through `s`.
template <int R, int NV>
inline void ScoreBlock(const float* q, const float* const* k, const std::byte* const* ahead,
                       int64_t ahead_stride, int64_t k_stride, int32_t head_dim, float scale,
                       float* s) {
  for (int32_t d0 = 0; d0 < head_dim; d0 += kDimChain) {
    const int32_t d1 = head_dim - d0 < kDimChain ? head_dim : d0 + kDimChain;
    Vec acc[R][NV];
    QUIRE_UNROLL
    for (int r = 0; r < R; ++r) {
      QUIRE_UNROLL
      for (int v = 0; v < NV; ++v) acc[r][v] = Zero();
    }
    for (int32_t d = d0; d < d1; ++d) {
      Vec key[NV];
      QUIRE_UNROLL
      for (int v = 0; v < NV; ++v) {
        key[v] = Load(k[v] + d * k_stride);
        Pin(key[v]);
        Prefetch(ahead[v] + d * ahead_stride);
      }
      QUIRE_UNROLL
      for (int r = 0; r < R; ++r) {
        const Vec x = Set1(q[d * R + r]);
        QUIRE_UNROLL
        for (int v = 0; v < NV; ++v) acc[r][v] = Fma(x, key[v], acc[r][v]);
      }
    }
    const Vec by = Set1(d1 == head_dim ? scale : 1.0f);
    QUIRE_UNROLL
    for (int r = 0; r < R; ++r) {
      QUIRE_UNROLL
      for (int v = 0; v < NV; ++v) {
        float* const to = s + r * kFlashLdScores + v * 16;
        const Vec sum = d0 == 0 ? acc[r][v] : Add(Load(to), acc[r][v]);
        Store(Mul(sum, by), to);
      }
    }
  }
}

// acc[r][dim] += sum over keys of p[r][key] * v[key][dim]: R rows, NV vectors of 16 dims.
template <int R, int NV>
inline void ValueBlock(const float* p, int32_t num_keys, const float* v, const AheadValues& ahead,
                       int64_t v_stride, int32_t dim, float* acc, int32_t ld_acc) {
  Vec sum[R][NV];
  QUIRE_UNROLL
  for (int r = 0; r < R; ++r) {
    QUIRE_UNROLL
    for (int i = 0; i < NV; ++i) sum[r][i] = Load(acc + r * ld_acc + i * 16);
  }
  for (int32_t key = 0; key < num_keys; ++key) {
    Vec x[NV];
    QUIRE_UNROLL
    for (int i = 0; i < NV; ++i) {
      x[i] = Load(v + key * v_stride + i * 16);
      Pin(x[i]);
      Prefetch(ahead.v + key * ahead.stride + (dim / 16 + i) * ahead.vec_bytes);
    }
    QUIRE_UNROLL
    for (int r = 0; r < R; ++r) {
      const Vec w = Set1(p[r * kFlashLdScores + key]);
      QUIRE_UNROLL
      for (int i = 0; i < NV; ++i) sum[r][i] = Fma(w, x[i], sum[r][i]);
    }
  }
  QUIRE_UNROLL
  for (int r = 0; r < R; ++r) {
    QUIRE_UNROLL
    for (int i = 0; i < NV; ++i) Store(sum[r][i], acc + r * ld_acc + i * 16);
  }
}

template <int R>
inline void ScoreRows(const float* q, const float* const* k, const Ahead& ahead, int64_t k_stride,
                      int v0, int v1, int32_t head_dim, float scale, float* s) {
  while (v0 < v1) {
    if constexpr (kMaxVecs >= 4) {
      if (v1 - v0 >= 4) {
        ScoreBlock<R, 4>(q, k + v0, ahead.k + v0, ahead.stride, k_stride, head_dim, scale,
                         s + v0 * 16);
        v0 += 4;
        continue;
      }
      if (v1 - v0 >= 2) {
        ScoreBlock<R, 2>(q, k + v0, ahead.k + v0, ahead.stride, k_stride, head_dim, scale,
                         s + v0 * 16);
        v0 += 2;
        continue;
      }
    }
    ScoreBlock<R, 1>(q, k + v0, ahead.k + v0, ahead.stride, k_stride, head_dim, scale, s + v0 * 16);
    ++v0;
  }
}

template <int R>
inline void ValueRows(const float* p, int32_t num_keys, const float* v, const AheadValues& ahead,
                      int64_t v_stride, int32_t dv16, float* acc) {
  int32_t dim = 0;
  if constexpr (kMaxVecs >= 4) {
    for (; dim + 64 <= dv16; dim += 64) {
      ValueBlock<R, 4>(p, num_keys, v + dim, ahead, v_stride, dim, acc + dim, dv16);
    }
    for (; dim + 32 <= dv16; dim += 32) {
      ValueBlock<R, 2>(p, num_keys, v + dim, ahead, v_stride, dim, acc + dim, dv16);
    }
  }
  for (; dim < dv16; dim += 16) {
    ValueBlock<R, 1>(p, num_keys, v + dim, ahead, v_stride, dim, acc + dim, dv16);
  }
}

inline void ScoreDispatch(int rows, const float* q, const float* const* k, const Ahead& ahead,
                          int64_t k_stride, int v0, int v1, int32_t head_dim, float scale,
                          float* s) {
  switch (rows) {
    case 1:
      return ScoreRows<1>(q, k, ahead, k_stride, v0, v1, head_dim, scale, s);
    case 2:
      return ScoreRows<2>(q, k, ahead, k_stride, v0, v1, head_dim, scale, s);
    case 3:
      return ScoreRows<3>(q, k, ahead, k_stride, v0, v1, head_dim, scale, s);
    case 4:
      return ScoreRows<4>(q, k, ahead, k_stride, v0, v1, head_dim, scale, s);
    case 5:
      return ScoreRows<5>(q, k, ahead, k_stride, v0, v1, head_dim, scale, s);
    default:
      return ScoreRows<6>(q, k, ahead, k_stride, v0, v1, head_dim, scale, s);
  }
}

inline void ValueDispatch(int rows, const float* p, int32_t num_keys, const float* v,
                          const AheadValues& ahead, int64_t v_stride, int32_t dv16, float* acc) {
  switch (rows) {
    case 1:
      return ValueRows<1>(p, num_keys, v, ahead, v_stride, dv16, acc);
    case 2:
      return ValueRows<2>(p, num_keys, v, ahead, v_stride, dv16, acc);
    case 3:
      return ValueRows<3>(p, num_keys, v, ahead, v_stride, dv16, acc);
    case 4:
      return ValueRows<4>(p, num_keys, v, ahead, v_stride, dv16, acc);
    case 5:
      return ValueRows<5>(p, num_keys, v, ahead, v_stride, dv16, acc);
    default:
      return ValueRows<6>(p, num_keys, v, ahead, v_stride, dv16, acc);
  }
}

}  // namespace quire::kernels::QUIRE_ISA
