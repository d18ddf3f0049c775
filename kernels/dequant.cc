// Block types as files store them, one value at a time: the clear form that the packed kernels are
// tested against. The oracle is PyPI's `gguf` (gguf/quants.py), whose bits these are.
#include "kernels/dequant.h"

#include <bit>
#include <cstring>

#include "base/status.h"

namespace quire::kernels {
namespace {

uint8_t U8(const std::byte* p) { return std::to_integer<uint8_t>(*p); }

uint16_t U16(const std::byte* p) {
  uint16_t v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}

uint32_t U32(const std::byte* p) {
  uint32_t v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}

// Codes 0..15 are the low nibbles of 16 bytes, codes 16..31 the high ones.
void ReadNibbles(const std::byte* qs, uint8_t* codes) {
  for (int32_t i = 0; i < 16; ++i) {
    codes[i] = U8(qs + i) & 15u;
    codes[i + 16] = static_cast<uint8_t>(U8(qs + i) >> 4);
  }
}

void AddFifthBit(uint32_t bits, uint8_t* codes) {
  for (int32_t i = 0; i < kSubBlock; ++i) {
    codes[i] = static_cast<uint8_t>(codes[i] | ((bits >> i & 1u) << 4));
  }
}

// Eight 6-bit scales and eight 6-bit mins in 12 bytes: the first four of each in the low six bits
// of bytes 0..3 and 4..7, the others' low nibbles in bytes 8..11 and their top bits in the spare
// bits of bytes 0..7.
void ReadScaleAndMin(const std::byte* packed, int32_t sub, SubBlock& s) {
  if (sub < 4) {
    s.scale[0] = static_cast<int8_t>(U8(packed + sub) & 63u);
    s.min = U8(packed + 4 + sub) & 63u;
  } else {
    const uint32_t both = U8(packed + 4 + sub);
    s.scale[0] = static_cast<int8_t>((both & 15u) | (U8(packed + sub - 4) >> 6) << 4);
    s.min = static_cast<uint8_t>((both >> 4) | (U8(packed + sub) >> 6) << 4);
  }
  s.scale[1] = s.scale[0];
}

// Q4_K, Q5_K: sub-blocks 2 c and 2 c + 1 are the low and high nibbles of the same 32 bytes.
void ReadKNibbles(const std::byte* qs, int32_t sub, uint8_t* codes) {
  const int32_t shift = 4 * (sub % 2);
  for (int32_t i = 0; i < kSubBlock; ++i) {
    codes[i] = (U8(qs + sub / 2 * kSubBlock + i) >> shift) & 15u;
  }
}

// Q6_K: a half (128 values) is 64 bytes of nibbles and 32 bytes of bit pairs; sub-block t of a half
// takes nibble t / 2 of bytes 32 (t % 2) + i and bit pair t of byte i.
void ReadQ6(const std::byte* ql, const std::byte* qh, int32_t sub, uint8_t* codes) {
  const int32_t half = sub / 4;
  const int32_t t = sub % 4;
  for (int32_t i = 0; i < kSubBlock; ++i) {
    const uint32_t low = U8(ql + 64 * half + 32 * (t % 2) + i) >> (4 * (t / 2)) & 15u;
    const uint32_t high = U8(qh + 32 * half + i) >> (2 * t) & 3u;
    codes[i] = static_cast<uint8_t>(low | high << 4);
  }
}

}  // namespace

SubBlock ReadSubBlock(DType type, const std::byte* block, int32_t sub) {
  SubBlock s;
  switch (type) {
    case DType::kQ4_0:
      s.d = U16(block);
      ReadNibbles(block + 2, s.codes);
      return s;
    case DType::kQ4_1:
      s.d = U16(block);
      s.m = U16(block + 2);
      ReadNibbles(block + 4, s.codes);
      return s;
    case DType::kQ5_0:
      s.d = U16(block);
      ReadNibbles(block + 6, s.codes);
      AddFifthBit(U32(block + 2), s.codes);
      return s;
    case DType::kQ5_1:
      s.d = U16(block);
      s.m = U16(block + 2);
      ReadNibbles(block + 8, s.codes);
      AddFifthBit(U32(block + 4), s.codes);
      return s;
    case DType::kQ8_0:
      s.d = U16(block);
      std::memcpy(s.codes, block + 2, kSubBlock);
      return s;
    case DType::kQ4_K:
      s.d = U16(block);
      s.m = U16(block + 2);
      ReadScaleAndMin(block + 4, sub, s);
      ReadKNibbles(block + 16, sub, s.codes);
      return s;
    case DType::kQ5_K:
      s.d = U16(block);
      s.m = U16(block + 2);
      ReadScaleAndMin(block + 4, sub, s);
      ReadKNibbles(block + 48, sub, s.codes);
      for (int32_t i = 0; i < kSubBlock; ++i) {
        const uint32_t bit = U8(block + 16 + i) >> sub & 1u;
        s.codes[i] = static_cast<uint8_t>(s.codes[i] | bit << 4);
      }
      return s;
    case DType::kQ6_K:
      s.d = U16(block + 208);
      s.scale[0] = std::bit_cast<int8_t>(U8(block + 192 + 2 * sub));
      s.scale[1] = std::bit_cast<int8_t>(U8(block + 192 + 2 * sub + 1));
      ReadQ6(block, block + 128, sub, s.codes);
      return s;
    case DType::kF32:
    case DType::kF16:
    case DType::kBF16:
    case DType::kI8:
    case DType::kI32:
    case DType::kI64:
      break;
  }
  CHECK(false, "{} is not a block type", NameOf(type));
  return s;
}

float ValueOf(DType type, const SubBlock& s, int32_t i) {
  const BlockFormat format = FormatOf(type);
  const int32_t code = format.bits == 8 ? std::bit_cast<int8_t>(s.codes[i]) : s.codes[i];
  const auto sub_block = i / 16;
  const float scale = F16ToFloat(s.d) * static_cast<float>(s.scale[sub_block]);
  const float scaled = scale * static_cast<float>(code - format.offset);
  if (!format.has_min) return scaled;
  const float m = F16ToFloat(s.m);
  return format.num_scales > 0 ? scaled - m * static_cast<float>(s.min) : scaled + m;
}

// Loops without a branch, which compilers turn into vectors.
void ValuesOf(DType type, const SubBlock& s, float* out) {
  const BlockFormat format = FormatOf(type);
  const float d = F16ToFloat(s.d);
  const float m = format.has_min ? F16ToFloat(s.m) : 0.0f;
  const float min = format.num_scales > 0 ? -(m * static_cast<float>(s.min)) : m;
  int32_t codes[kSubBlock];
  if (format.bits == 8) {
    for (int32_t i = 0; i < kSubBlock; ++i)
      codes[i] = (s.codes[i] ^ 128) - 128;  // two's complement
  } else {
    for (int32_t i = 0; i < kSubBlock; ++i) codes[i] = s.codes[i] - format.offset;
  }
  for (int32_t half = 0; half < 2; ++half) {
    const float scale = d * static_cast<float>(s.scale[half]);
    float* const to = out + 16 * half;
    for (int32_t i = 0; i < 16; ++i) to[i] = scale * static_cast<float>(codes[16 * half + i]);
    if (!format.has_min) continue;
    for (int32_t i = 0; i < 16; ++i) to[i] += min;
  }
}

void Dequantize(DType type, const std::byte* src, int64_t count, float* dst) {
  const BlockFormat format = FormatOf(type);
  if (format.is_block()) {
    const DTypeInfo info = InfoOf(type);
    CHECK(count % info.block_size == 0, "{} values of {}", count, info.name);
    for (int64_t block = 0; block < count / info.block_size; ++block, src += info.block_bytes) {
      for (int32_t sub = 0; sub < format.sub_blocks; ++sub) {
        ValuesOf(type, ReadSubBlock(type, src, sub), dst);
        dst += kSubBlock;
      }
    }
    return;
  }
  switch (type) {
    case DType::kF32:
      std::memcpy(dst, src, static_cast<size_t>(count) * sizeof(float));
      return;
    case DType::kF16:
      for (int64_t i = 0; i < count; ++i) dst[i] = F16ToFloat(U16(src + 2 * i));
      return;
    case DType::kBF16:
      for (int64_t i = 0; i < count; ++i) dst[i] = BF16ToFloat(U16(src + 2 * i));
      return;
    default:
      CHECK(false, "{} is not a weight type", NameOf(type));
  }
}

}  // namespace quire::kernels
