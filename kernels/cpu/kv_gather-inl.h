// kernels/cpu/kv_gather-inl.h -- copies keys and values of one kv head out of their pages into
// dense float32 tiles. Part of the bodies of `sdpa` and `flex`, once per ISA.

namespace quire::kernels::QUIRE_ISA {

// Where one kv head's keys and values of a sequence are.
struct KvSource {
  const int32_t* table;
  const std::byte* k;  // of page 0, this kv head
  const std::byte* v;
  int64_t page_stride;
  int32_t page_size, head_dim, head_dim_v;
  bool pairs;  // of dimensions, and of keys: kv_layout.h
  DType type;
};

inline KvSource SourceOf(const AttentionMetadata& m, const AttentionShape& s,
                         const AttentionArgs& a, int32_t seq, int32_t kv_head) {
  const int32_t ps = m.page_size;
  return {
      .table = &m.read_table[static_cast<size_t>(seq) * static_cast<size_t>(m.max_pages_per_seq)],
      .k = a.k_base + kv_head * KeyHeadBytes(s, ps),
      .v = a.v_base + kv_head * ValueHeadBytes(s, ps),
      .page_stride = a.page_stride,
      .page_size = ps,
      .head_dim = s.head_dim,
      .head_dim_v = s.head_dim_v,
      .pairs = HasPairs(s),
      .type = s.kv_dtype};
}

// `n` (at most 16) neighbours as stored, of pairs the first (second) halves; nothing behind them is
// read.
inline Vec GatherSome(DType type, const std::byte* p, int32_t n, bool second) {
  if (n == 16) {
    switch (type) {
      case DType::kF32:
        return Load(reinterpret_cast<const float*>(p));
      case DType::kBF16:
        return second ? LoadOddBF16(reinterpret_cast<const uint16_t*>(p))
                      : LoadEvenBF16(reinterpret_cast<const uint16_t*>(p));
      case DType::kI8:
        return LoadI8(reinterpret_cast<const int8_t*>(p));
      default:
        return LoadF16(reinterpret_cast<const uint16_t*>(p));
    }
  }
  float x[16] = {};
  for (int32_t i = 0; i < n; ++i) {
    if (type == DType::kF32) {
      x[i] = reinterpret_cast<const float*>(p)[i];
    } else if (type == DType::kI8) {
      x[i] = static_cast<float>(reinterpret_cast<const int8_t*>(p)[i]);
    } else if (type == DType::kBF16) {
      x[i] = BF16ToFloat(reinterpret_cast<const uint16_t*>(p)[2 * i + (second ? 1 : 0)]);
    } else {
      x[i] = F16ToFloat(reinterpret_cast<const uint16_t*>(p)[i]);
    }
  }
  return Load(x);
}

// Keys [from, to) to tile[d * kKeyTile + key % kKeyTile]; the rest of the tile is left as it was or
// gets what else is in their pages. REQUIRES: one tile.
inline void GatherKeys(const KvSource& src, int32_t from, int32_t to, float* tile) {
  const int32_t unit = src.page_size < 16 ? src.page_size : 16;
  const int64_t size = InfoOf(src.type).block_bytes;
  for (int32_t key = from / unit * unit; key < to; key += unit) {
    const std::byte* page = src.k + int64_t{src.table[key / src.page_size]} * src.page_stride;
    const int32_t slot = key % src.page_size;
    float* const out = tile + key % kKeyTile;
    Vec scale = Set1(1.0f);
    if (src.type == DType::kI8) {
      const std::byte* scales = page + int64_t{src.head_dim} * src.page_size;
      scale = GatherSome(DType::kF16, scales + slot * 2, unit, false);
    }
    for (int32_t d = 0; d < src.head_dim; ++d) {
      const int64_t at = src.pairs ? (int64_t{d / 2} * src.page_size + slot) * 2
                                   : int64_t{d} * src.page_size + slot;
      const Vec x = GatherSome(src.type, page + at * size, unit, d % 2 != 0);
      StoreN(src.type == DType::kI8 ? Mul(x, scale) : x, out + int64_t{d} * kKeyTile, unit);
    }
  }
}

// Values of the keys [from, to) to rows of dv16 floats, zeros behind head_dim_v; the first row of
// the tile is that of key `first`.
inline void GatherValues(const KvSource& src, int32_t first, int32_t from, int32_t to, int32_t dv16,
                         float* tile) {
  const int64_t size = InfoOf(src.type).block_bytes;
  const int32_t dv = src.head_dim_v;
  for (int32_t key = from; key < to; ++key) {
    const std::byte* page = src.v + int64_t{src.table[key / src.page_size]} * src.page_stride;
    const int64_t slot = key % src.page_size;
    const std::byte* row = page + (src.pairs ? slot / 2 * 2 : slot) * dv * size;
    const int64_t step = src.pairs ? 2 * size : size;  // bytes from one value to the next
    Vec scale = Set1(1.0f);
    if (src.type == DType::kI8) {
      const std::byte* scales = page + int64_t{dv} * src.page_size;
      scale = Set1(F16ToFloat(reinterpret_cast<const uint16_t*>(scales)[slot]));
    }
    float* const out = tile + int64_t{key - first} * dv16;
    for (int32_t d = 0; d < dv16; d += 16) {
      const Vec x = GatherSome(src.type, row + d * step, dv - d < 16 ? dv - d : 16, key % 2 != 0);
      Store(src.type == DType::kI8 ? Mul(x, scale) : x, out + d);
    }
  }
}

}  // namespace quire::kernels::QUIRE_ISA
