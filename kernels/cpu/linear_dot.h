// kernels/cpu/linear_dot.h -- the part of RunLinear in bfloat16 that differs by instruction set.
//
// What is computed (C1; linear.h says it for callers). x and w are rounded to bfloat16, to nearest
// even; w is the format's float32 value (block_format.h). Over each block of 32 k: even and odd
// products in one chain of fma each, from 0, k ascending; then y = y + (even + odd), blocks
// ascending, y from 0. That is what AMX's TDPBF16PS does in one tile operation (Intel SDM;
// `linear_bf16_test` compares), so that every instruction set can give its bits. Subnormal numbers
// count as zero.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"
#include "kernels/block_format.h"

namespace quire::kernels {

inline constexpr int64_t kDotBlock = 32;  // k
inline constexpr int64_t kTileRows = 16;  // rows of x side by side
inline constexpr int64_t kTileBytes = kTileRows * kDotBlock * 2;

// Rows of x as bfloat16 products see them: tiles of kTileRows rows in pairs of k, which is a tile
// instruction's second operand. The last may have fewer, and then 64 bytes behind it can be read.
struct DotRows {
  int64_t num_rows = 0;
  int64_t blocks = 0;     // of k, the last filled up with zeros
  uint16_t* x = nullptr;  // per tile: [blocks][16 pairs][rows of the tile][2] bfloat16

  int64_t RowsOfTile(int64_t tile) const {
    const int64_t left = num_rows - tile * kTileRows;
    return left < kTileRows ? left : kTileRows;
  }
  uint16_t* Tile(int64_t tile) const { return x + tile * kTileRows * blocks * kDotBlock; }
};

inline constexpr int32_t kDotColumns = ColumnsOf(PanelLayout::kValues);

// c[r][j] for the rows of tiles first_tile .. first_tile + num_tiles - 1 and the columns of one
// packed panel (kValues), and `add` of the same place where it is not null. c, add: [rows]
// [kDotColumns], row stride ldc; add may be c.
using DotPanelFn = void (*)(DType type, const std::byte* panel, const DotRows& x,
                            int64_t first_tile, int64_t num_tiles, float* c, int64_t ldc,
                            const float* add);

void DotPanelPortable(DType type, const std::byte* panel, const DotRows& x, int64_t first_tile,
                      int64_t num_tiles, float* c, int64_t ldc, const float* add);
#if defined(__x86_64__)
void DotPanelAvx2(DType type, const std::byte* panel, const DotRows& x, int64_t first_tile,
                  int64_t num_tiles, float* c, int64_t ldc, const float* add);
void DotPanelAvx512(DType type, const std::byte* panel, const DotRows& x, int64_t first_tile,
                    int64_t num_tiles, float* c, int64_t ldc, const float* add);
void DotPanelAmx(DType type, const std::byte* panel, const DotRows& x, int64_t first_tile,
                 int64_t num_tiles, float* c, int64_t ldc, const float* add);
#endif

}  // namespace quire::kernels
