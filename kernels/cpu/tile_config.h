// kernels/cpu/tile_config.h -- AMX's tile registers: their shape, kept per thread.
#pragma once

#include <cstdint>

namespace quire::kernels {

// From here on this thread's eight tiles are 16 rows of 64 bytes, except that tiles 0 to 4 have
// `rows` (1 to 16): a product of few rows takes less time. Every kernel that uses tiles calls this
// first; if the shape is the last one, it costs next to nothing. REQUIRES: ActiveIsa() is kAmx.
void ConfigureTiles(int32_t rows = 16);

}  // namespace quire::kernels
