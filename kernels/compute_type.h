// kernels/compute_type.h -- in what the products of linear layers are computed.
//
//   float32  one chain of fma over all k; weights as float32. The floor, and what goldens use.
//   bf16     x and weights rounded to bfloat16 (nearest even); products of 32 values summed in
//            float32 in the order of AMX's tile instruction (cpu/linear_dot.h).
//   int8     x as 8-bit codes with a scale for each 32 values of a row, weights exact; a block's
//            products summed as integers. Weights stored in float32, float16 or bfloat16 become
//            Q8_0 when they are packed (float32 stays where a row is no multiple of 32 values).
//   auto     float32 where weights are stored in float32 or float16, or the CPU has no AVX2; else
//            with AMX bf16, without it int8 for block types. docs/kernels.md has the loss.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/dtype.h"
#include "base/status.h"

namespace quire::kernels {

enum class ComputeType : uint8_t { kAuto, kF32, kBF16, kI8 };

std::string_view NameOf(ComputeType type);

// What `want` is for weights that a file stores as `stored`, on this CPU; never kAuto.
ComputeType ResolveCompute(ComputeType want, DType stored);

// ERRORS: kInvalidArgument listing the names.
absl::StatusOr<ComputeType> FindCompute(std::string_view name);

}  // namespace quire::kernels
