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

constexpr TileConfig kConfig;

bool& Configured() {
  thread_local bool configured = false;
  return configured;
}

QUIRE_BEGIN_AMX
void Load() { _tile_loadconfig(&kConfig); }
QUIRE_END_ISA

}  // namespace

void ConfigureTiles() {
  if (Configured()) return;
  Load();
  Configured() = true;
}

}  // namespace quire::kernels

#endif
