// The AMX row of RunLinear in int8 (linear_int8.h): as linear_amx.cc, on tiles of 32 k, a block.
// Few rows go through VNNI: the sums are exact integers, so that the bits are the same.
#if defined(__x86_64__)
#include "kernels/cpu/isa_target.h"

// After isa_target.h, which silences a warning in it.
#include <immintrin.h>

#include "kernels/block_format.h"
#include "kernels/cpu/linear_int8.h"
#include "kernels/cpu/linear_kernels.h"
#include "kernels/cpu/tile_config.h"

#define QUIRE_VNNI
QUIRE_BEGIN_AMX
namespace quire::kernels {
namespace amx_int8 {
namespace {

// clang-format off
#include "kernels/cpu/linear_vec_avx512-inl.h"
#include "kernels/cpu/linear-inl.h"
#include "kernels/cpu/linear_dot-inl.h"
#include "kernels/cpu/linear_int8-inl.h"
// clang-format on

constexpr int32_t kStrip = 16;  // columns of a tile
// Up to so many rows VNNI is quicker (`linear_bench`).
constexpr int64_t kVnniRows = 8;

// Sums and rows of x: 16 rows; x has 32 bytes of each, weights 8 rows of 16 words.
struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 32, 32, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 8, 8};
};
constexpr TileConfig kConfig;

// The compiler does not see what a tile load reads.
inline void MemoryBarrier() { asm volatile("" ::: "memory"); }

// Sixteen columns of a run of blocks; codes less the centre.
struct Strip {
  static constexpr int64_t kMost = 2 * kDotRun;  // Q6_K has two tiles a block
  alignas(64) uint32_t tile[kMost][8][kStrip];
  alignas(64) float scale[kMost][kStrip];
};

template <DType kType>
__m512i Centred(__m512i codes) {
  constexpr int kCentre = FormatOf(kType).bits == 8 ? 0 : CentreOf(kType);
  if constexpr (kCentre == 0) return codes;
  return _mm512_sub_epi8(codes, _mm512_set1_epi8(kCentre));
}

template <DType kType>
void Expand(const std::byte* panel, int64_t b0, int64_t num_blocks, int32_t col, Strip& strip) {
  constexpr int kParts = PartsOf(kType);
  for (int64_t b = 0; b < num_blocks; ++b) {
    PrefetchAhead<kType, kPanel / kStrip>(panel, b0 + b, col / kStrip);
    Decoder<kType> d;
    d.Begin(panel, b0 + b, col);
    for (int32_t g = 0; g < 4; ++g) {
      const int64_t tile = b * kParts + g / 2 * (kParts - 1);
      if (g % 2 == 0) {
        d.Half(g / 2);
        if (g == 0 || kParts == 2) V::Store(strip.scale[tile], d.scale_);
      }
      d.Group(g);
      V::StoreU32(strip.tile[tile][2 * g], Centred<kType>(CodesOf<kType, 0>(d)));
      V::StoreU32(strip.tile[tile][2 * g + 1], Centred<kType>(CodesOf<kType, 1>(d)));
      if constexpr (kParts == 2) {
        // The other half's rows.
        const int64_t other = b * 2 + 1 - g / 2;
        V::StoreU32(strip.tile[other][2 * g], _mm512_setzero_si512());
        V::StoreU32(strip.tile[other][2 * g + 1], _mm512_setzero_si512());
      }
    }
  }
  MemoryBarrier();
}

// One tile product; x and w are tiles, sums go to `out`. Tile numbers are part of an instruction.
#define QUIRE_TILE_DOT(c, a, b, x, w, out) \
  _tile_zero(c);                           \
  _tile_loadd(a, x, 32);                   \
  _tile_loadd(b, w, 64);                   \
  _tile_dpbssd(c, a, b);                   \
  _tile_stored(c, out, 64)

using Sums = int32_t[kTileRows * kStrip];

template <int kParts>
void MultiplyFour(const uint32_t (*w)[8][kStrip], int64_t num_tiles, const int8_t* x, int64_t size,
                  Sums* out) {
  QUIRE_TILE_DOT(0, 4, 6, x, w[0], out[0]);
  if (num_tiles == 1) return;
  QUIRE_TILE_DOT(1, 5, 7, x + 1 / kParts * size, w[1], out[1]);
  if (num_tiles == 2) return;
  QUIRE_TILE_DOT(2, 4, 6, x + 2 / kParts * size, w[2], out[2]);
  if (num_tiles == 3) return;
  QUIRE_TILE_DOT(3, 5, 7, x + 3 / kParts * size, w[3], out[3]);
}

inline int64_t UpToFour(int64_t n) { return n < 4 ? n : 4; }

// y[kRows] continues over one tile. dx: of the tile's block, [kRows] apart by stride.
template <int kRows>
void AddScaled(const int32_t* sums, const float* scale, const float* dx, int64_t stride,
               __m512* y) {
  const __m512 s = _mm512_load_ps(scale);
  QUIRE_UNROLL
  for (int r = 0; r < kRows; ++r) {
    const __m512 dot = _mm512_cvtepi32_ps(_mm512_load_si512(sums + r * kStrip));
    y[r] = _mm512_fmadd_ps(_mm512_mul_ps(dot, s), _mm512_set1_ps(dx[r * stride]), y[r]);
  }
}

template <int kRows, int kParts>
void MultiplyStrip(const Strip& strip, int64_t num_tiles, const int8_t* x, const float* dx,
                   int64_t stride, float* c) {
  constexpr int64_t kSize = kRows * kDotBlock;
  alignas(64) Sums sums[2][4];
  __m512 y[kRows];
  QUIRE_UNROLL
  for (int r = 0; r < kRows; ++r) y[r] = _mm512_load_ps(c + r * kPanel);
  for (int64_t i = 0; i < num_tiles + 4; i += 4) {
    if (i < num_tiles) {
      MultiplyFour<kParts>(strip.tile + i, UpToFour(num_tiles - i), x + i / kParts * kSize, kSize,
                           sums[i / 4 % 2]);
    }
    if (i == 0) continue;
    const Sums* const done = sums[(i / 4 + 1) % 2];
    const int64_t n = UpToFour(num_tiles - i + 4);
    for (int64_t j = 0; j < n; ++j) {
      const int64_t tile = i - 4 + j;
      AddScaled<kRows>(done[j], strip.scale[tile], dx + tile / kParts, stride, y);
    }
  }
  QUIRE_UNROLL
  for (int r = 0; r < kRows; ++r) _mm512_store_ps(c + r * kPanel, y[r]);
}

template <int kParts>
void MultiplyRows(int64_t rows, const Strip& strip, int64_t num_tiles, const int8_t* x,
                  const float* dx, int64_t stride, float* c) {
  switch (rows) {
#define QUIRE_ROWS(n) \
  case n:             \
    return MultiplyStrip<n, kParts>(strip, num_tiles, x, dx, stride, c)
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
      return MultiplyStrip<16, kParts>(strip, num_tiles, x, dx, stride, c);
  }
}

template <DType kType>
void Blocks(const std::byte* panel, const Int8Rows& x, int64_t first_tile, int64_t num_tiles,
            float* c) {
  constexpr int kParts = PartsOf(kType);
  const int64_t first_row = first_tile * kTileRows;
  const int64_t rows = (num_tiles - 1) * kTileRows + x.RowsOfTile(first_tile + num_tiles - 1);
  if (rows <= kVnniRows) return Int8Panel<kType>(panel, x, first_tile, num_tiles, c);
  Strip strip;
  _tile_loadconfig(&kConfig);
  for (int64_t b0 = 0; b0 < x.blocks; b0 += kDotRun) {
    const int64_t num_blocks = x.blocks - b0 < kDotRun ? x.blocks - b0 : kDotRun;
    Int8Means<kType>(panel, x, first_row, rows, b0, num_blocks, c);
    for (int32_t col = 0; col < kPanel; col += kStrip) {
      Expand<kType>(panel, b0, num_blocks, col, strip);
      for (int64_t t = 0; t < num_tiles; ++t) {
        const int64_t n = x.RowsOfTile(first_tile + t);
        MultiplyRows<kParts>(n, strip, num_blocks * kParts,
                             x.Tile(first_tile + t) + b0 * n * kDotBlock,
                             x.scales + (first_row + t * kTileRows) * x.blocks + b0, x.blocks,
                             c + t * kTileRows * kPanel + col);
      }
    }
  }
  ReloadTiles();
}

void PanelOfType(DType type, const std::byte* panel, const Int8Rows& x, int64_t first_tile,
                 int64_t num_tiles, float* c) {
  switch (type) {
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
}  // namespace amx_int8

void Int8PanelAmx(DType type, const std::byte* panel, const Int8Rows& x, int64_t first_tile,
                  int64_t num_tiles, float* c) {
  amx_int8::PanelOfType(type, panel, x, first_tile, num_tiles, c);
}

}  // namespace quire::kernels
QUIRE_END_ISA
#endif
