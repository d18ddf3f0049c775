// The AMX row of RunLinear in bfloat16 (linear_dot.h): codes are looked up as bfloat16 into tiles
// in L1, multiplied sixteen rows at a time; sums of a block leave the tile, are scaled and added in
// vector registers. One row costs what sixteen do: the look-up, or memory.
#if defined(__x86_64__)
#include "kernels/cpu/isa_target.h"

// After isa_target.h, which silences a warning in it.
#include <immintrin.h>

#include <cstring>

#include "kernels/block_format.h"
#include "kernels/cpu/linear_dot.h"
#include "kernels/cpu/linear_kernels.h"
#include "kernels/cpu/tile_config.h"

QUIRE_BEGIN_AMX
namespace quire::kernels {
namespace amx {
namespace {

// clang-format off
#include "kernels/cpu/linear_vec_avx512-inl.h"
#include "kernels/cpu/linear-inl.h"
#include "kernels/cpu/linear_dot-inl.h"
// clang-format on

constexpr int32_t kStrip = 16;  // columns of a tile

// Tiles 0 .. 3 are sums, 4 and 5 rows of x, 6 and 7 weights. All have sixteen rows, also where x
// has fewer: what is read beyond them gives sums that nobody adds.

// The compiler does not see what a tile load reads.
inline void MemoryBarrier() { asm volatile("" ::: "memory"); }

// Sixteen columns of a run of blocks.
struct Strip {
  static constexpr int64_t kMost = 2 * kDotRun;  // Q6_K has two tiles a block
  alignas(64) uint16_t tile[kMost][kTileRows][32];
  alignas(64) float scale[kMost][kStrip];
};

inline void StorePair(__m512i pair, uint16_t* row) { _mm512_store_si512(row, pair); }

// i: code + 16 * anything.
template <int kCentre>
__m512i Table16() {
  alignas(64) uint16_t t[32];
  for (int i = 0; i < 32; ++i) t[i] = FloatToBF16(static_cast<float>(i % 16 - kCentre));
  return _mm512_load_si512(t);
}
template <int kFirst, int kCentre>
__m512i Table32() {
  alignas(64) uint16_t t[32];
  for (int i = 0; i < 32; ++i) t[i] = FloatToBF16(static_cast<float>(kFirst + i - kCentre));
  return _mm512_load_si512(t);
}

template <int kBits>
__m512i ShiftRight(__m512i x) {
  if constexpr (kBits == 0) return x;
  if constexpr (kBits > 0) return _mm512_srli_epi16(x, kBits);
  if constexpr (kBits < 0) return _mm512_slli_epi16(x, -kBits);
}
inline __m512i SelectBits(int16_t mask, __m512i where_set, __m512i elsewhere) {
  return _mm512_ternarylogic_epi32(_mm512_set1_epi16(mask), where_set, elsewhere, 0xca);
}

struct Tables {
  __m512i low, high;  // high: Q6_K
};
template <DType kType>
Tables TablesOf() {
  constexpr BlockFormat kFormat = FormatOf(kType);
  constexpr int kCentre = CentreOf(kType);
  Tables t{};
  if constexpr (kFormat.bits == 4) t.low = Table16<kCentre>();
  if constexpr (kFormat.bits == 5) t.low = Table32<0, kCentre>();
  if constexpr (kFormat.bits == 6) {
    t.low = Table32<0, kCentre>();
    t.high = Table32<32, kCentre>();
  }
  return t;
}

// Pair p (0..3) of group g: values 8 g + 2 p, 8 g + 2 p + 1. low: the group's nibbles.
template <DType kType, int g, int p>
__m512i Lookup(const Tables& t, __m512i low, __m512i high) {
  constexpr BlockFormat kFormat = FormatOf(kType);
  const __m512i nibble = ShiftRight<4 * p>(low);
  if constexpr (kFormat.bits == 4) return _mm512_permutexvar_epi16(nibble, t.low);
  if constexpr (kFormat.bits == 5) {
    const __m512i bit = ShiftRight<4 * g + p - 4>(high);
    return _mm512_permutexvar_epi16(SelectBits(0x10, bit, nibble), t.low);
  }
  if constexpr (kFormat.bits == 6) {
    const __m512i bits = ShiftRight<2 * (4 * (g % 2) + p) - 4>(high);
    return _mm512_permutex2var_epi16(t.low, SelectBits(0x30, bits, nibble), t.high);
  }
}

// Bytes b and b + 2 of each word as bfloat16: small integers have zeros in their lower half.
template <int b>
__m512i BytesToBF16(__m512i word) {
  const __m512i even = _mm512_srai_epi32(_mm512_slli_epi32(word, 24 - 8 * b), 24);
  const __m512i odd = _mm512_srai_epi32(b == 0 ? _mm512_slli_epi32(word, 8) : word, 24);
  const __m512i low = _mm512_srli_epi32(_mm512_castps_si512(_mm512_cvtepi32_ps(even)), 16);
  return _mm512_or_si512(low, _mm512_castps_si512(_mm512_cvtepi32_ps(odd)));
}

template <DType kType, int g>
void ExpandGroup(const Tables& t, const std::byte* codes, int32_t col, __m512i high,
                 uint16_t (*rows)[32]) {
  if constexpr (FormatOf(kType).bits == 8) {
    for (int q = 0; q < 2; ++q) {
      const __m512i word = V::LoadU32(codes + 4 * (kPanel * (2 * g + q) + col));
      StorePair(BytesToBF16<0>(word), rows[q]);
      StorePair(BytesToBF16<1>(word), rows[q + 2]);
    }
  } else {
    const __m512i low = V::LoadU32(codes + 4 * (kPanel * g + col));
    StorePair(Lookup<kType, g, 0>(t, low, high), rows[0]);
    StorePair(Lookup<kType, g, 1>(t, low, high), rows[1]);
    StorePair(Lookup<kType, g, 2>(t, low, high), rows[2]);
    StorePair(Lookup<kType, g, 3>(t, low, high), rows[3]);
  }
}

// Columns col .. col + 15 of blocks b0 .. b0 + num_blocks - 1 into the strip's blocks from `to` on.
template <DType kType>
void Expand(const std::byte* panel, int64_t b0, int64_t num_blocks, int32_t col, const Tables& t,
            int64_t to, Strip& strip) {
  constexpr BlockFormat kFormat = FormatOf(kType);
  for (int64_t i = 0; i < num_blocks; ++i) {
    const int64_t b = to + i;
    PrefetchAhead<kType, kPanel / kStrip>(panel, b0 + i, col / kStrip);
    Decoder<kType> d;
    d.Begin(panel, b0 + i, col);
    const std::byte* codes = d.sub_ + kFormat.codes_offset();
    uint16_t(*rows)[32] = strip.tile[b * PartsOf(kType)];
    __m512i high{};
    if constexpr (kFormat.bits == 5) high = d.high_;
    if constexpr (kType == DType::kQ6_K) {
      const __m512i zero = _mm512_setzero_si512();
      d.Half(0);
      V::Store(strip.scale[2 * b], d.scale_);
      ExpandGroup<kType, 0>(t, codes, col, d.high_, rows);
      ExpandGroup<kType, 1>(t, codes, col, d.high_, rows + 4);
      for (int r = 8; r < 16; ++r) StorePair(zero, rows[r]);
      rows = strip.tile[2 * b + 1];
      for (int r = 0; r < 8; ++r) StorePair(zero, rows[r]);
      d.Half(1);
      V::Store(strip.scale[2 * b + 1], d.scale_);
      ExpandGroup<kType, 2>(t, codes, col, d.high_, rows + 8);
      ExpandGroup<kType, 3>(t, codes, col, d.high_, rows + 12);
    } else {
      V::Store(strip.scale[b], d.scale_);
      ExpandGroup<kType, 0>(t, codes, col, high, rows);
      ExpandGroup<kType, 1>(t, codes, col, high, rows + 4);
      ExpandGroup<kType, 2>(t, codes, col, high, rows + 8);
      ExpandGroup<kType, 3>(t, codes, col, high, rows + 12);
    }
  }
  MemoryBarrier();
}

// One tile product; x and w are tiles, sums go to `out`. Tile numbers are part of an instruction.
#define QUIRE_TILE_DOT(c, a, b, x, w, out) \
  _tile_zero(c);                           \
  _tile_loadd(a, x, 64);                   \
  _tile_loadd(b, w, 64);                   \
  _tile_dpbf16ps(c, a, b);                 \
  _tile_stored(c, out, 64)

template <int kRows>
void AddScaled(const float* sums, const float* scale, __m512* y) {
  const __m512 s = _mm512_load_ps(scale);
  QUIRE_UNROLL
  for (int r = 0; r < kRows; ++r) {
    y[r] = _mm512_fmadd_ps(_mm512_load_ps(sums + r * kStrip), s, y[r]);
  }
}

// Sums of up to four tiles of a strip, tile j's to out[j]. x: the tile of rows at the first block.
// A tile product takes 52 cycles from its operands to its sums, and a store as many again until it
// can be read: whoever calls this has other work before it looks at `out`.
template <int kParts>
void MultiplyFour(const uint16_t (*w)[kTileRows][32], int64_t num_tiles, const uint16_t* x,
                  int64_t size, float (*out)[kTileRows * kStrip]) {
  QUIRE_TILE_DOT(0, 4, 6, x, w[0], out[0]);
  if (num_tiles == 1) return;
  QUIRE_TILE_DOT(1, 5, 7, x + 1 / kParts * size, w[1], out[1]);
  if (num_tiles == 2) return;
  QUIRE_TILE_DOT(2, 4, 6, x + 2 / kParts * size, w[2], out[2]);
  if (num_tiles == 3) return;
  QUIRE_TILE_DOT(3, 5, 7, x + 3 / kParts * size, w[3], out[3]);
}

inline int64_t UpToFour(int64_t n) { return n < 4 ? n : 4; }

// c[kRows][16] continues over num_tiles tiles of a strip. x: the rows' first block of them.
template <int kRows, int kParts>
void MultiplyStrip(const Strip& strip, int64_t num_tiles, const uint16_t* x, float* c) {
  constexpr int64_t kSize = kRows * kDotBlock;
  alignas(64) float sums[2][4][kTileRows * kStrip];
  __m512 y[kRows];
  QUIRE_UNROLL
  for (int r = 0; r < kRows; ++r) y[r] = _mm512_load_ps(c + r * kPanel);
  for (int64_t i = 0; i < num_tiles + 4; i += 4) {
    if (i < num_tiles) {
      MultiplyFour<kParts>(strip.tile + i, UpToFour(num_tiles - i), x + i / kParts * kSize, kSize,
                           sums[i / 4 % 2]);
    }
    if (i == 0) continue;
    const float(*const done)[kTileRows * kStrip] = sums[(i / 4 + 1) % 2];
    const int64_t n = UpToFour(num_tiles - i + 4);
    for (int64_t j = 0; j < n; ++j) AddScaled<kRows>(done[j], strip.scale[i - 4 + j], y);
  }
  QUIRE_UNROLL
  for (int r = 0; r < kRows; ++r) _mm512_store_ps(c + r * kPanel, y[r]);
}

template <int kParts>
void MultiplyTail(int64_t rows, const Strip& strip, int64_t num_tiles, const uint16_t* x,
                  float* c) {
  switch (rows) {
#define QUIRE_ROWS(n) \
  case n:             \
    return MultiplyStrip<n, kParts>(strip, num_tiles, x, c)
    QUIRE_ROWS(1);
    QUIRE_ROWS(2);
    QUIRE_ROWS(3);
    QUIRE_ROWS(4);
    QUIRE_ROWS(5);
    QUIRE_ROWS(6);
    QUIRE_ROWS(7);
    QUIRE_ROWS(8);
    QUIRE_ROWS(9);
    QUIRE_ROWS(10);
    QUIRE_ROWS(11);
    QUIRE_ROWS(12);
    QUIRE_ROWS(13);
    QUIRE_ROWS(14);
    QUIRE_ROWS(15);
#undef QUIRE_ROWS
    default:
      return MultiplyStrip<16, kParts>(strip, num_tiles, x, c);
  }
}

// c[rows][16] += the sums of up to four tiles, scaled, in their order.
void AddFour(const float (*sums)[kTileRows * kStrip], const float (*scale)[kStrip], int64_t num,
             int64_t rows, float* c) {
  for (int64_t r = 0; r < rows; ++r) {
    __m512 y = _mm512_load_ps(c + r * kPanel);
    for (int64_t j = 0; j < num; ++j) {
      y = _mm512_fmadd_ps(_mm512_load_ps(sums[j] + r * kStrip), _mm512_load_ps(scale[j]), y);
    }
    _mm512_store_ps(c + r * kPanel, y);
  }
}

// A strip for one tile of rows, as a pipeline of four tiles: codes are looked up, those of the turn
// before are multiplied, the sums before those are added. Tile loads don't see stores that are
// still under way, so each stage's stores have a turn to arrive. x: the tile's block b0.
template <DType kType>
void LookUpAndMultiply(const std::byte* panel, int64_t b0, int64_t num_blocks, int32_t col,
                       const Tables& tables, const uint16_t* x, int64_t rows, Strip& strip,
                       float* c) {
  constexpr int64_t kParts = PartsOf(kType);
  constexpr int64_t kBlocks = 4 / kParts;  // in four tiles
  const int64_t size = rows * kDotBlock;
  const int64_t num_tiles = num_blocks * kParts;
  alignas(64) float sums[2][4][kTileRows * kStrip];
  for (int64_t i = 0; i < num_tiles + 8; i += 4) {
    if (i < num_tiles) {
      const int64_t b = i / kParts;
      const int64_t n = num_blocks - b < kBlocks ? num_blocks - b : kBlocks;
      Expand<kType>(panel, b0 + b, n, col, tables, b, strip);
    }
    if (i >= 4 && i < num_tiles + 4) {
      const int64_t j = i - 4;
      MultiplyFour<kParts>(strip.tile + j, UpToFour(num_tiles - j), x + j / kParts * size, size,
                           sums[j / 4 % 2]);
    }
    if (i >= 8) {
      const int64_t j = i - 8;
      AddFour(sums[j / 4 % 2], strip.scale + j, UpToFour(num_tiles - j), rows, c);
    }
  }
}

template <DType kType>
void Blocks(const std::byte* panel, const DotRows& x, int64_t first_tile, int64_t num_tiles,
            float* c) {
  // Up to three rows the look-up into tiles costs more than it saves.
  if (num_tiles == 1 && DotFewOf<kType>(panel, x, first_tile, 3, c)) return;
  constexpr int kParts = PartsOf(kType);
  alignas(64) float means[kDotRun * kPanel];
  Strip strip;
  const Tables tables = TablesOf<kType>();
  const int64_t first_row = first_tile * kTileRows;
  const int64_t rows = (num_tiles - 1) * kTileRows + x.RowsOfTile(first_tile + num_tiles - 1);
  for (int64_t b0 = 0; b0 < x.blocks; b0 += kDotRun) {
    const int64_t num_blocks = x.blocks - b0 < kDotRun ? x.blocks - b0 : kDotRun;
    if constexpr (HasMean(kType)) {
      FillMeans<kType>(panel, b0, num_blocks, means);
      for (int64_t r = 0; r < rows; r += V::kTileRows) {
        TileAnyRows(rows - r, means, num_blocks, x.sums + (first_row + r) * x.blocks + b0, x.blocks,
                    b0 == 0, c + r * kPanel);
      }
    } else if (b0 == 0) {
      for (int64_t i = 0; i < rows * kPanel; i += 16) V::Store(c + i, V::Zero());
    }
    for (int32_t col = 0; col < kPanel; col += kStrip) {
      if (num_tiles == 1) {
        LookUpAndMultiply<kType>(panel, b0, num_blocks, col, tables,
                                 x.Tile(first_tile) + b0 * rows * kDotBlock, rows, strip, c + col);
        continue;
      }
      Expand<kType>(panel, b0, num_blocks, col, tables, 0, strip);
      for (int64_t t = 0; t < num_tiles; ++t) {
        const int64_t n = x.RowsOfTile(first_tile + t);
        MultiplyTail<kParts>(n, strip, num_blocks * kParts,
                             x.Tile(first_tile + t) + b0 * n * kDotBlock,
                             c + t * kTileRows * kPanel + col);
      }
    }
  }
}

// Plain bfloat16 panels are tiles already, 256 bytes from row to row. Sums stay in the tile.
void Plain(const std::byte* panel, const DotRows& x, int64_t first_tile, int64_t num_tiles,
           float* c) {
  constexpr int64_t kRowBytes = kPanel * 4;
  constexpr int64_t kBlockBytes = 16 * kRowBytes;
  MemoryBarrier();
  int64_t t = 0;
  for (; t < num_tiles; ++t) {
    const int64_t n = x.RowsOfTile(first_tile + t);
    const uint16_t* tile = x.Tile(first_tile + t);
    float* out = c + t * kTileRows * kPanel;
    if (t + 1 < num_tiles && x.RowsOfTile(first_tile + t + 1) == kTileRows) {
      const uint16_t* below = x.Tile(first_tile + t + 1);
      for (int32_t col = 0; col < kPanel; col += 2 * kStrip) {
        const std::byte* w = panel + 4 * col;
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        for (int64_t b = 0; b < x.blocks; ++b, w += kBlockBytes) {
          _tile_loadd(4, tile + b * kTileRows * kDotBlock, 64);
          _tile_loadd(6, w, kRowBytes);
          _tile_dpbf16ps(0, 4, 6);
          _tile_loadd(7, w + 4 * kStrip, kRowBytes);
          _tile_dpbf16ps(1, 4, 7);
          _tile_loadd(5, below + b * kTileRows * kDotBlock, 64);
          _tile_dpbf16ps(2, 5, 6);
          _tile_dpbf16ps(3, 5, 7);
        }
        _tile_stored(0, out + col, kPanel * 4);
        _tile_stored(1, out + col + kStrip, kPanel * 4);
        _tile_stored(2, out + kTileRows * kPanel + col, kPanel * 4);
        _tile_stored(3, out + kTileRows * kPanel + col + kStrip, kPanel * 4);
      }
      ++t;
      continue;
    }
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    const std::byte* w = panel;
    for (int64_t b = 0; b < x.blocks; ++b, w += kBlockBytes) {
      _tile_loadd(4, tile + b * n * kDotBlock, 64);
      _tile_loadd(6, w, kRowBytes);
      _tile_dpbf16ps(0, 4, 6);
      _tile_loadd(7, w + 4 * kStrip, kRowBytes);
      _tile_dpbf16ps(1, 4, 7);
      _tile_loadd(6, w + 8 * kStrip, kRowBytes);
      _tile_dpbf16ps(2, 4, 6);
      _tile_loadd(7, w + 12 * kStrip, kRowBytes);
      _tile_dpbf16ps(3, 4, 7);
    }
    _tile_stored(0, out, kPanel * 4);
    _tile_stored(1, out + kStrip, kPanel * 4);
    _tile_stored(2, out + 2 * kStrip, kPanel * 4);
    _tile_stored(3, out + 3 * kStrip, kPanel * 4);
  }
}

void PanelOfType(DType type, const std::byte* panel, const DotRows& x, int64_t first_tile,
                 int64_t num_tiles, float* c) {
  switch (type) {
    case DType::kBF16:
      return Plain(panel, x, first_tile, num_tiles, c);
    case DType::kQ4_0:
      return Blocks<DType::kQ4_0>(panel, x, first_tile, num_tiles, c);
    case DType::kQ4_1:
      return Blocks<DType::kQ4_1>(panel, x, first_tile, num_tiles, c);
    case DType::kQ5_0:
      return Blocks<DType::kQ5_0>(panel, x, first_tile, num_tiles, c);
    case DType::kQ5_1:
      return Blocks<DType::kQ5_1>(panel, x, first_tile, num_tiles, c);
    case DType::kQ8_0:
      return Blocks<DType::kQ8_0>(panel, x, first_tile, num_tiles, c);
    case DType::kQ4_K:
      return Blocks<DType::kQ4_K>(panel, x, first_tile, num_tiles, c);
    case DType::kQ5_K:
      return Blocks<DType::kQ5_K>(panel, x, first_tile, num_tiles, c);
    case DType::kQ6_K:
      return Blocks<DType::kQ6_K>(panel, x, first_tile, num_tiles, c);
    default:
      break;
  }
}

}  // namespace
}  // namespace amx

void DotPanelAmx(DType type, const std::byte* panel, const DotRows& x, int64_t first_tile,
                 int64_t num_tiles, float* c) {
  ConfigureTiles();
  amx::PanelOfType(type, panel, x, first_tile, num_tiles, c);
}

}  // namespace quire::kernels
QUIRE_END_ISA
#endif
