// Which rows this CPU can run, from CPUID and the OS's saved register state (XCR0), which
// __builtin_cpu_supports looks at as well. Tile registers are large, so Linux saves them only for
// processes that asked: all threads of one that did may use them.
#include "kernels/cpu_isa.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace quire::kernels {
namespace {

bool AlwaysSupported() { return true; }

#if defined(__x86_64__)

// Not among the names that clang 14's __builtin_cpu_supports knows.
bool HasF16c() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}

bool HasAvx2() {
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && HasF16c();
}

bool HasAvx512() {
  return HasAvx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}

// REQUIRES: the OS uses XSAVE, as it does where there is AVX-512.
uint64_t SavedRegisters() {
  uint32_t lo = 0, hi = 0;
  __asm__("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
  return uint64_t{hi} << 32 | lo;
}

bool AskForTiles() {
#if defined(__linux__)
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM, Linux 5.16
  constexpr long kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

bool HasAmx() {
  if (!HasAvx512() || !__builtin_cpu_supports("avx512vnni")) return false;
  constexpr unsigned kBf16 = 1u << 22, kTile = 1u << 24, kInt8 = 1u << 25;
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return false;
  if ((edx & (kBf16 | kTile | kInt8)) != (kBf16 | kTile | kInt8)) return false;
  constexpr unsigned kAvx512Bf16 = 1u << 5;
  if (__get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) == 0) return false;
  if ((eax & kAvx512Bf16) == 0) return false;
  constexpr uint64_t kTileState = uint64_t{3} << 17;
  if ((SavedRegisters() & kTileState) != kTileState) return false;
  static const bool granted = AskForTiles();
  return granted;
}

#endif

struct IsaRow {
  CpuIsa isa;
  std::string_view name;
  bool (*supported)();
};

// Best first; the last row runs everywhere.
constexpr IsaRow kRows[] = {
#if defined(__x86_64__)
    {CpuIsa::kAmx, "amx", HasAmx},
    {CpuIsa::kAvx512, "avx512", HasAvx512},
    {CpuIsa::kAvx2, "avx2", HasAvx2},
#endif
    {CpuIsa::kPortable, "portable", AlwaysSupported},
};

CpuIsa Best() {
  for (const IsaRow& row : kRows) {
    if (row.supported()) return row.isa;
  }
  return CpuIsa::kPortable;
}

CpuIsa& Active() {
  static CpuIsa active = Best();
  return active;
}

}  // namespace

std::string DescribeCpu() {
  std::string lines;
  for (const IsaRow& row : kRows) {
    lines += fmt::format("{}{}: this CPU {}{}", lines.empty() ? "" : "\n", row.name,
                         row.supported() ? "has it" : "lacks it",
                         row.isa == ActiveIsa() ? " (in use)" : "");
  }
  return lines;
}

CpuIsa ActiveIsa() { return Active(); }

bool UseVnni() {
#if defined(__x86_64__)
  static const bool has = HasAvx512() && __builtin_cpu_supports("avx512vnni");
  return has && ActiveIsa() >= CpuIsa::kAvx512;
#else
  return false;
#endif
}

std::string_view NameOf(CpuIsa isa) {
  switch (isa) {
    case CpuIsa::kPortable:
      return "portable";
    case CpuIsa::kAvx2:
      return "avx2";
    case CpuIsa::kAvx512:
      return "avx512";
    case CpuIsa::kAmx:
      return "amx";
  }
  return "?";
}

std::vector<std::string_view> IsaNames() {
  std::vector<std::string_view> names;
  for (const IsaRow& row : kRows) names.push_back(row.name);
  return names;
}

absl::Status SelectIsa(std::string_view want) {
  if (want == "auto") {
    Active() = Best();
    return absl::OkStatus();
  }
  std::string names;
  for (const IsaRow& row : kRows) {
    names += fmt::format(", {}", row.name);
    if (want != row.name) continue;
    if (!row.supported()) {
      return Error(absl::StatusCode::kFailedPrecondition,
                   "cpu_isa={} is not offered by this CPU; use auto or {}", want, NameOf(Best()));
    }
    Active() = row.isa;
    return absl::OkStatus();
  }
  return InvalidArgument("cpu_isa={} must be one of auto{}", want, names);
}

}  // namespace quire::kernels
