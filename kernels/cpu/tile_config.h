// kernels/cpu/tile_config.h -- AMX's tile registers: one shape for all kernels, set once per
// thread.
#pragma once

namespace quire::kernels {

// From here on this thread's eight tiles are 16 rows of 64 bytes. Every kernel that uses tiles
// calls this first and leaves the shape alone; after the first call it costs next to nothing.
// REQUIRES: ActiveIsa() is kAmx.
void ConfigureTiles();

}  // namespace quire::kernels
