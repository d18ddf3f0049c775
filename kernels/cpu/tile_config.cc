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

int32_t& ConfiguredRows() {
  thread_local int32_t rows = 0;
  return rows;
}

QUIRE_BEGIN_AMX
void Load(const TileConfig& config) {
  __asm__ volatile("" : : "m"(config));  // the intrinsic does not tell that it reads memory
  _tile_loadconfig(&config);
}
QUIRE_END_ISA

}  // namespace

void ConfigureTiles(int32_t rows) {
  if (ConfiguredRows() == rows) return;
  TileConfig config;
  for (int i = 0; i < 5; ++i) config.rows[i] = static_cast<uint8_t>(rows);
  Load(config);
  ConfiguredRows() = rows;
}

}  // namespace quire::kernels

#endif
