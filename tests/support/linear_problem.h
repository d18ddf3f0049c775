// tests/support/linear_problem.h -- what the tests of RunLinear share: instruction sets of this CPU, random
// weights in the form that files have them.
#pragma once

#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "kernels/cpu_isa.h"

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

}  // namespace quire::kernels
