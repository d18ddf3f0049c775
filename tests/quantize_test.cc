// tests/quantize_test.cc -- weights quantised at load: what lies on a grid comes back exactly, four
// bits are never worse than the group's range in steps, packed weights are those of such a file.
#include "kernels/quantize.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/linear.h"

namespace quire::kernels {
namespace {

std::vector<float> ThereAndBack(const std::vector<float>& w, DType to) {
  const auto n = static_cast<int64_t>(w.size());
  const std::vector<std::byte> file =
      Quantized(DType::kF32, reinterpret_cast<const std::byte*>(w.data()), n, to);
  EXPECT_EQ(file.size(), BytesFor(to, w.size()));
  std::vector<float> out(w.size());
  Dequantize(to, file.data(), n, out.data());
  return out;
}

double SquaredError(const float* a, const float* b) {
  double sum = 0;
  for (int i = 0; i < 32; ++i) {
    const double e = static_cast<double>(a[i]) - static_cast<double>(b[i]);
    sum += e * e;
  }
  return sum;
}

// The group's range in `steps` steps, in double and with exact scales.
double ErrorOfRange(const float* x, double steps) {
  const auto [low, high] = std::minmax_element(x, x + 32);
  const double min = static_cast<double>(*low), step = (static_cast<double>(*high) - min) / steps;
  double sum = 0;
  for (int i = 0; i < 32; ++i) {
    const double v = static_cast<double>(x[i]);
    const double e = v - (min + step * std::round((v - min) / step));
    sum += e * e;
  }
  return sum;
}

TEST(Quantize, GridsComeBackExactly) {
  // Scales and mins that fp16 has; every code is there.
  std::vector<float> four, eight;
  for (const float scale : {0.125f, 0.0078125f, 3.0f}) {
    for (int i = 0; i < 32; ++i) {
      four.push_back(scale * static_cast<float>(i * 7 % 16) - 1.5f);
      eight.push_back(scale * static_cast<float>(i * 17 % 255 - 127));
    }
    eight[eight.size() - 32] = -127.0f * scale;
  }
  EXPECT_EQ(ThereAndBack(four, DType::kQ4_1), four);
  EXPECT_EQ(ThereAndBack(eight, DType::kQ8_0), eight);
}

TEST(Quantize, ConstantGroups) {
  for (const float v : {0.0f, 1.5f, -0.25f}) {
    const std::vector<float> w(64, v);
    EXPECT_EQ(ThereAndBack(w, DType::kQ4_1), w);
  }
}

// fp16 scales cost a little: 2^-11 of scale and min each.
TEST(Quantize, FourBitsAreNeverWorseThanTheRange) {
  std::mt19937 rng(5);
  std::normal_distribution<float> normal(0.0f, 0.05f);
  std::uniform_int_distribution<int> shape(0, 2);
  double all = 0, all_of_range = 0;
  for (int group = 0; group < 2000; ++group) {
    std::vector<float> w(32);
    const int kind = shape(rng);
    for (float& x : w) x = kind == 0 ? normal(rng) : kind == 1 ? std::abs(normal(rng)) : 0.01f;
    if (kind == 2) w[static_cast<size_t>(group % 32)] = normal(rng) * 20.0f;
    const double error = SquaredError(ThereAndBack(w, DType::kQ4_1).data(), w.data());
    const double of_range = ErrorOfRange(w.data(), 15);
    const auto [low, high] = std::minmax_element(w.begin(), w.end());
    const double most = static_cast<double>(std::max(std::abs(*low), std::abs(*high)));
    const double fp16 = 3 * most * 0x1p-11;
    EXPECT_LE(std::sqrt(error), std::sqrt(of_range) + std::sqrt(32.0) * fp16) << "group " << group;
    all += error;
    all_of_range += of_range;
  }
  EXPECT_LT(all, 0.9 * all_of_range);
}

TEST(Quantize, EightBitsAreWithinHalfAStep) {
  std::mt19937 rng(6);
  std::normal_distribution<float> normal;
  std::vector<float> w(32 * 200);
  for (float& x : w) x = normal(rng);
  const std::vector<float> out = ThereAndBack(w, DType::kQ8_0);
  for (size_t g = 0; g < w.size(); g += 32) {
    float max = 0;
    for (size_t i = g; i < g + 32; ++i) max = std::max(max, std::abs(w[i]));
    for (size_t i = g; i < g + 32; ++i) {
      EXPECT_NEAR(out[i], w[i], max / 127.0f * 0.5f + max * 0x1p-10f);
    }
  }
}

TEST(Quantize, WhatFp16CantScaleIsNan) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), 1e30f}) {
    std::vector<float> w(64, 1.0f);
    w[3] = bad;
    for (const DType to : {DType::kQ4_1, DType::kQ8_0}) {
      const std::vector<float> out = ThereAndBack(w, to);
      for (size_t i = 0; i < 32; ++i) EXPECT_TRUE(std::isnan(out[i])) << i;
      for (size_t i = 32; i < 64; ++i) EXPECT_NEAR(out[i], 1.0f, 1e-3f);
    }
  }
}

TEST(Quantize, PackedWeightsAreThoseOfSuchAFile) {
  ThreadPool pool(2);
  std::mt19937 rng(7);
  std::normal_distribution<float> normal;
  std::vector<float> w(70 * 96);
  for (float& x : w) x = normal(rng);
  const TensorView view{w.data(), DType::kF32, 2, {70, 96}};
  for (const auto& [quantization, type] :
       {std::pair{Quantization::kInt4, DType::kQ4_1}, {Quantization::kInt8, DType::kQ8_0}}) {
    const std::vector<float> want = ThereAndBack(w, type);
    for (const ComputeType compute : {ComputeType::kF32, ComputeType::kBF16, ComputeType::kI8}) {
      auto packed = PackedWeight::Pack(view, pool, compute, quantization);
      ASSERT_TRUE(packed.ok()) << packed.status();
      EXPECT_EQ(packed->dtype(), type);
      EXPECT_EQ(packed->compute(), compute);
      std::vector<float> row(96);
      for (int64_t r = 0; r < 70; ++r) {
        packed->Row(r, row.data());
        ASSERT_EQ(std::memcmp(row.data(), want.data() + r * 96, 96 * sizeof(float)), 0) << r;
      }
    }
  }
}

TEST(Quantize, TypesThatChange) {
  EXPECT_EQ(QuantizedType(Quantization::kNone, DType::kBF16, 64), DType::kBF16);
  EXPECT_EQ(QuantizedType(Quantization::kInt4, DType::kBF16, 64), DType::kQ4_1);
  EXPECT_EQ(QuantizedType(Quantization::kInt8, DType::kF16, 64), DType::kQ8_0);
  EXPECT_EQ(QuantizedType(Quantization::kInt4, DType::kF32, 40), DType::kF32);
  EXPECT_EQ(QuantizedType(Quantization::kInt4, DType::kQ6_K, 256), DType::kQ6_K);
  for (const char* name : {"none", "int8", "int4"}) {
    auto q = FindQuantization(name);
    ASSERT_TRUE(q.ok());
    EXPECT_EQ(NameOf(*q), name);
  }
  const absl::Status status = FindQuantization("awq").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(Message(status).find("none, int8, int4"), std::string::npos) << Message(status);
}

}  // namespace
}  // namespace quire::kernels
