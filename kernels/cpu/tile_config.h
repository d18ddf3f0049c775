// kernels/cpu/tile_config.h -- AMX's tile registers: their shape, kept per thread.
#pragma once

#include <cstdint>

namespace quire::kernels {

// From here on this thread's eight tiles are 16 rows of 64 bytes, except that tiles 0 to 4 have
// `rows` (1 to 16): a product of few rows takes less time. Every kernel that uses tiles calls this
// first; if the shape is the last one, it costs next to nothing. REQUIRES: ActiveIsa() is kAmx.
void ConfigureTiles(int32_t rows = 16);

// For TDPBSSD over k bytes (16 or 32): tiles 0 to 3 are 16 rows of 16 sums, tile 4 is 16 rows of k
// bytes, tiles 5 to 7 the other factor, k / 4 rows of 16 columns' words.
void ConfigureInt8Tiles(int32_t k);

}  // namespace quire::kernels
