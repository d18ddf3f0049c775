// kernels/cpu/vec_avx512-inl.h -- 16 float lanes in one register; meanings in vec_portable-inl.h.
// Included by foreach_isa-inl.h only, inside its AVX-512 region.
#pragma once

namespace quire::kernels::avx512 {

inline constexpr int kMaxVecs = 4;

struct Vec {
  __m512 v;
};

// Keeps a loaded value in a register: gcc would load it again for each use.
inline void Pin(Vec& x) { __asm__("" : "+v"(x.v)); }
inline void Prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }

inline Vec Set1(float x) { return {_mm512_set1_ps(x)}; }
inline Vec Zero() { return {_mm512_setzero_ps()}; }
inline __mmask16 FirstLanes(int n) { return static_cast<__mmask16>((1u << n) - 1u); }

inline Vec Load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline Vec LoadN(const float* p, int n) { return {_mm512_maskz_loadu_ps(FirstLanes(n), p)}; }
inline void Store(Vec x, float* p) { _mm512_storeu_ps(p, x.v); }
inline void StoreN(Vec x, float* p, int n) { _mm512_mask_storeu_ps(p, FirstLanes(n), x.v); }
inline Vec LoadBF16(const uint16_t* p) {
  const __m256i h = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16))};
}
inline void StoreBF16(Vec x, uint16_t* p) {
  const __m512i u = _mm512_castps_si512(x.v);
  const __m512i lsb = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
  __m512i r = _mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)), lsb);
  const __mmask16 tiny = _mm512_testn_epi32_mask(r, _mm512_set1_epi32(0x7f800000));
  r = _mm512_mask_and_epi32(r, tiny, r, _mm512_set1_epi32(-0x7fffffff - 1));
  const __mmask16 nan = _mm512_cmp_ps_mask(x.v, x.v, _CMP_UNORD_Q);
  r = _mm512_mask_or_epi32(r, nan, u, _mm512_set1_epi32(0x400000));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm512_cvtepi32_epi16(_mm512_srli_epi32(r, 16)));
}
inline Vec LoadEvenBF16(const uint16_t* p) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(p), 16))};
}
inline Vec LoadOddBF16(const uint16_t* p) {
  const __m512i high = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
  return {_mm512_castsi512_ps(_mm512_and_si512(_mm512_loadu_si512(p), high))};
}
inline Vec RoundBF16(Vec x) {
  const __m512i u = _mm512_castps_si512(x.v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
  const __m512i up = _mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)), odd);
  const __m512i r = _mm512_mask_or_epi32(up, _mm512_cmp_ps_mask(x.v, x.v, _CMP_UNORD_Q), u,
                                         _mm512_set1_epi32(0x400000));
  return {
      _mm512_castsi512_ps(_mm512_and_si512(r, _mm512_set1_epi32(static_cast<int>(0xffff0000u))))};
}
inline void StoreHigh(Vec x, uint16_t* p) {
  const __m512i u = _mm512_srli_epi32(_mm512_castps_si512(x.v), 16);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(u));
}
inline void StoreHighPairs(Vec even, Vec odd, uint16_t* p) {
  const __m512i low = _mm512_srli_epi32(_mm512_castps_si512(even.v), 16);
  _mm512_storeu_si512(p, _mm512_mask_blend_epi16(0xaaaaaaaau, low, _mm512_castps_si512(odd.v)));
}
// Words, then pairs of them, then quarters change places.
inline void TransposeWords(const uint32_t* from, int64_t ld_from, uint32_t* to, int64_t ld_to) {
  __m512i a[16], b[16];
  QUIRE_UNROLL
  for (int i = 0; i < 16; ++i) a[i] = _mm512_loadu_si512(from + i * ld_from);
  QUIRE_UNROLL
  for (int i = 0; i < 16; i += 2) {
    b[i] = _mm512_unpacklo_epi32(a[i], a[i + 1]);
    b[i + 1] = _mm512_unpackhi_epi32(a[i], a[i + 1]);
  }
  // a[4 g + c]: of rows 4 g .. 4 g + 3, the columns c, c + 4, c + 8, c + 12.
  QUIRE_UNROLL
  for (int i = 0; i < 16; i += 4) {
    a[i] = _mm512_unpacklo_epi64(b[i], b[i + 2]);
    a[i + 1] = _mm512_unpackhi_epi64(b[i], b[i + 2]);
    a[i + 2] = _mm512_unpacklo_epi64(b[i + 1], b[i + 3]);
    a[i + 3] = _mm512_unpackhi_epi64(b[i + 1], b[i + 3]);
  }
  QUIRE_UNROLL
  for (int c = 0; c < 4; ++c) {
    const __m512i x = _mm512_shuffle_i32x4(a[c], a[4 + c], 0x88);  // columns c, c + 8
    const __m512i y = _mm512_shuffle_i32x4(a[c], a[4 + c], 0xdd);  // c + 4, c + 12
    const __m512i z = _mm512_shuffle_i32x4(a[8 + c], a[12 + c], 0x88);
    const __m512i w = _mm512_shuffle_i32x4(a[8 + c], a[12 + c], 0xdd);
    _mm512_storeu_si512(to + c * ld_to, _mm512_shuffle_i32x4(x, z, 0x88));
    _mm512_storeu_si512(to + (c + 4) * ld_to, _mm512_shuffle_i32x4(y, w, 0x88));
    _mm512_storeu_si512(to + (c + 8) * ld_to, _mm512_shuffle_i32x4(x, z, 0xdd));
    _mm512_storeu_si512(to + (c + 12) * ld_to, _mm512_shuffle_i32x4(y, w, 0xdd));
  }
}
inline void StoreCodes(Vec lo, Vec hi, int8_t* p) {
  const __m128i order = _mm_setr_epi8(0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15);
  const __m128i a = _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(lo.v));
  const __m128i b = _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(hi.v));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm_shuffle_epi8(a, order));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 16), _mm_shuffle_epi8(b, order));
}
inline Vec LoadF16(const uint16_t* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
inline Vec LoadI8(const int8_t* p) {
  const __m128i b = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(b))};
}

inline Vec Fma(Vec a, Vec b, Vec c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline Vec Add(Vec a, Vec b) { return {_mm512_add_ps(a.v, b.v)}; }
inline Vec Sub(Vec a, Vec b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline Vec Mul(Vec a, Vec b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline Vec Div(Vec a, Vec b) { return {_mm512_div_ps(a.v, b.v)}; }
inline Vec Max(Vec a, Vec b) { return {_mm512_max_ps(a.v, b.v)}; }
inline Vec Abs(Vec a) { return {_mm512_abs_ps(a.v)}; }
inline Vec CopySign(Vec magnitude, Vec sign) {
  const __m512 bit = _mm512_set1_ps(-0.0f);
  return {_mm512_or_ps(_mm512_andnot_ps(bit, magnitude.v), _mm512_and_ps(bit, sign.v))};
}
inline Vec SelectLt(Vec a, Vec b, Vec x, Vec y) {
  return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ), y.v, x.v)};
}
inline uint32_t LanesLt(Vec a, Vec b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ); }
inline uint32_t LanesEq(Vec a, Vec b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_EQ_OQ); }
inline Vec KeepLanes(Vec x, int lo, int hi, Vec y) {
  const __mmask16 keep = static_cast<__mmask16>(FirstLanes(hi) & ~FirstLanes(lo));
  return {_mm512_mask_blend_ps(keep, y.v, x.v)};
}
inline Vec AddExponent(Vec p, Vec t) {
  return {_mm512_castsi512_ps(
      _mm512_add_epi32(_mm512_castps_si512(p.v), _mm512_slli_epi32(_mm512_castps_si512(t.v), 23)))};
}

inline float ReduceAdd(Vec x) {
  const __m256 lo = _mm512_castps512_ps256(x.v);
  const __m256 a = _mm256_add_ps(lo, _mm512_extractf32x8_ps(x.v, 1));
  __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  b = _mm_add_ps(b, _mm_movehl_ps(b, b));
  return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}
inline float ReduceMax(Vec x) {
  const __m256 lo = _mm512_castps512_ps256(x.v);
  const __m256 a = _mm256_max_ps(lo, _mm512_extractf32x8_ps(x.v, 1));
  __m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  b = _mm_max_ps(b, _mm_movehl_ps(b, b));
  return _mm_cvtss_f32(_mm_max_ss(b, _mm_movehdup_ps(b)));
}

// Lane i of the result is what ReduceAdd or ReduceMax gives for x[i]: the same pairs, sixteen trees
// side by side.
template <typename Op>
Vec ReduceEach(const Vec* x, Op op) {
  __m512 half[8], quarter[4];
  QUIRE_UNROLL
  for (int i = 0; i < 4; ++i) {
    QUIRE_UNROLL
    for (int j = 0; j < 2; ++j) {
      const __m512 a = x[8 * j + i].v, b = x[8 * j + i + 4].v;
      half[2 * i + j] = op(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
    }
    const __m512 a = half[2 * i], b = half[2 * i + 1];
    quarter[i] = op(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
  }
  __m512 pair[2];
  QUIRE_UNROLL
  for (int i = 0; i < 2; ++i) {
    const __m512d a = _mm512_castps_pd(quarter[2 * i]), b = _mm512_castps_pd(quarter[2 * i + 1]);
    pair[i] =
        op(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)), _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
  }
  return {op(_mm512_shuffle_ps(pair[0], pair[1], 0x88), _mm512_shuffle_ps(pair[0], pair[1], 0xdd))};
}
struct AddOp {
  __m512 operator()(__m512 a, __m512 b) const { return _mm512_add_ps(a, b); }
};
struct MaxOp {
  __m512 operator()(__m512 a, __m512 b) const { return _mm512_max_ps(a, b); }
};
inline Vec ReduceAddEach(const Vec* x) { return ReduceEach(x, AddOp()); }
inline Vec ReduceMaxEach(const Vec* x) { return ReduceEach(x, MaxOp()); }

struct Wide {
  __m512d lo, hi;
};
inline Wide ZeroWide() { return {_mm512_setzero_pd(), _mm512_setzero_pd()}; }
inline Wide AddWide(Wide sum, Vec x) {
  return {_mm512_add_pd(sum.lo, _mm512_cvtps_pd(_mm512_castps512_ps256(x.v))),
          _mm512_add_pd(sum.hi, _mm512_cvtps_pd(_mm512_extractf32x8_ps(x.v, 1)))};
}
inline double ReduceAdd(Wide x) {
  const __m512d a = _mm512_add_pd(x.lo, x.hi);
  const __m256d b = _mm256_add_pd(_mm512_castpd512_pd256(a), _mm512_extractf64x4_pd(a, 1));
  const __m128d c = _mm_add_pd(_mm256_castpd256_pd128(b), _mm256_extractf128_pd(b, 1));
  return _mm_cvtsd_f64(_mm_add_sd(c, _mm_unpackhi_pd(c, c)));
}

}  // namespace quire::kernels::avx512
