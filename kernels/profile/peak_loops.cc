// Independent chains on zeroed registers: enough of them to cover latency on two units. Assembler,
// so that no compiler moves, merges or drops anything.
#include "kernels/profile/peak_loops.h"

#include <array>

#include "kernels/cpu/isa_target.h"
#include "kernels/cpu_isa.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace quire::kernels {
namespace {

bool Always() { return true; }

// Twelve chains of four float32 as plain C++: what every CPU has.
void PortableFma(int64_t rounds) {
  constexpr int kChains = 48;
  std::array<float, kChains> sums{};
  float a = 0.5f, b = 0.25f;
#if defined(__GNUC__)
  asm volatile("" : "+m"(a), "+m"(b));
#endif
  for (int64_t i = 0; i < rounds; ++i) {
    for (float& s : sums) s = s * a + b;
  }
#if defined(__GNUC__)
  asm volatile("" : : "m"(sums));
#endif
}

void ReadPortable(const std::byte* p, size_t bytes) {
  uint64_t sum = 0;
  const auto* const words = reinterpret_cast<const uint64_t*>(p);
  for (size_t i = 0; i < bytes / 8; ++i) sum += words[i];
  volatile uint64_t sink = sum;
  (void)sink;
}

#if defined(__x86_64__)

// Of CPUID leaf 7.
struct Leaf7 {
  unsigned ecx0 = 0, edx0 = 0;  // subleaf 0
  unsigned eax1 = 0;            // subleaf 1
};
Leaf7 ReadLeaf7() {
  Leaf7 leaf;
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return leaf;
  leaf.ecx0 = ecx;
  leaf.edx0 = edx;
  const unsigned most = eax;
  if (most >= 1 && __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0) leaf.eax1 = eax;
  return leaf;
}

bool HasAvx2() {
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}
bool HasAvx512() {
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw");
}
bool HasAvx512Bf16() { return HasAvx512() && (ReadLeaf7().eax1 & (1u << 5)) != 0; }
bool HasAvx512Vnni() { return HasAvx512() && (ReadLeaf7().ecx0 & (1u << 11)) != 0; }
bool HasAvxVnni() { return HasAvx2() && (ReadLeaf7().eax1 & (1u << 4)) != 0; }
bool HasAmxBf16() { return (ReadLeaf7().edx0 & (1u << 22)) != 0 && RequestAmx(); }
bool HasAmxInt8() { return (ReadLeaf7().edx0 & (1u << 25)) != 0 && RequestAmx(); }

// Sources 0 and 1, sums 2 .. 13.
#define QUIRE_TWELVE(op, r)                                                                     \
  op " %%" r "0,%%" r "1,%%" r "2\n " op " %%" r "0,%%" r "1,%%" r "3\n" op " %%" r "0,%%" r    \
     "1,%%" r "4\n " op " %%" r "0,%%" r "1,%%" r "5\n" op " %%" r "0,%%" r "1,%%" r "6\n " op  \
     " %%" r "0,%%" r "1,%%" r "7\n" op " %%" r "0,%%" r "1,%%" r "8\n " op " %%" r "0,%%" r    \
     "1,%%" r "9\n" op " %%" r "0,%%" r "1,%%" r "10\n " op " %%" r "0,%%" r "1,%%" r "11\n" op \
     " %%" r "0,%%" r "1,%%" r "12\n " op " %%" r "0,%%" r "1,%%" r "13\n"
#define QUIRE_CLOBBERS                                                                     \
  "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", \
      "xmm11", "xmm12", "xmm13"
// vzeroall clears xmm0-15 and all above.
#define QUIRE_PEAK_LOOP(name, target_set, op, r)                  \
  __attribute__((target(target_set))) void name(int64_t rounds) { \
    asm volatile("vzeroall" ::: "memory");                        \
    for (int64_t i = 0; i < rounds; ++i) {                        \
      asm volatile(QUIRE_TWELVE(op, r)::: QUIRE_CLOBBERS);        \
    }                                                             \
    asm volatile("vzeroupper" ::: "memory");                      \
  }

QUIRE_PEAK_LOOP(FmaAvx2, "avx2,fma", "vfmadd231ps", "ymm")
QUIRE_PEAK_LOOP(FmaAvx512, "avx512f", "vfmadd231ps", "zmm")
QUIRE_PEAK_LOOP(DotBf16, "avx512f,avx512bf16", "vdpbf16ps", "zmm")
QUIRE_PEAK_LOOP(DotInt8Avx, "avx2,avxvnni", "%{vex%} vpdpbusd", "ymm")
QUIRE_PEAK_LOOP(DotInt8, "avx512f,avx512vnni", "vpdpbusd", "zmm")

// As LDTILECFG reads it: eight tiles of 16 rows of 64 bytes.
struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

// Sources 6 and 7, sums 0 .. 5.
#define QUIRE_SIX(op)                                                                         \
  op " %%tmm7,%%tmm6,%%tmm0\n " op " %%tmm7,%%tmm6,%%tmm1\n" op " %%tmm7,%%tmm6,%%tmm2\n " op \
     " %%tmm7,%%tmm6,%%tmm3\n" op " %%tmm7,%%tmm6,%%tmm4\n " op " %%tmm7,%%tmm6,%%tmm5\n"
#define QUIRE_TILE_LOOP(name, target_set, op)                                        \
  __attribute__((target(target_set))) void name(int64_t rounds) {                    \
    const TileConfig config;                                                         \
    asm volatile("ldtilecfg %0" ::"m"(config));                                      \
    asm volatile(                                                                    \
        "tilezero %%tmm0\n tilezero %%tmm1\n tilezero %%tmm2\n tilezero %%tmm3\n"    \
        "tilezero %%tmm4\n tilezero %%tmm5\n tilezero %%tmm6\n tilezero %%tmm7\n" :: \
            : "memory");                                                             \
    for (int64_t i = 0; i < rounds; ++i) asm volatile(QUIRE_SIX(op)::: "memory");    \
    asm volatile("tilerelease" ::: "memory");                                        \
  }

QUIRE_TILE_LOOP(TilesBf16, "amx-tile,amx-bf16", "tdpbf16ps")
QUIRE_TILE_LOOP(TilesInt8, "amx-tile,amx-int8", "tdpbssd")

// Eight lines a turn, no two sums in one chain of latency.
__attribute__((target("avx2"))) void ReadAvx2(const std::byte* p, size_t bytes) {
  __m256i s0 = _mm256_setzero_si256(), s1 = s0, s2 = s0, s3 = s0;
  for (const std::byte* const end = p + bytes; p != end; p += 256) {
    const auto* const v = reinterpret_cast<const __m256i*>(p);
    s0 = _mm256_xor_si256(_mm256_xor_si256(s0, v[0]), v[1]);
    s1 = _mm256_xor_si256(_mm256_xor_si256(s1, v[2]), v[3]);
    s2 = _mm256_xor_si256(_mm256_xor_si256(s2, v[4]), v[5]);
    s3 = _mm256_xor_si256(_mm256_xor_si256(s3, v[6]), v[7]);
  }
  s0 = _mm256_xor_si256(_mm256_xor_si256(s0, s1), _mm256_xor_si256(s2, s3));
  asm volatile("" ::"x"(s0));
}
__attribute__((target("avx512f"))) void ReadAvx512(const std::byte* p, size_t bytes) {
  __m512i s0 = _mm512_setzero_si512(), s1 = s0, s2 = s0, s3 = s0;
  for (const std::byte* const end = p + bytes; p != end; p += 512) {
    const auto* const v = reinterpret_cast<const __m512i*>(p);
    s0 = _mm512_xor_si512(_mm512_xor_si512(s0, v[0]), v[1]);
    s1 = _mm512_xor_si512(_mm512_xor_si512(s1, v[2]), v[3]);
    s2 = _mm512_xor_si512(_mm512_xor_si512(s2, v[4]), v[5]);
    s3 = _mm512_xor_si512(_mm512_xor_si512(s3, v[6]), v[7]);
  }
  s0 = _mm512_xor_si512(_mm512_xor_si512(s0, s1), _mm512_xor_si512(s2, s3));
  asm volatile("" ::"v"(s0));
}

#endif  // __x86_64__

// Operations: chains x lanes x multiply-adds per lane x 2.
constexpr PeakLoop kLoops[] = {
    {MathType::kF32, "portable", CpuIsa::kPortable, Always, PortableFma, 48 * 2},
#if defined(__x86_64__)
    {MathType::kF32, "avx2 fma", CpuIsa::kAvx2, HasAvx2, FmaAvx2, 12 * 8 * 2},
    {MathType::kF32, "avx512 fma", CpuIsa::kAvx512, HasAvx512, FmaAvx512, 12 * 16 * 2},
    {MathType::kBF16, "avx512 vdpbf16ps", CpuIsa::kAvx512, HasAvx512Bf16, DotBf16, 12 * 16 * 2 * 2},
    {MathType::kBF16, "amx tdpbf16ps", CpuIsa::kAmx, HasAmxBf16, TilesBf16, 6 * 16 * 16 * 32 * 2},
    {MathType::kI8, "avx vpdpbusd", CpuIsa::kAvx2, HasAvxVnni, DotInt8Avx, 12 * 8 * 4 * 2},
    {MathType::kI8, "avx512 vpdpbusd", CpuIsa::kAvx512, HasAvx512Vnni, DotInt8, 12 * 16 * 4 * 2},
    {MathType::kI8, "amx tdpbssd", CpuIsa::kAmx, HasAmxInt8, TilesInt8, 6 * 16 * 16 * 64 * 2},
#endif
};

}  // namespace

std::span<const PeakLoop> PeakLoops() { return kLoops; }

ReadFn ActiveReadLoop() {
#if defined(__x86_64__)
  if (HasAvx512()) return ReadAvx512;
  if (HasAvx2()) return ReadAvx2;
#endif
  return ReadPortable;
}

bool RequestAmx() {
#if defined(__x86_64__) && defined(SYS_arch_prctl)
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;
  return ::syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

}  // namespace quire::kernels
