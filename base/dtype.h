// base/dtype.h -- element types of tensors, GGUF's block types included, and 16-bit conversions.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace quire {

// Block types are stored as GGUF stores them: `block_size` values in `block_bytes` bytes.
enum class DType : uint8_t {
  kF32,
  kF16,
  kBF16,
  kI8,
  kI32,
  kI64,
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ8_0,
  kQ4_K,
  kQ5_K,
  kQ6_K,
};

struct DTypeInfo {
  std::string_view name;
  int32_t block_size;   // values per block; 1 for plain types
  int32_t block_bytes;  // bytes per block
};

constexpr DTypeInfo InfoOf(DType t) {
  switch (t) {
    case DType::kF32:
      return {"F32", 1, 4};
    case DType::kF16:
      return {"F16", 1, 2};
    case DType::kBF16:
      return {"BF16", 1, 2};
    case DType::kI8:
      return {"I8", 1, 1};
    case DType::kI32:
      return {"I32", 1, 4};
    case DType::kI64:
      return {"I64", 1, 8};
    case DType::kQ4_0:
      return {"Q4_0", 32, 18};
    case DType::kQ4_1:
      return {"Q4_1", 32, 20};
    case DType::kQ5_0:
      return {"Q5_0", 32, 22};
    case DType::kQ5_1:
      return {"Q5_1", 32, 24};
    case DType::kQ8_0:
      return {"Q8_0", 32, 34};
    case DType::kQ4_K:
      return {"Q4_K", 256, 144};
    case DType::kQ5_K:
      return {"Q5_K", 256, 176};
    case DType::kQ6_K:
      return {"Q6_K", 256, 210};
  }
  return {"?", 1, 0};
}

constexpr std::string_view NameOf(DType t) { return InfoOf(t).name; }

// Bytes of `count` consecutive values. REQUIRES: count is a multiple of the block size; no overflow
// (loaders check both before they call).
constexpr size_t BytesFor(DType t, size_t count) {
  const DTypeInfo i = InfoOf(t);
  return count / static_cast<size_t>(i.block_size) * static_cast<size_t>(i.block_bytes);
}

constexpr float BF16ToFloat(uint16_t x) { return std::bit_cast<float>(uint32_t{x} << 16); }

// Round to nearest even; NaN stays NaN.
constexpr uint16_t FloatToBF16(float f) {
  const auto u = std::bit_cast<uint32_t>(f);
  if ((u & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((u >> 16) | 0x40u);
  return static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

// IEEE 754 binary16, subnormals included.
constexpr float F16ToFloat(uint16_t h) {
  const uint32_t sign = uint32_t{h & 0x8000u} << 16;
  const uint32_t exponent = (h >> 10) & 0x1fu;
  const uint32_t mantissa = h & 0x3ffu;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  if (exponent != 0)
    return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
  // Subnormal: mantissa * 2^-24, exact in float32.
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
  return sign != 0 ? -magnitude : magnitude;
}

// Round to nearest even; overflow gives infinity, NaN stays NaN.
constexpr uint16_t FloatToF16(float f) {
  const auto u = std::bit_cast<uint32_t>(f);
  const auto sign = static_cast<uint16_t>((u >> 16) & 0x8000u);
  const uint32_t magnitude = u & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);
  if (magnitude < 0x38800000u) {  // below 2^-14: subnormal or zero
    if (magnitude < 0x33000000u) return sign;
    const uint32_t shift = 126u - (magnitude >> 23);
    const uint32_t mantissa = (magnitude & 0x7fffffu) | 0x800000u;
    const uint32_t half = 1u << (shift - 1);
    const uint32_t kept = mantissa >> shift;
    const uint32_t rest = mantissa & ((1u << shift) - 1);
    return static_cast<uint16_t>(
        sign | (kept + ((rest > half || (rest == half && (kept & 1u))) ? 1u : 0u)));
  }
  const uint32_t rebased = magnitude - 0x38000000u;
  return static_cast<uint16_t>(sign | ((rebased + 0xfffu + ((rebased >> 13) & 1u)) >> 13));
}

}  // namespace quire
