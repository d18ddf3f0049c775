// The AVX-512 row of RunLinear: 16 columns a vector, 6 x 64 sums in registers.
#if defined(__x86_64__)
#include "kernels/cpu/isa_target.h"

// After isa_target.h, which silences a warning in it.
#include <immintrin.h>

#include "kernels/block_format.h"
#include "kernels/cpu/linear_dot.h"
#include "kernels/cpu/linear_kernels.h"

QUIRE_BEGIN_AVX512
namespace quire::kernels {
namespace avx512 {
namespace {

// clang-format off
#include "kernels/cpu/linear_vec_avx512-inl.h"
#include "kernels/cpu/linear-inl.h"
#include "kernels/cpu/linear_dot-inl.h"
// clang-format on

}  // namespace
}  // namespace avx512

void PanelAvx512(DType type, const std::byte* panel, int64_t k, const float* x, int64_t ldx,
                 int64_t rows, float* c) {
  avx512::PanelOf(type, panel, k, x, ldx, rows, c);
}

void DotPanelAvx512(DType type, const std::byte* panel, const DotRows& x, int64_t first_tile,
                    int64_t num_tiles, float* c, int64_t ldc, const float* add) {
  avx512::DotPanelOf(type, panel, x, first_tile, num_tiles, c, ldc, add);
}

}  // namespace quire::kernels
QUIRE_END_ISA
#endif
