// The AVX2 + FMA row of RunLinear: 8 columns a vector, 6 x 16 sums in registers.
#if defined(__x86_64__)
#include "kernels/cpu/isa_target.h"

// After isa_target.h, which silences a warning in it.
#include <immintrin.h>

#include "kernels/block_format.h"
#include "kernels/cpu/linear_dot.h"
#include "kernels/cpu/linear_int8.h"
#include "kernels/cpu/linear_kernels.h"

QUIRE_BEGIN_AVX2
namespace quire::kernels {
namespace avx2 {
namespace {

struct V {
  using F = __m256;
  using U = __m256i;
  static constexpr int32_t kLanes = 8;
  static constexpr int kFewRows = 4;
  static constexpr int kFewVecs = 2;
  static constexpr int kTileRows = 6;
  static constexpr int kTileVecs = 2;

  static F Zero() { return _mm256_setzero_ps(); }
  static F Set1(float x) { return _mm256_set1_ps(x); }
  static F Load(const float* p) { return _mm256_load_ps(p); }
  static void Store(float* p, F x) { _mm256_store_ps(p, x); }
  static F Fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  static F Mul(F a, F b) { return _mm256_mul_ps(a, b); }
  static F Add(F a, F b) { return _mm256_add_ps(a, b); }
  static F Neg(F a) { return _mm256_xor_ps(a, _mm256_set1_ps(-0.0f)); }

  static F LoadF32(const std::byte* p) { return Load(reinterpret_cast<const float*>(p)); }
  static F LoadF16(const std::byte* p) {
    return _mm256_cvtph_ps(_mm_load_si128(reinterpret_cast<const __m128i*>(p)));
  }
  static F LoadI8(const std::byte* p) {
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
  }
  static U LoadU32(const std::byte* p) {
    return _mm256_load_si256(reinterpret_cast<const __m256i*>(p));
  }
  static U LoadPairs(const std::byte* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  }
  static F LowBF16(U x) { return _mm256_castsi256_ps(_mm256_slli_epi32(x, 16)); }
  static F HighBF16(U x) {
    return _mm256_castsi256_ps(_mm256_and_si256(x, _mm256_set1_epi32(-65536)));
  }
  template <int kByte>
  static F ByteI8(U x) {
    return _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(x, 24 - 8 * kByte), 24));
  }
  static U SetWord(uint32_t w) { return _mm256_set1_epi32(static_cast<int32_t>(w)); }
  static U And(U a, U b) { return _mm256_and_si256(a, b); }
  static U Or(U a, U b) { return _mm256_or_si256(a, b); }
  static void StoreU32(uint32_t* p, U x) { _mm256_store_si256(reinterpret_cast<__m256i*>(p), x); }
  static F ToFloat(U x) { return _mm256_cvtepi32_ps(x); }
  static constexpr int32_t kDot8Excess = 0;
  static U Code8(U q) { return q; }
  // 127 * 127 twice fits 16 bits.
  static U DotSmall(U acc, U u, U x) {
    const U pairs = _mm256_maddubs_epi16(u, x);
    return _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
  }
  // So does 128 * 127: the sign of a byte of q goes to that of x.
  static U Dot8(U acc, U q, U x) {
    return DotSmall(acc, _mm256_abs_epi8(q), _mm256_sign_epi8(x, q));
  }
  template <int kBits>
  static U Shl(U x) {
    return _mm256_slli_epi32(x, kBits);
  }
  template <int kBits>
  static U Shr(U x) {
    return _mm256_srli_epi32(x, kBits);
  }

  template <int kOffset>
  static F Nibble(U x) {
    const F q = _mm256_cvtepi32_ps(_mm256_and_si256(x, _mm256_set1_epi32(15)));
    if constexpr (kOffset == 0) return q;
    return _mm256_sub_ps(q, _mm256_set1_ps(kOffset));
  }
  // vpermps looks at the low three bits of an index only.
  static F HighBit(U x) {
    return _mm256_permutevar8x32_ps(_mm256_setr_ps(0, 16, 0, 16, 0, 16, 0, 16), x);
  }
  static F HighPair(U x) {
    return _mm256_permutevar8x32_ps(_mm256_setr_ps(0, 16, 32, 48, 0, 16, 32, 48), x);
  }
};

// clang-format off
#include "kernels/cpu/linear-inl.h"
#include "kernels/cpu/linear_dot-inl.h"
#include "kernels/cpu/linear_int8-inl.h"
// clang-format on

}  // namespace
}  // namespace avx2

void PanelAvx2(DType type, const std::byte* panel, int64_t k, const float* x, int64_t ldx,
               int64_t rows, float* c) {
  avx2::PanelOf(type, panel, k, x, ldx, rows, c);
}

void DotPanelAvx2(DType type, const std::byte* panel, const DotRows& x, int64_t first_tile,
                  int64_t num_tiles, float* c, int64_t ldc, const float* add) {
  avx2::DotPanelOf(type, panel, x, first_tile, num_tiles, c, ldc, add);
}

void Int8PanelAvx2(DType type, const std::byte* panel, const Int8Rows& x, int64_t first_tile,
                   int64_t num_tiles, float* c) {
  avx2::Int8PanelOf(type, panel, x, first_tile, num_tiles, c);
}

}  // namespace quire::kernels
QUIRE_END_ISA
#endif
