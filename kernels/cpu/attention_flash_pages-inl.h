// kernels/cpu/attention_flash_pages-inl.h -- how `flash` reads a sequence's pages: in place where
// the layout allows, else through a small float32 tile. Part of attention_flash-inl.h, once per
// ISA.

namespace quire::kernels::QUIRE_ISA {

// 16 neighbours; of pairs the first (second) halves.
inline Vec LoadKv(DType type, const std::byte* p, bool second) {
  if (type == DType::kF32) return Load(reinterpret_cast<const float*>(p));
  if (type == DType::kI8) return LoadI8(reinterpret_cast<const int8_t*>(p));
  const auto* h = reinterpret_cast<const uint16_t*>(p);
  if (type == DType::kF16) return LoadF16(h);
  return second ? LoadOddBF16(h) : LoadEvenBF16(h);
}

inline float LoadKvOne(DType type, const std::byte* p) {
  if (type == DType::kF32) return *reinterpret_cast<const float*>(p);
  if (type == DType::kI8) return static_cast<float>(*reinterpret_cast<const int8_t*>(p));
  const uint16_t h = *reinterpret_cast<const uint16_t*>(p);
  return type == DType::kBF16 ? BF16ToFloat(h) : F16ToFloat(h);
}

// Where one kv head's keys and values of a sequence are.
struct FlashPages {
  const int32_t* table;
  const std::byte* k;  // of page 0, this kv head
  const std::byte* v;
  int64_t page_stride;
  int32_t page_size;
  int32_t page_shift;  // page_size is a power of two: divisions would cost more than the reads
  int32_t size;        // bytes per element
  bool pairs;          // of dimensions, and of keys: kv_layout.h
  DType type;

  const std::byte* Page(const std::byte* base, int32_t key) const {
    return base + int64_t{table[key >> page_shift]} * page_stride;
  }
  // Of a key's dimension `d` (of the pair that holds it).
  const std::byte* Key(int32_t key, int32_t d) const {
    const int64_t slot = key & (page_size - 1);
    return Page(k, key) +
           (pairs ? (int64_t{d / 2} * page_size + slot) * 2 : int64_t{d} * page_size + slot) * size;
  }
  // Of a value's dimension 0 (of the pair that holds it); rows are `dv` values, or pairs.
  const std::byte* Value(int32_t key, int32_t dv) const {
    const int64_t slot = key & (page_size - 1);
    return Page(v, key) + (pairs ? slot / 2 * 2 : slot) * dv * size;
  }
  // I8: the scale of a key's (value's) codes, which lie behind this head's `dim` rows of them.
  const uint16_t* Scale(const std::byte* base, int32_t key, int32_t dim) const {
    return reinterpret_cast<const uint16_t*>(Page(base, key) + int64_t{dim} * page_size) +
           key % page_size;
  }
};

inline FlashPages PagesOf(const FlashTask& t) {
  const AttentionShape& s = *t.s;
  const int32_t ps = t.m->page_size;
  const auto size = static_cast<int32_t>(InfoOf(s.kv_dtype).block_bytes);
  return {
      .table = &t.m->read_table[static_cast<size_t>(t.item.seq) *
                                static_cast<size_t>(t.m->max_pages_per_seq)],
      .k = t.a->k_base + KeyIndex(s, ps, t.item.kv_head, 0, 0) * size,
      .v = t.a->v_base + ValueIndex(s, ps, t.item.kv_head, 0, 0) * size,
      .page_stride = t.a->page_stride,
      .page_size = ps,
      .page_shift = __builtin_ctz(static_cast<unsigned>(ps)),
      .size = size,
      .pairs = HasPairs(s),
      .type = s.kv_dtype,
  };
}

// Keys of a tile that begins at `t0` as vectors of 16, in place where the layout allows; vectors
// outside [lo, hi) are left alone and must not be used. Returns the stride from d to d + 1.
inline int64_t KeyTile(const FlashPages& pages, int32_t head_dim, int32_t t0, int32_t lo,
                       int32_t hi, float* tile, const float** k) {
  const int32_t ps = pages.page_size;
  const bool in_place = pages.type == DType::kF32 && ps >= 16;
  for (int32_t v = 0; v < kKeyTile / 16; ++v) {
    const int32_t key = t0 + v * 16;
    if (key + 16 <= lo || key >= hi) continue;
    if (in_place) {
      k[v] = reinterpret_cast<const float*>(pages.Key(key, 0));
      continue;
    }
    k[v] = tile + v * 16;
    if (ps >= 16 && pages.type == DType::kI8) {
      const Vec scale = LoadF16(pages.Scale(pages.k, key, head_dim));
      for (int32_t d = 0; d < head_dim; ++d) {
        Store(Mul(LoadKv(pages.type, pages.Key(key, d), false), scale),
              tile + d * kKeyTile + v * 16);
      }
      continue;
    }
    if (ps >= 16) {
      for (int32_t d = 0; d < head_dim; ++d) {
        Store(LoadKv(pages.type, pages.Key(key, d), d % 2 != 0), tile + d * kKeyTile + v * 16);
      }
      continue;
    }
    for (int32_t first = key; first < key + 16; first += 8) {  // page_size is 8
      if (first + 8 <= lo || first >= hi) continue;
      for (int32_t d = 0; d < head_dim; ++d) {
        const std::byte* src = pages.Key(first, d);
        float* const dst = tile + d * kKeyTile + (first - t0);
        for (int32_t i = 0; i < 8; ++i) {
          const int32_t at = pages.pairs ? 2 * i + d % 2 : i;
          dst[i] = LoadKvOne(pages.type, src + int64_t{at} * pages.size);
        }
      }
      if (pages.type != DType::kI8) continue;
      const uint16_t* scales = pages.Scale(pages.k, first, head_dim);
      for (int32_t i = 0; i < 8; ++i) {
        float* const column = tile + (first - t0) + i;
        for (int32_t d = 0; d < head_dim; ++d) column[d * kKeyTile] *= F16ToFloat(scales[i]);
      }
    }
  }
  return in_place ? ps : kKeyTile;
}

// Values of the keys [from, to), which lie in one page, as rows of floats padded to dv16.
inline const float* ValueRun(const FlashPages& pages, int32_t dv, int32_t dv16, int32_t from,
                             int32_t to, float* tile) {
  if (pages.type == DType::kF32 && dv == dv16) {
    return reinterpret_cast<const float*>(pages.Value(from, dv));
  }
  const int32_t step = pages.pairs ? 2 : 1;  // from one value of a key to its next
  for (int32_t key = from; key < to; ++key) {
    const std::byte* src = pages.Value(key, dv);
    const bool second = key % 2 != 0;
    float* dst = tile + int64_t{key - from} * dv16;
    int32_t d = 0;
    for (; d + 16 <= dv; d += 16) {
      Store(LoadKv(pages.type, src + int64_t{d} * step * pages.size, second), dst + d);
    }
    for (; d < dv; ++d) {
      const int32_t at = pages.pairs ? 2 * d + (second ? 1 : 0) : d;
      dst[d] = LoadKvOne(pages.type, src + int64_t{at} * pages.size);
    }
    for (; d < dv16; ++d) dst[d] = 0.0f;
    if (pages.type != DType::kI8) continue;
    const Vec scale = Set1(F16ToFloat(*pages.Scale(pages.v, key, dv)));
    for (d = 0; d < dv16; d += 16) Store(Mul(Load(dst + d), scale), dst + d);
  }
  return tile;
}

}  // namespace quire::kernels::QUIRE_ISA
