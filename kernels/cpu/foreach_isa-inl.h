// kernels/cpu/foreach_isa-inl.h -- compiles one body once per instruction set. Used as
//
//   #define QUIRE_BODY "kernels/cpu/ops_rows-inl.h"
//   #include "kernels/cpu/foreach_isa-inl.h"
//
// The body has no include guard, includes only files of its own kind, and puts everything into
// `namespace quire::kernels::QUIRE_ISA`, where Vec and its operations mean the same bits for each
// ISA. The file that includes this has already included what the body needs.

// The order of includes matters from here on.
// clang-format off
#include "kernels/cpu/isa_target.h"

#include <bit>
#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "base/dtype.h"

#define QUIRE_ISA portable
#include "kernels/cpu/vec_portable-inl.h"
#include "kernels/cpu/vec_math-inl.h"
#include QUIRE_BODY
#undef QUIRE_ISA

#if defined(__x86_64__)
#define QUIRE_ISA avx2
QUIRE_BEGIN_AVX2
#include "kernels/cpu/vec_avx2-inl.h"
#include "kernels/cpu/vec_math-inl.h"
#include QUIRE_BODY
QUIRE_END_ISA
#undef QUIRE_ISA

#define QUIRE_ISA avx512
QUIRE_BEGIN_AVX512
#include "kernels/cpu/vec_avx512-inl.h"
#include "kernels/cpu/vec_math-inl.h"
#include QUIRE_BODY
QUIRE_END_ISA
#undef QUIRE_ISA
#endif
// clang-format on

#undef QUIRE_BODY

// The function of that name for the ISA in use: QUIRE_FOR_ISA(RmsNormRows). kAmx runs what is here
// for AVX-512; tile products have files of their own.
#if defined(__x86_64__)
#define QUIRE_FOR_ISA(name)                                        \
  (::quire::kernels::ActiveIsa() >= CpuIsa::kAvx512 ? avx512::name \
   : ::quire::kernels::ActiveIsa() == CpuIsa::kAvx2 ? avx2::name   \
                                                    : portable::name)
#else
#define QUIRE_FOR_ISA(name) portable::name
#endif
