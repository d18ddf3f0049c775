// kernels/cpu/linear_kernels.h -- the part of RunLinear that differs by instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"

namespace quire::kernels {

// Most rows of x in one call; bounds the caller's result buffer.
inline constexpr int64_t kMaxRows = 192;

// c[r][j] = chain over all k of x[r] with column j of one packed panel, r < rows <= kMaxRows.
// panel: as block_format.h lays it out; x: [rows, k], row stride ldx; c: [rows][kPanel], 64-byte
// aligned. The same bits for every instruction set and every number of rows.
using PanelFn = void (*)(DType type, const std::byte* panel, int64_t k, const float* x, int64_t ldx,
                         int64_t rows, float* c);

void PanelPortable(DType type, const std::byte* panel, int64_t k, const float* x, int64_t ldx,
                   int64_t rows, float* c);
#if defined(__x86_64__)
void PanelAvx2(DType type, const std::byte* panel, int64_t k, const float* x, int64_t ldx,
               int64_t rows, float* c);
void PanelAvx512(DType type, const std::byte* panel, int64_t k, const float* x, int64_t ldx,
                 int64_t rows, float* c);
#endif

}  // namespace quire::kernels
