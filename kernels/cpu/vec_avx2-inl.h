// kernels/cpu/vec_avx2-inl.h -- 16 float lanes in two registers; meanings in vec_portable-inl.h.
// Included by foreach_isa-inl.h only, inside its AVX2 region.
#pragma once

namespace quire::kernels::avx2 {

inline constexpr int kMaxVecs = 1;  // 6 rows x 2 registers of sums, of 16

struct Vec {
  __m256 lo, hi;
};

// Keeps a loaded value in a register: gcc would load it again for each use.
inline void Pin(Vec& x) { __asm__("" : "+x"(x.lo), "+x"(x.hi)); }
inline void Prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }

inline Vec Set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline Vec Zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
// Lanes [0, n) of 8 all ones; n may lie outside 0..8.
inline __m256i FirstLanes(int n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

inline Vec Load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline Vec LoadN(const float* p, int n) {
  return {_mm256_maskload_ps(p, FirstLanes(n)), _mm256_maskload_ps(p + 8, FirstLanes(n - 8))};
}
inline void Store(Vec x, float* p) {
  _mm256_storeu_ps(p, x.lo);
  _mm256_storeu_ps(p + 8, x.hi);
}
inline void StoreN(Vec x, float* p, int n) {
  _mm256_maskstore_ps(p, FirstLanes(n), x.lo);
  _mm256_maskstore_ps(p + 8, FirstLanes(n - 8), x.hi);
}
inline __m256 LoadBF16x8(const uint16_t* p) {
  const __m128i h = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}
inline Vec LoadBF16(const uint16_t* p) { return {LoadBF16x8(p), LoadBF16x8(p + 8)}; }
// Bits of bfloat16 in the lower halves; rules in vec_portable-inl.h.
inline __m256i TileBF16x8(__m256 x) {
  const __m256i u = _mm256_castps_si256(x);
  const __m256i lsb = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
  const __m256i r = _mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), lsb);
  const __m256i exponent = _mm256_and_si256(r, _mm256_set1_epi32(0x7f800000));
  const __m256i tiny = _mm256_cmpeq_epi32(exponent, _mm256_setzero_si256());
  const __m256i sign = _mm256_and_si256(u, _mm256_set1_epi32(-0x7fffffff - 1));
  const __m256i finite = _mm256_blendv_epi8(r, sign, tiny);
  const __m256i quiet = _mm256_or_si256(u, _mm256_set1_epi32(0x400000));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  return _mm256_srli_epi32(_mm256_blendv_epi8(finite, quiet, nan), 16);
}
inline void StoreBF16(Vec x, uint16_t* p) {
  const __m256i both = _mm256_packus_epi32(TileBF16x8(x.lo), TileBF16x8(x.hi));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(both, 0xd8));
}
inline __m256i LoadPairs(const uint16_t* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
inline Vec LoadEvenBF16(const uint16_t* p) {
  return {_mm256_castsi256_ps(_mm256_slli_epi32(LoadPairs(p), 16)),
          _mm256_castsi256_ps(_mm256_slli_epi32(LoadPairs(p + 16), 16))};
}
inline Vec LoadOddBF16(const uint16_t* p) {
  const __m256i high = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
  return {_mm256_castsi256_ps(_mm256_and_si256(LoadPairs(p), high)),
          _mm256_castsi256_ps(_mm256_and_si256(LoadPairs(p + 16), high))};
}
inline __m256 RoundBF16x8(__m256 x) {
  const __m256i u = _mm256_castps_si256(x);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
  const __m256i up = _mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), odd);
  const __m256i quiet = _mm256_or_si256(u, _mm256_set1_epi32(0x400000));
  const __m256 r = _mm256_blendv_ps(_mm256_castsi256_ps(up), _mm256_castsi256_ps(quiet),
                                    _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  return _mm256_and_ps(r, _mm256_castsi256_ps(_mm256_set1_epi32(static_cast<int>(0xffff0000u))));
}
inline Vec RoundBF16(Vec x) { return {RoundBF16x8(x.lo), RoundBF16x8(x.hi)}; }
inline void StoreHigh(Vec x, uint16_t* p) {
  const __m256i both = _mm256_packus_epi32(_mm256_srli_epi32(_mm256_castps_si256(x.lo), 16),
                                           _mm256_srli_epi32(_mm256_castps_si256(x.hi), 16));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(both, 0xd8));
}
inline __m256i HighPairs(__m256 even, __m256 odd) {
  return _mm256_blend_epi16(_mm256_srli_epi32(_mm256_castps_si256(even), 16),
                            _mm256_castps_si256(odd), 0xaa);
}
inline void StoreHighPairs(Vec even, Vec odd, uint16_t* p) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), HighPairs(even.lo, odd.lo));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 16), HighPairs(even.hi, odd.hi));
}
inline void TransposeWords(const uint32_t* from, int64_t ld_from, uint32_t* to, int64_t ld_to) {
  for (int j = 0; j < 16; ++j) {
    for (int i = 0; i < 16; ++i) to[j * ld_to + i] = from[i * ld_from + j];
  }
}
inline void StoreCodes(Vec lo, Vec hi, int8_t* p) {
  const __m256i a = _mm256_packs_epi32(_mm256_cvtps_epi32(lo.lo), _mm256_cvtps_epi32(lo.hi));
  const __m256i b = _mm256_packs_epi32(_mm256_cvtps_epi32(hi.lo), _mm256_cvtps_epi32(hi.hi));
  // Words of four: 0..3, 8..11, 16..19, 24..27 | 4..7, 12..15, ...
  const __m256i bytes = _mm256_packs_epi16(a, b);
  const __m256i ordered =
      _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
  const __m256i order = _mm256_setr_epi8(0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15, 0, 4,
                                         1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_shuffle_epi8(ordered, order));
}
inline Vec LoadF16(const uint16_t* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
          _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
}
inline Vec LoadI8(const int8_t* p) {
  const __m128i b = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(b)),
          _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(b, 8)))};
}

inline Vec Fma(Vec a, Vec b, Vec c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
inline Vec Add(Vec a, Vec b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
inline Vec Sub(Vec a, Vec b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
inline Vec Mul(Vec a, Vec b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
inline Vec Div(Vec a, Vec b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
inline Vec Max(Vec a, Vec b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
inline Vec Abs(Vec a) {
  const __m256 bit = _mm256_set1_ps(-0.0f);
  return {_mm256_andnot_ps(bit, a.lo), _mm256_andnot_ps(bit, a.hi)};
}
inline Vec CopySign(Vec magnitude, Vec sign) {
  const __m256 bit = _mm256_set1_ps(-0.0f);
  return {_mm256_or_ps(_mm256_andnot_ps(bit, magnitude.lo), _mm256_and_ps(bit, sign.lo)),
          _mm256_or_ps(_mm256_andnot_ps(bit, magnitude.hi), _mm256_and_ps(bit, sign.hi))};
}
inline Vec SelectLt(Vec a, Vec b, Vec x, Vec y) {
  return {_mm256_blendv_ps(y.lo, x.lo, _mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ)),
          _mm256_blendv_ps(y.hi, x.hi, _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ))};
}
inline uint32_t LanesOf(__m256 lo, __m256 hi) {
  return static_cast<uint32_t>(_mm256_movemask_ps(lo)) |
         static_cast<uint32_t>(_mm256_movemask_ps(hi)) << 8;
}
inline uint32_t LanesLt(Vec a, Vec b) {
  return LanesOf(_mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ));
}
inline uint32_t LanesEq(Vec a, Vec b) {
  return LanesOf(_mm256_cmp_ps(a.lo, b.lo, _CMP_EQ_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_EQ_OQ));
}
inline Vec KeepLanes(Vec x, int lo, int hi, Vec y) {
  const __m256i a = _mm256_andnot_si256(FirstLanes(lo), FirstLanes(hi));
  const __m256i b = _mm256_andnot_si256(FirstLanes(lo - 8), FirstLanes(hi - 8));
  return {_mm256_blendv_ps(y.lo, x.lo, _mm256_castsi256_ps(a)),
          _mm256_blendv_ps(y.hi, x.hi, _mm256_castsi256_ps(b))};
}
inline __m256 AddExponent8(__m256 p, __m256 t) {
  return _mm256_castsi256_ps(
      _mm256_add_epi32(_mm256_castps_si256(p), _mm256_slli_epi32(_mm256_castps_si256(t), 23)));
}
inline Vec AddExponent(Vec p, Vec t) {
  return {AddExponent8(p.lo, t.lo), AddExponent8(p.hi, t.hi)};
}

inline float ReduceAdd(Vec x) {
  const __m256 a = _mm256_add_ps(x.lo, x.hi);
  __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  b = _mm_add_ps(b, _mm_movehl_ps(b, b));
  return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}
inline float ReduceMax(Vec x) {
  const __m256 a = _mm256_max_ps(x.lo, x.hi);
  __m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  b = _mm_max_ps(b, _mm_movehl_ps(b, b));
  return _mm_cvtss_f32(_mm_max_ss(b, _mm_movehdup_ps(b)));
}

// Lane i: of x[i].
inline Vec ReduceAddEach(const Vec* x) {
  float each[16];
  for (int i = 0; i < 16; ++i) each[i] = ReduceAdd(x[i]);
  return Load(each);
}
inline Vec ReduceMaxEach(const Vec* x) {
  float each[16];
  for (int i = 0; i < 16; ++i) each[i] = ReduceMax(x[i]);
  return Load(each);
}

struct Wide {
  __m256d part[4];
};
inline Wide ZeroWide() {
  const __m256d zero = _mm256_setzero_pd();
  return {{zero, zero, zero, zero}};
}
inline Wide AddWide(Wide sum, Vec x) {
  return {{_mm256_add_pd(sum.part[0], _mm256_cvtps_pd(_mm256_castps256_ps128(x.lo))),
           _mm256_add_pd(sum.part[1], _mm256_cvtps_pd(_mm256_extractf128_ps(x.lo, 1))),
           _mm256_add_pd(sum.part[2], _mm256_cvtps_pd(_mm256_castps256_ps128(x.hi))),
           _mm256_add_pd(sum.part[3], _mm256_cvtps_pd(_mm256_extractf128_ps(x.hi, 1)))}};
}
inline double ReduceAdd(Wide x) {
  const __m256d b =
      _mm256_add_pd(_mm256_add_pd(x.part[0], x.part[2]), _mm256_add_pd(x.part[1], x.part[3]));
  const __m128d c = _mm_add_pd(_mm256_castpd256_pd128(b), _mm256_extractf128_pd(b, 1));
  return _mm_cvtsd_f64(_mm_add_sd(c, _mm_unpackhi_pd(c, c)));
}

}  // namespace quire::kernels::avx2
