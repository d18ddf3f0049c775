// kernels/cpu/linear_int8.h -- the part of RunLinear in int8 that differs by instruction set.
//
// What is computed (C1; linear.h says it for callers). Each block of 32 values of a row of x has
// its own scale: dx = max |x| / 127, q = x * (127 / max |x|) rounded to nearest even. A code of a
// weight is its exact value less the type's centre, so that
//     w = scale * (code - centre) + mean,   mean = scale * centre + min for types with a min, else
//     0
// A block's dot of q and (code - centre) is an exact integer (Q6_K: of each 16 k, as scales are),
// whatever instruction made it. Over blocks, ascending, in runs of kDotRun:
//     y = fma(sum of x over the block, mean, y)     for each block of the run, x not quantised
//     y = fma(float(dot) * dx, scale, y)            for each block of the run
// A block of x that is not finite gives NaN, one below 2^-100 counts as zero. Subnormal numbers
// count as zero.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"
#include "kernels/cpu/linear_dot.h"

namespace quire::kernels {

inline constexpr int64_t kDotRun = 12;  // blocks

// Rows of x as int8 products see them, in tiles of kTileRows rows; the last may have fewer.
// The 8 values of a group lie in the order of codes in two
// words (block_format.h): 0 4 1 5, 2 6 3 7.
struct Int8Rows {
  int64_t num_rows = 0;
  int64_t blocks = 0;         // of k, the last filled up with zeros
  int8_t* q = nullptr;        // per tile: [blocks][rows of the tile][32]
  float* scales = nullptr;    // per tile: [blocks][rows of the tile] dx
  int32_t* totals = nullptr;  // as scales: sums of q
  float* sums = nullptr;      // [num_rows][blocks] of x before rounding

  int64_t RowsOfTile(int64_t tile) const {
    const int64_t left = num_rows - tile * kTileRows;
    return left < kTileRows ? left : kTileRows;
  }
  // Of scales and totals.
  int64_t At(int64_t tile, int64_t block, int64_t row) const {
    return tile * kTileRows * blocks + block * RowsOfTile(tile) + row;
  }
  int8_t* Tile(int64_t tile) const { return q + tile * kTileRows * blocks * kDotBlock; }
};

// Where a row of a tile of n rows goes: codes, scale and total of its first block, sums of all.
struct QuantizedRow {
  int64_t n = 0;
  int8_t* q = nullptr;
  float* scales = nullptr;
  int32_t* totals = nullptr;
  float* sums = nullptr;
};

// As DotPanelFn.
using Int8PanelFn = void (*)(DType type, const std::byte* panel, const Int8Rows& x,
                             int64_t first_tile, int64_t num_tiles, float* c);

void Int8PanelPortable(DType type, const std::byte* panel, const Int8Rows& x, int64_t first_tile,
                       int64_t num_tiles, float* c);
#if defined(__x86_64__)
void Int8PanelAvx2(DType type, const std::byte* panel, const Int8Rows& x, int64_t first_tile,
                   int64_t num_tiles, float* c);
// Requires AVX512-VNNI.
void Int8PanelVnni(DType type, const std::byte* panel, const Int8Rows& x, int64_t first_tile,
                   int64_t num_tiles, float* c);
void Int8PanelAmx(DType type, const std::byte* panel, const Int8Rows& x, int64_t first_tile,
                  int64_t num_tiles, float* c);
#endif

}  // namespace quire::kernels
