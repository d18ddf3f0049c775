// tests/row_maker_test.cc -- rows that are made inside a product give what rows made before it
// give, bit for bit, and each is made once.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "kernels/linear.h"

namespace quire::kernels {
namespace {

constexpr int64_t kDepth = 96, kColumns = 100;

PackedWeight Weight(ComputeType compute, ThreadPool& pool) {
  std::mt19937 random(7);
  std::vector<float> w(kColumns * kDepth);
  for (float& x : w) x = static_cast<float>(random() % 2001) / 1000.0f - 1.0f;
  const TensorView view{w.data(), DType::kF32, 2, {kColumns, kDepth}};
  absl::StatusOr<PackedWeight> packed = PackedWeight::Pack(view, pool, compute);
  CHECK(packed.ok(), "{}", Message(packed.status()));
  return *std::move(packed);
}

float ValueOf(int64_t row, int64_t i) {
  return static_cast<float>((row * 31 + i * 17) % 201) / 100.0f - 1.0f;
}

TEST(RowMaker, EachRowOnceAndTheSameBits) {
  for (const ComputeType compute : {ComputeType::kF32, ComputeType::kBF16, ComputeType::kI8}) {
    for (const int64_t m : {1, 2, 16, 17, 59, 300}) {
      for (const int32_t threads : {1, 2, 4}) {
        ThreadPool pool(threads);
        // Two products of one input, as gate and up are; the second in float32.
        const PackedWeight a = Weight(compute, pool), b = Weight(ComputeType::kF32, pool);
        const auto size = static_cast<size_t>(m);
        std::vector<float> x(size * kDepth, NAN), ready(x.size());
        for (int64_t r = 0; r < m; ++r) {
          for (int64_t i = 0; i < kDepth; ++i) ready[r * kDepth + i] = ValueOf(r, i);
        }
        const size_t bytes = LinearScratchBytes(m, kDepth);
        const std::unique_ptr<void, void (*)(void*)> scratch(
            std::aligned_alloc(64, (bytes + 63) / 64 * 64), std::free);
        std::vector<float> want(size * kColumns), want_b(want.size());
        std::vector<float> got(want.size()), got_b(want.size());
        const auto run = [&](const float* in, float* y, float* y_b, RowMaker maker) {
          const LinearJob jobs[] = {
              {.w = &a, .x = in, .ldx = kDepth, .y = y, .ldy = kColumns},
              {.w = &b, .x = in, .ldx = kDepth, .y = y_b, .ldy = kColumns},
          };
          RunLinear(jobs, m, pool, {static_cast<std::byte*>(scratch.get()), bytes}, maker);
        };
        run(ready.data(), want.data(), want_b.data(), {});
        std::vector<std::atomic<int>> made(size);
        const auto make = [&](int64_t first, int64_t count) {
          for (int64_t r = first; r < first + count; ++r) {
            made[static_cast<size_t>(r)].fetch_add(1);
            for (int64_t i = 0; i < kDepth; ++i) x[r * kDepth + i] = ValueOf(r, i);
          }
        };
        run(x.data(), got.data(), got_b.data(), MakerOf(make));
        for (const auto& count : made) ASSERT_EQ(count.load(), 1) << "m=" << m;
        ASSERT_EQ(std::memcmp(got.data(), want.data(), got.size() * sizeof(float)), 0)
            << NameOf(compute) << " m=" << m << " threads=" << threads;
        ASSERT_EQ(std::memcmp(got_b.data(), want_b.data(), got.size() * sizeof(float)), 0);
      }
    }
  }
}

}  // namespace
}  // namespace quire::kernels
