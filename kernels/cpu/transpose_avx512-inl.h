// kernels/cpu/transpose_avx512-inl.h -- 16 x 16 words of 32 bits, rows to columns. No include guard
// and no includes: see isa_target.h.

// to[j][i] = from[i][j]; ld_from and ld_to are words from row to row; those of
// `from` are 16-byte aligned.
// Quarters of rows are put together as they are loaded, which leaves two rounds of shuffles.
inline void Transpose16(const float* from, int64_t ld_from, float* to, int64_t ld_to) {
  for (int quarter = 0; quarter < 4; ++quarter) {
    // Row i's lane l: elements 4 quarter .. 4 quarter + 3 of row 4 l + i.
    __m512 row[4];
    QUIRE_UNROLL
    for (int i = 0; i < 4; ++i) {
      const float* p = from + i * ld_from + 4 * quarter;
      __m512 r = _mm512_castps128_ps512(_mm_load_ps(p));
      r = _mm512_mask_broadcast_f32x4(r, 0x00f0, _mm_load_ps(p + 4 * ld_from));
      r = _mm512_mask_broadcast_f32x4(r, 0x0f00, _mm_load_ps(p + 8 * ld_from));
      row[i] = _mm512_mask_broadcast_f32x4(r, 0xf000, _mm_load_ps(p + 12 * ld_from));
    }
    const __m512 a = _mm512_unpacklo_ps(row[0], row[1]), b = _mm512_unpackhi_ps(row[0], row[1]);
    const __m512 c = _mm512_unpacklo_ps(row[2], row[3]), d = _mm512_unpackhi_ps(row[2], row[3]);
    float* out = to + 4 * quarter * ld_to;
    _mm512_storeu_ps(out, _mm512_shuffle_ps(a, c, 0x44));
    _mm512_storeu_ps(out + ld_to, _mm512_shuffle_ps(a, c, 0xee));
    _mm512_storeu_ps(out + 2 * ld_to, _mm512_shuffle_ps(b, d, 0x44));
    _mm512_storeu_ps(out + 3 * ld_to, _mm512_shuffle_ps(b, d, 0xee));
  }
}
