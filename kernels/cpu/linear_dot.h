// kernels/cpu/linear_dot.h -- the part of RunLinear in bfloat16 that differs by instruction set.
//
// What is computed (C1; linear.h says it for callers). x is rounded to bfloat16, a code of a block
// type is its exact value less the block's centre, so that
//     w = scale * (code - centre) + mean,   mean = scale * centre + min for types with a min, else
//     0
// Over each block of 32 k: even and odd products in one chain of fma each, from 0, k ascending;
// then their sum (Q6_K: of each 16 k, as scales are). That is what AMX's TDPBF16PS does in one tile
// operation (Intel SDM; `linear_bf16_test` compares), so that every instruction set can give its
// bits. Over blocks, ascending, in runs of kDotRun:
//     y = fma(sum of x over the block, mean, y) for each block of the run, x before rounding
//     y = fma(block's dot, scale, y)            for each block of the run
// Plain bfloat16 weights: y = y + block's dot. Subnormal numbers count as zero.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"

namespace quire::kernels {

inline constexpr int64_t kDotBlock = 32;  // k
inline constexpr int64_t kDotRun = 12;    // blocks
inline constexpr int64_t kTileRows = 16;  // rows of x side by side
inline constexpr int64_t kTileBytes = kTileRows * kDotBlock * 2;

// Rows of x as bfloat16 products see them, in tiles of kTileRows rows; the last may have fewer, and
// then kTileBytes behind it can be read.
struct DotRows {
  int64_t num_rows = 0;
  int64_t blocks = 0;     // of k, the last filled up with zeros
  uint16_t* x = nullptr;  // per tile: [blocks][rows of the tile][32] bfloat16
  float* sums = nullptr;  // [num_rows][blocks] sums of 32 values before rounding

  int64_t RowsOfTile(int64_t tile) const {
    const int64_t left = num_rows - tile * kTileRows;
    return left < kTileRows ? left : kTileRows;
  }
  uint16_t* Tile(int64_t tile) const { return x + tile * kTileRows * blocks * kDotBlock; }
};

// c[r][j] for the rows of tiles first_tile .. first_tile + num_tiles - 1 and the 64 columns of one
// packed panel. c: [rows, up to whole tiles][kPanel], 64-byte aligned.
using DotPanelFn = void (*)(DType type, const std::byte* panel, const DotRows& x,
                            int64_t first_tile, int64_t num_tiles, float* c);

void DotPanelPortable(DType type, const std::byte* panel, const DotRows& x, int64_t first_tile,
                      int64_t num_tiles, float* c);
#if defined(__x86_64__)
void DotPanelAvx2(DType type, const std::byte* panel, const DotRows& x, int64_t first_tile,
                  int64_t num_tiles, float* c);
void DotPanelAvx512(DType type, const std::byte* panel, const DotRows& x, int64_t first_tile,
                    int64_t num_tiles, float* c);
void DotPanelAmx(DType type, const std::byte* panel, const DotRows& x, int64_t first_tile,
                 int64_t num_tiles, float* c);
#endif

}  // namespace quire::kernels
