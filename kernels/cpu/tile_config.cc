#include "kernels/cpu/tile_config.h"

#include <cstdint>

#include "kernels/cpu/isa_target.h"

#if defined(__x86_64__)

#include <immintrin.h>

namespace quire::kernels {
namespace {

// The memory operand of ldtilecfg.
struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

// What this thread's tiles are: the argument of ConfigureTiles, or minus that of
// ConfigureInt8Tiles.
int32_t& Shape() {
  thread_local int32_t shape = 0;
  return shape;
}

QUIRE_BEGIN_AMX
void Load(const TileConfig& config) {
  __asm__ volatile("" : : "m"(config));  // the intrinsic does not tell that it reads memory
  _tile_loadconfig(&config);
}
QUIRE_END_ISA

}  // namespace

void ConfigureTiles(int32_t rows) {
  if (Shape() == rows) return;
  TileConfig config;
  for (int i = 0; i < 5; ++i) config.rows[i] = static_cast<uint8_t>(rows);
  Load(config);
  Shape() = rows;
}

void ConfigureInt8Tiles(int32_t k) {
  if (Shape() == -k) return;
  TileConfig config;
  config.row_bytes[4] = static_cast<uint16_t>(k);
  for (int i = 5; i < 8; ++i) config.rows[i] = static_cast<uint8_t>(k / 4);
  Load(config);
  Shape() = -k;
}

}  // namespace quire::kernels

#endif
