// kernels/quantize.h -- float weights to the block types that kernels read: load time; any thread.
//
//   Q8_0   32 values, scale = max |w| / 127, as ggml's quantiser.
//   Q4_1   32 values, w = scale * code + min. Starts from the group's range in 15 steps, then takes
//          turns: codes for a line, and the line that fits them best (least squares). What has the
//          least squared error, scale and min rounded to fp16 as they are stored, is kept; so it is
//          never worse than the range.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/status.h"

namespace quire::kernels {

// `count` values of a plain type in the form that a file of `to` (BF16, Q8_0, Q4_1) would have.
// REQUIRES: count is a multiple of to's block size.
std::vector<std::byte> Quantized(DType from, const std::byte* source, int64_t count, DType to);

// What weights that a file stores in float32, float16 or bfloat16 become when they are loaded.
enum class Quantization : uint8_t { kNone, kInt8, kInt4 };
std::string_view NameOf(Quantization q);
// ERRORS: kInvalidArgument listing the names.
absl::StatusOr<Quantization> FindQuantization(std::string_view name);

// The type that weights [n, k] stored as `stored` have then. Rows that are no multiple of 32 values
// stay as they are.
DType QuantizedType(Quantization q, DType stored, int64_t k);

}  // namespace quire::kernels
