// kernels/cpu/kv_write-inl.h -- writes keys and values into pages of bf16 pairs, once per ISA
// (foreach_isa-inl.h). Called by kernels/attention_kv.cc.
//
// Tokens that follow each other in a page are written together: a cache line of keys holds 16
// tokens, so that prompts write lines as a whole. A lone token (decode) writes a word into each;
// most of its time is waiting for the lines, which the caller therefore asks for ahead.

namespace quire::kernels::QUIRE_ISA {

// Tokens of one page that are converted at once, and dimensions: what the buffer below holds.
inline constexpr int32_t kWriteTokens = 16;
inline constexpr int32_t kWriteDims = 128;

// `n` values as bf16 to out[0 .. n - 1], 0 up to the next multiple of 32.
inline void ToBF16(const float* x, int32_t n, uint16_t* out) {
  for (int32_t d = 0; d < n; d += 32) {
    const int32_t left = n - d;
    const Vec a = left >= 16 ? Load(x + d) : LoadN(x + d, left);
    const Vec b = left >= 32 ? Load(x + d + 16) : LoadN(x + d + 16, left > 16 ? left - 16 : 0);
    StoreHigh(RoundBF16(a), out + d);
    StoreHigh(RoundBF16(b), out + d + 16);
  }
}

// Keys of `n` tokens, dimensions [d0, d0 + dims): rows `ld` floats apart, to the page's pair of
// dimension d0 of the first token's slot.
inline void WriteKeyPairs(const float* k, int64_t ld, int32_t n, int32_t dims, int64_t page_size,
                          uint32_t* to) {
  alignas(64) uint16_t rows[kWriteTokens][kWriteDims];
  for (int32_t i = 0; i < n; ++i) ToBF16(k + i * ld, dims, rows[i]);
  const auto* const words = reinterpret_cast<const uint32_t*>(rows);
  constexpr int32_t kLd = kWriteDims / 2;
  const int32_t pairs = (dims + 1) / 2;
  int32_t p = 0;
  if (n == 16) {
    for (; p + 16 <= pairs; p += 16) TransposeWords(words + p, kLd, to + p * page_size, page_size);
  }
  for (; p < pairs; ++p) {
    for (int32_t i = 0; i < n; ++i) to[p * page_size + i] = words[i * kLd + p];
  }
}

// Values of `n` tokens of one head from slot `slot` on, which need not be a pair's first.
inline void WriteValuePairs(const float* v, int64_t ld, int32_t n, int32_t dims, int64_t slot,
                            uint16_t* head) {
  for (int32_t i = 0; i < n;) {
    uint16_t* const to = head + (slot + i) / 2 * 2 * dims;
    const float* const row = v + i * ld;
    const bool both = (slot + i) % 2 == 0 && i + 1 < n;
    int32_t d = 0;
    if (both) {
      for (; d + 16 <= dims; d += 16) {
        StoreHighPairs(RoundBF16(Load(row + d)), RoundBF16(Load(row + ld + d)), to + 2 * d);
      }
      for (; d < dims; ++d) {
        to[2 * d] = FloatToBF16(row[d]);
        to[2 * d + 1] = FloatToBF16(row[ld + d]);
      }
      i += 2;
      continue;
    }
    // The pair's other half may belong to somebody else: it is left alone.
    uint16_t* const half = to + (slot + i) % 2;
    for (; d + 16 <= dims; d += 16) {
      uint16_t x[16];
      StoreHigh(RoundBF16(Load(row + d)), x);
      for (int32_t j = 0; j < 16; ++j) half[2 * (d + j)] = x[j];
    }
    for (; d < dims; ++d) half[2 * d] = FloatToBF16(row[d]);
    ++i;
  }
}

// Tokens [token, token + n), whose slots follow each other in one page from `slot` on.
void WriteTokensBF16(const AttentionMetadata& m, const AttentionShape& s, const KvWrite& w,
                     int64_t token, int32_t n, int64_t page, int64_t slot) {
  const int64_t ps = m.page_size;
  auto* const k_page = reinterpret_cast<uint16_t*>(w.k_base + page * w.page_stride);
  auto* const v_page = reinterpret_cast<uint16_t*>(w.v_base + page * w.page_stride);
  const int64_t ld_k = int64_t{s.num_kv_heads} * s.head_dim;
  const int64_t ld_v = int64_t{s.num_kv_heads} * s.head_dim_v;
  for (int32_t h = 0; h < s.num_kv_heads; ++h) {
    const float* const k = w.k + token * ld_k + int64_t{h} * s.head_dim;
    for (int32_t i = 0; i < n; i += kWriteTokens) {
      const int32_t tokens = n - i < kWriteTokens ? n - i : kWriteTokens;
      for (int32_t d = 0; d < s.head_dim; d += kWriteDims) {
        const int32_t dims = s.head_dim - d < kWriteDims ? s.head_dim - d : kWriteDims;
        WriteKeyPairs(k + i * ld_k + d, ld_k, tokens, dims, ps,
                      reinterpret_cast<uint32_t*>(k_page + KeyIndex(s, ps, h, d, slot + i)));
      }
    }
    WriteValuePairs(w.v + token * ld_v + int64_t{h} * s.head_dim_v, ld_v, n, s.head_dim_v, slot,
                    v_page + ValueIndex(s, ps, h, 0, 0));
  }
}

}  // namespace quire::kernels::QUIRE_ISA
