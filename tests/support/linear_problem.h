// tests/support/linear_problem.h -- what the tests of RunLinear share: instruction sets of this
// CPU, random weights in the form that files have them.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "kernels/block_format.h"
#include "kernels/cpu_isa.h"
#include "kernels/linear.h"

namespace quire::kernels {

inline const DType kTypes[] = {DType::kF32,  DType::kF16,  DType::kBF16, DType::kQ4_0,
                               DType::kQ4_1, DType::kQ5_0, DType::kQ5_1, DType::kQ8_0,
                               DType::kQ4_K, DType::kQ5_K, DType::kQ6_K};

// The rows of this CPU. The others are printed, not skipped: a skip would be counted.
inline std::vector<std::string> Isas() {
  std::vector<std::string> here;
  for (const char* name : {"portable", "avx2", "avx512", "amx"}) {
    if (SelectIsa(name).ok()) {
      here.emplace_back(name);
    } else {
      std::printf("not run here: %s\n", name);
    }
  }
  EXPECT_TRUE(SelectIsa("auto").ok());
  return here;
}

// Where the file keeps fp16 scales in a block; their bytes must be finite numbers.
inline std::vector<size_t> ScaleOffsets(DType type) {
  switch (type) {
    case DType::kQ4_1:
    case DType::kQ5_1:
    case DType::kQ4_K:
    case DType::kQ5_K:
      return {0, 2};
    case DType::kQ6_K:
      return {208};
    default:
      return {0};
  }
}

// Random weights [n, k] in file form: random codes, scales of both signs, zero and subnormal ones
// among them.
inline std::vector<std::byte> RandomWeights(DType type, int64_t n, int64_t k, std::mt19937& rng) {
  std::normal_distribution<float> normal;
  const DTypeInfo info = InfoOf(type);
  std::vector<std::byte> out(BytesFor(type, static_cast<size_t>(n * k)));
  const auto put16 = [&](size_t at, uint16_t v) { std::memcpy(out.data() + at, &v, 2); };
  if (info.block_size > 1) {
    for (std::byte& b : out) b = static_cast<std::byte>(rng());
    for (size_t block = 0; block < out.size(); block += static_cast<size_t>(info.block_bytes)) {
      for (const size_t at : ScaleOffsets(type)) {
        const uint16_t special[] = {0x0000, 0x8000, 0x0001, 0x83ff};
        const uint16_t scale = FloatToF16(normal(rng) * 0.02f);
        put16(block + at, rng() % 16 == 0 ? special[rng() % 4] : scale);
      }
    }
    return out;
  }
  for (size_t i = 0; i < static_cast<size_t>(n * k); ++i) {
    const float v = normal(rng);
    if (type == DType::kF32) std::memcpy(out.data() + 4 * i, &v, 4);
    if (type == DType::kF16) put16(2 * i, FloatToF16(v));
    if (type == DType::kBF16) put16(2 * i, FloatToBF16(v));
  }
  return out;
}

// 16 lanes, then halves onto halves: the order of every reduction (kernels/ops.h).
inline float Sum32(const float* x) {
  float lane[16];
  for (int i = 0; i < 16; ++i) lane[i] = x[i] + x[16 + i];
  for (int half = 8; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) lane[i] += lane[i + half];
  }
  return lane[0];
}

// What one block of 32 weights of a row is made of.
struct Block {
  float code[32];
  float scale[2];
  float mean = 0.0f;
};

// Block b of row j of weights [n, k] in file form. Plain types: code is the value rounded to
// bfloat16, zero beyond k.
inline Block BlockOf(DType type, const std::vector<std::byte>& file, int64_t k, int64_t j,
                     int64_t b) {
  Block out;
  const DTypeInfo info = InfoOf(type);
  const BlockFormat f = FormatOf(type);
  const std::byte* row =
      file.data() + static_cast<size_t>(j) * BytesFor(type, static_cast<size_t>(k));
  if (!f.is_block()) {
    for (int64_t i = 0; i < 32; ++i) {
      float v = 0.0f;
      if (b * 32 + i < k) Dequantize(type, row + (b * 32 + i) * info.block_bytes, 1, &v);
      out.code[i] = BF16ToFloat(FloatToBF16(v));
    }
    return out;
  }
  const int64_t subs = info.block_size / 32;
  const SubBlock s =
      ReadSubBlock(type, row + b / subs * info.block_bytes, static_cast<int32_t>(b % subs));
  const int centre = f.has_min ? (f.bits == 5 ? 16 : 8) : f.offset;
  for (int i = 0; i < 32; ++i) {
    const int code = f.bits == 8 ? static_cast<int8_t>(s.codes[i]) : s.codes[i];
    out.code[i] = static_cast<float>(code - centre);
  }
  for (int i = 0; i < 2; ++i) out.scale[i] = F16ToFloat(s.d) * static_cast<float>(s.scale[i]);
  if (f.has_min) {
    const float min =
        f.num_scales > 0 ? -(F16ToFloat(s.m) * static_cast<float>(s.min)) : F16ToFloat(s.m);
    out.mean = std::fma(out.scale[0], static_cast<float>(centre), min);
  }
  return out;
}

}  // namespace quire::kernels
