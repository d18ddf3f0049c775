// kernels/cpu_isa.h -- which instruction sets this build has kernels for, and which one runs.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace quire::kernels {

// Ascending: each row has what those before it have. kAmx is AVX-512 with tile products of bf16 and
// int8; kernels without such products run their AVX-512 loops.
enum class CpuIsa : uint8_t { kPortable, kAvx2, kAvx512, kAmx };

// "avx512: this CPU has it", one line per row, best first: for `quire kernels` and error messages.
std::string DescribeCpu();

// The row in use. Chosen once, before the first kernel runs; the bits do not depend on it.
CpuIsa ActiveIsa();
std::string_view NameOf(CpuIsa isa);
// Of this build, best first; this CPU may lack some.
std::vector<std::string_view> IsaNames();

// Whether the row in use may run AVX512-VNNI instructions.
bool UseVnni();

// `want`: "auto" or a row's name. Not thread-safe: start-up and tests only.
// ERRORS: kInvalidArgument listing the names; kFailedPrecondition if this CPU lacks it.
absl::Status SelectIsa(std::string_view want);

}  // namespace quire::kernels
