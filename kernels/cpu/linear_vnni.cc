// The AVX512-VNNI row of RunLinear in int8 (linear_int8.h).
#if defined(__x86_64__)
#include "kernels/cpu/isa_target.h"

// After isa_target.h, which silences a warning in it.
#include <immintrin.h>

#include "kernels/block_format.h"
#include "kernels/cpu/linear_int8.h"
#include "kernels/cpu/linear_kernels.h"

#define QUIRE_VNNI
QUIRE_BEGIN_VNNI
namespace quire::kernels {
namespace vnni {
namespace {

// clang-format off
#include "kernels/cpu/linear_vec_avx512-inl.h"
#include "kernels/cpu/linear-inl.h"
#include "kernels/cpu/linear_int8-inl.h"
// clang-format on

}  // namespace
}  // namespace vnni

void Int8PanelVnni(DType type, const std::byte* panel, const Int8Rows& x, int64_t first_tile,
                   int64_t num_tiles, float* c) {
  vnni::Int8PanelOf(type, panel, x, first_tile, num_tiles, c);
}

}  // namespace quire::kernels
QUIRE_END_ISA
#endif
