// kernels/cpu/isa_target.h -- compiles a region of a file for one instruction set.
//
//   QUIRE_BEGIN_AVX512
//   namespace quire::kernels::avx512 { ... }
//   QUIRE_END_ISA
//
// Include before <immintrin.h>. Rules inside a region: no #include of a shared header (its inline
// functions would be emitted with wide instructions and the linker could choose them for every
// CPU), no lambdas (clang does not give them the region's target), internal linkage or a namespace
// of the ISA for everything.
#pragma once

// A _Pragma takes one literal, however long.
// clang-format off
#if defined(__clang__)
#define QUIRE_BEGIN_AVX512 \
  _Pragma("clang attribute push(__attribute__((target(\"fma,f16c,avx512f,avx512bw,avx512vl,avx512dq\"))), apply_to = function)")
#define QUIRE_BEGIN_VNNI \
  _Pragma("clang attribute push(__attribute__((target(\"fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni\"))), apply_to = function)")
#define QUIRE_BEGIN_AMX \
  _Pragma("clang attribute push(__attribute__((target(\"fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx512vnni,prfchw,amx-tile,amx-bf16,amx-int8\"))), apply_to = function)")
#define QUIRE_BEGIN_AVX2 \
  _Pragma("clang attribute push(__attribute__((target(\"avx2,fma,f16c\"))), apply_to = function)")
#define QUIRE_END_ISA _Pragma("clang attribute pop")
#define QUIRE_UNROLL _Pragma("clang loop unroll(full)")
#elif defined(__GNUC__)
// gcc 12's own AVX-512 header starts its "undefined" vectors with `__Y = __Y`, and warns about it
// once inlined here (gcc bug 105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#define QUIRE_BEGIN_AVX512    \
  _Pragma("GCC push_options") \
  _Pragma("GCC target(\"fma,f16c,avx512f,avx512bw,avx512vl,avx512dq\")")
#define QUIRE_BEGIN_VNNI      \
  _Pragma("GCC push_options") \
  _Pragma("GCC target(\"fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni\")")
#define QUIRE_BEGIN_AMX       \
  _Pragma("GCC push_options") \
  _Pragma("GCC target(\"fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx512vnni,prfchw,amx-tile,amx-bf16,amx-int8\")")
#define QUIRE_BEGIN_AVX2 \
  _Pragma("GCC push_options") _Pragma("GCC target(\"avx2,fma,f16c\")")
#define QUIRE_END_ISA _Pragma("GCC pop_options")
#define QUIRE_UNROLL _Pragma("GCC unroll 64")
#endif
// clang-format on
