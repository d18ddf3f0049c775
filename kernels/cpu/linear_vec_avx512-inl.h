// kernels/cpu/linear_vec_avx512-inl.h -- the vector type of linear-inl.h: 16 columns a vector, 6 x
// 64 sums in registers. No include guard and no includes.

struct V {
  using F = __m512;
  using U = __m512i;
  static constexpr int32_t kLanes = 16;
  static constexpr int kFewRows = 4;
  static constexpr int kFewVecs = 4;
  static constexpr int kTileRows = 6;
  static constexpr int kTileVecs = 4;

  static F Zero() { return _mm512_setzero_ps(); }
  static F Set1(float x) { return _mm512_set1_ps(x); }
  static F Load(const float* p) { return _mm512_load_ps(p); }
  static void Store(float* p, F x) { _mm512_store_ps(p, x); }
  static F Fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static F Mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static F Add(F a, F b) { return _mm512_add_ps(a, b); }
  static F Neg(F a) { return _mm512_xor_ps(a, _mm512_set1_ps(-0.0f)); }

  static F LoadF32(const std::byte* p) { return _mm512_load_ps(p); }
  static F LoadF16(const std::byte* p) {
    return _mm512_cvtph_ps(_mm256_load_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static F LoadI8(const std::byte* p) {
    const __m128i bytes = _mm_load_si128(reinterpret_cast<const __m128i*>(p));
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes));
  }
  static U LoadU32(const std::byte* p) { return _mm512_load_si512(p); }
  static U LoadPairs(const std::byte* p) { return _mm512_loadu_si512(p); }
  static F LowBF16(U x) { return _mm512_castsi512_ps(_mm512_slli_epi32(x, 16)); }
  static F HighBF16(U x) {
    return _mm512_castsi512_ps(_mm512_and_si512(x, _mm512_set1_epi32(-65536)));
  }
  template <int kByte>
  static F ByteI8(U x) {
    return _mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(x, 24 - 8 * kByte), 24));
  }
  static U SetWord(uint32_t w) { return _mm512_set1_epi32(static_cast<int32_t>(w)); }
  static U And(U a, U b) { return _mm512_and_si512(a, b); }
  static U Or(U a, U b) { return _mm512_or_si512(a, b); }
  static void StoreU32(uint32_t* p, U x) { _mm512_store_si512(p, x); }
  static F ToFloat(U x) { return _mm512_cvtepi32_ps(x); }
#if defined(QUIRE_VNNI)
  // Bytes of q plus 128 are unsigned.
  static constexpr int32_t kDot8Excess = -128;
  static U DotSmall(U acc, U u, U x) { return _mm512_dpbusd_epi32(acc, u, x); }
  static U Code8(U q) { return _mm512_xor_si512(q, _mm512_set1_epi8(-128)); }
  static U Dot8(U acc, U c, U x) { return _mm512_dpbusd_epi32(acc, c, x); }
#endif
  template <int kBits>
  static U Shl(U x) {
    return _mm512_slli_epi32(x, kBits);
  }
  template <int kBits>
  static U Shr(U x) {
    return _mm512_srli_epi32(x, kBits);
  }

  // vpermps looks at the low four bits of an index only: masking and conversion for free.
  template <int kOffset>
  static F Nibble(U x) {
    constexpr float kO = -kOffset;
    return _mm512_permutexvar_ps(
        x, _mm512_setr_ps(kO, kO + 1, kO + 2, kO + 3, kO + 4, kO + 5, kO + 6, kO + 7, kO + 8,
                          kO + 9, kO + 10, kO + 11, kO + 12, kO + 13, kO + 14, kO + 15));
  }
  static F HighBit(U x) {
    return _mm512_permutexvar_ps(
        x, _mm512_setr_ps(0, 16, 0, 16, 0, 16, 0, 16, 0, 16, 0, 16, 0, 16, 0, 16));
  }
  static F HighPair(U x) {
    return _mm512_permutexvar_ps(
        x, _mm512_setr_ps(0, 16, 32, 48, 0, 16, 32, 48, 0, 16, 32, 48, 0, 16, 32, 48));
  }
};
