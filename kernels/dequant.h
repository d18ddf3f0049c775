// kernels/dequant.h -- a whole sub-block of a block type as float32: load time and embedding rows.
#pragma once

#include "kernels/block_format.h"

namespace quire::kernels {

// ValueOf for all 32 values, the same bits.
void ValuesOf(DType type, const SubBlock& s, float* out);

}  // namespace quire::kernels
