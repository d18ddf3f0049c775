// Row-wise operations of a decoder layer: how rows are dealt to threads. The row functions are in
// kernels/cpu/ops_rows-inl.h.
#include "kernels/ops.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/status.h"
#include "kernels/cpu_isa.h"

namespace quire::kernels {
namespace {

// Below this many values a fork-join costs more than the work: about 5 us of one core.
constexpr int64_t kSerialValues = 16384;
constexpr int64_t kTaskValues = 8192;

// 0.5 x (1 + erf(x / sqrt 2)), in double: erff differs between C libraries.
float GeluOne(float x) {
  const auto d = static_cast<double>(x);
  return static_cast<float>(0.5 * d * (1.0 + std::erf(d * 0.70710678118654752440)));
}

// fn(row) for all rows. Which thread does a row changes nothing.
template <typename Fn>
void ForRows(int64_t rows, int64_t values_per_row, ThreadPool& pool, const Fn& fn) {
  if (rows * values_per_row <= kSerialValues) {
    for (int64_t r = 0; r < rows; ++r) fn(r);
    return;
  }
  const int64_t step = std::max<int64_t>(1, kTaskValues / std::max<int64_t>(1, values_per_row));
  pool.ParallelFor((rows + step - 1) / step, [&](int64_t task, int32_t) {
    const int64_t end = std::min(rows, (task + 1) * step);
    for (int64_t r = task * step; r < end; ++r) fn(r);
  });
}

}  // namespace
}  // namespace quire::kernels

#define QUIRE_BODY "kernels/cpu/ops_rows-inl.h"
#include "kernels/cpu/foreach_isa-inl.h"

namespace quire::kernels {

void RmsNorm(const float* x, int64_t ldx, const float* weight, float offset, float eps,
             int64_t rows, int64_t dim, float* out, int64_t ldout, ThreadPool& pool) {
  const auto row = QUIRE_FOR_ISA(RmsNormRow);
  ForRows(rows, dim, pool,
          [&](int64_t r) { row(x + r * ldx, weight, offset, eps, dim, out + r * ldout); });
}

void ApplyRope(float* x, int64_t rows, int32_t num_heads, int32_t head_dim, int32_t rotary_dim,
               bool interleaved, const float* cos, const float* sin, ThreadPool& pool) {
  const int32_t half = rotary_dim / 2;
  const auto rotate = QUIRE_FOR_ISA(RotateHalves);
  ForRows(rows, int64_t{num_heads} * head_dim, pool, [&](int64_t r) {
    const float* c = cos + r * half;
    const float* s = sin + r * half;
    for (int32_t h = 0; h < num_heads; ++h) {
      float* p = x + (r * num_heads + h) * head_dim;
      if (!interleaved) {
        rotate(p, p + half, c, s, half);
        continue;
      }
      for (int32_t i = 0; i < half; ++i) {
        const float a = p[2 * i];
        const float b = p[2 * i + 1];
        p[2 * i] = a * c[i] - b * s[i];
        p[2 * i + 1] = b * c[i] + a * s[i];
      }
    }
  });
}

void RopeAngles(int32_t position, std::span<const float> inv_freq, float scaling, float* cos,
                float* sin) {
  for (size_t i = 0; i < inv_freq.size(); ++i) {
    const float angle = static_cast<float>(position) * inv_freq[i];
    cos[i] = static_cast<float>(std::cos(static_cast<double>(angle))) * scaling;
    sin[i] = static_cast<float>(std::sin(static_cast<double>(angle))) * scaling;
  }
}

void GatedActivation(Activation act, const float* gate, const float* up, int64_t rows, int64_t dim,
                     float* out, ThreadPool& pool) {
  const auto row = QUIRE_FOR_ISA(GatedRow);
  ForRows(rows, dim, pool,
          [&](int64_t r) { row(act, gate + r * dim, up + r * dim, dim, out + r * dim); });
}

void AddRows(const float* y, int64_t rows, int64_t dim, float* x, ThreadPool& pool) {
  ForRows(rows, dim, pool, [&](int64_t r) {
    for (int64_t i = r * dim; i < (r + 1) * dim; ++i) x[i] += y[i];
  });
}

void SoftCap(float cap, int64_t rows, int64_t dim, float* x, ThreadPool& pool) {
  const auto row = QUIRE_FOR_ISA(SoftCapRow);
  ForRows(rows, dim, pool, [&](int64_t r) { row(cap, dim, x + r * dim); });
}

// The same steps as Exp in kernels/cpu/vec_math-inl.h, one lane.
float ExpF32(float x) {
  if (x < -87.0f) return 0.0f;
  if (!(x < 88.72283f)) return x != x ? x : HUGE_VALF;
  const float t = std::fma(x, 1.44269504f, 12582912.0f);
  const float n = t - 12582912.0f;
  float r = std::fma(n, -0.693145752f, x);
  r = std::fma(n, -1.42860677e-6f, r);
  float q = 0.00139506022f;
  q = std::fma(q, r, 0.00836895313f);
  q = std::fma(q, r, 0.041666206f);
  q = std::fma(q, r, 0.166665182f);
  q = std::fma(q, r, 0.5f);
  const float p = std::fma(q, r * r, r) + 1.0f;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(p) + (std::bit_cast<uint32_t>(t) << 23));
}

void ExpRow(const float* x, int64_t n, float* out) { QUIRE_FOR_ISA(ExpSpan)(x, n, out); }

void CopyPages(std::byte* base, size_t page_bytes, std::span<const PageCopyArgs> copies,
               ThreadPool& pool) {
  pool.ParallelFor(static_cast<int64_t>(copies.size()), [&](int64_t i, int32_t) {
    const PageCopyArgs& c = copies[static_cast<size_t>(i)];
    DCHECK(c.src >= 0 && c.dst >= 0 && c.src != c.dst, "page copy {} -> {}", c.src, c.dst);
    // 64-bit products: a pool exceeds 2^31 bytes.
    std::memcpy(base + static_cast<size_t>(c.dst) * page_bytes,
                base + static_cast<size_t>(c.src) * page_bytes, page_bytes);
  });
}

}  // namespace quire::kernels
