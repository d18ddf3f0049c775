// kernels/cpu/attention_flash_pages-inl.h -- how `flash` reads a sequence's pages: in place where
// the layout allows, else through a small float32 tile. Part of attention_flash-inl.h, once per
// ISA.

namespace quire::kernels::QUIRE_ISA {

inline Vec LoadKv(DType type, const std::byte* p) {
  if (type == DType::kF32) return Load(reinterpret_cast<const float*>(p));
  if (type == DType::kI8) return LoadI8(reinterpret_cast<const int8_t*>(p));
  const auto* h = reinterpret_cast<const uint16_t*>(p);
  return type == DType::kBF16 ? LoadBF16(h) : LoadF16(h);
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
  int32_t size;  // bytes per element
  DType type;

  const std::byte* Page(const std::byte* base, int32_t key) const {
    return base + int64_t{table[key / page_size]} * page_stride;
  }
  // I8: the scale of a key's (value's) codes, which lie behind this head's `dim` rows of them.
  const uint16_t* Scale(const std::byte* base, int32_t key, int32_t dim) const {
    return reinterpret_cast<const uint16_t*>(Page(base, key) + int64_t{dim} * page_size) +
           key % page_size;
  }
};

// Keys of a tile that begins at `t0` as vectors of 16, in place where the layout allows; vectors
// outside [lo, hi) are left alone and must not be used. Returns the stride from d to d + 1.
inline int64_t KeyTile(const FlashPages& pages, int32_t head_dim, int32_t t0, int32_t lo,
                       int32_t hi, float* tile, const float** k) {
  const int32_t ps = pages.page_size;
  const bool in_place = pages.type == DType::kF32 && ps >= 16;
  for (int32_t v = 0; v < kKeyTile / 16; ++v) {
    const int32_t key = t0 + v * 16;
    if (key + 16 <= lo || key >= hi) continue;
    const std::byte* src = pages.Page(pages.k, key) + int64_t{key % ps} * pages.size;
    if (in_place) {
      k[v] = reinterpret_cast<const float*>(src);
      continue;
    }
    k[v] = tile + v * 16;
    if (ps >= 16 && pages.type == DType::kI8) {
      const Vec scale = LoadF16(pages.Scale(pages.k, key, head_dim));
      for (int32_t d = 0; d < head_dim; ++d) {
        Store(Mul(LoadKv(pages.type, src + int64_t{d} * ps), scale), tile + d * kKeyTile + v * 16);
      }
      continue;
    }
    if (ps >= 16) {
      for (int32_t d = 0; d < head_dim; ++d) {
        Store(LoadKv(pages.type, src + int64_t{d} * ps * pages.size), tile + d * kKeyTile + v * 16);
      }
      continue;
    }
    for (int32_t half = 0; half < 2; ++half) {  // page_size is 8
      const int32_t first = key + half * 8;
      if (first + 8 <= lo || first >= hi) continue;
      src = pages.Page(pages.k, first);
      for (int32_t d = 0; d < head_dim; ++d) {
        for (int32_t i = 0; i < 8; ++i) {
          tile[d * kKeyTile + v * 16 + half * 8 + i] =
              LoadKvOne(pages.type, src + (int64_t{d} * 8 + i) * pages.size);
        }
      }
      if (pages.type != DType::kI8) continue;
      const uint16_t* scales = pages.Scale(pages.k, first, head_dim);
      for (int32_t i = 0; i < 8; ++i) {
        float* const column = tile + v * 16 + half * 8 + i;
        for (int32_t d = 0; d < head_dim; ++d) column[d * kKeyTile] *= F16ToFloat(scales[i]);
      }
    }
  }
  return in_place ? ps : kKeyTile;
}

// Values of the keys [from, to), which lie in one page, as rows of floats padded to dv16.
inline const float* ValueRun(const FlashPages& pages, int32_t dv, int32_t dv16, int32_t from,
                             int32_t to, float* tile) {
  const std::byte* src =
      pages.Page(pages.v, from) + int64_t{from % pages.page_size} * dv * pages.size;
  if (pages.type == DType::kF32 && dv == dv16) return reinterpret_cast<const float*>(src);
  for (int32_t key = from; key < to; ++key, src += int64_t{dv} * pages.size) {
    float* dst = tile + int64_t{key - from} * dv16;
    int32_t d = 0;
    for (; d + 16 <= dv; d += 16) Store(LoadKv(pages.type, src + d * pages.size), dst + d);
    for (; d < dv; ++d) dst[d] = LoadKvOne(pages.type, src + d * pages.size);
    for (; d < dv16; ++d) dst[d] = 0.0f;
    if (pages.type != DType::kI8) continue;
    const Vec scale = Set1(F16ToFloat(*pages.Scale(pages.v, key, dv)));
    for (d = 0; d < dv16; d += 16) Store(Mul(Load(dst + d), scale), dst + d);
  }
  return tile;
}

}  // namespace quire::kernels::QUIRE_ISA
