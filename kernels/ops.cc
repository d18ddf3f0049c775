// Row-wise operations of a decoder layer: how rows are dealt to threads. The row functions are in
// kernels/cpu/ops_rows-inl.h.
#include "kernels/ops.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/status.h"
#include "kernels/cpu_isa.h"
#include "kernels/for_rows.h"

namespace quire::kernels {
namespace {

// 0.5 x (1 + erf(x / sqrt 2)), in double: erff differs between C libraries.
float GeluOne(float x) {
  const auto d = static_cast<double>(x);
  return static_cast<float>(0.5 * d * (1.0 + std::erf(d * 0.70710678118654752440)));
}

// fn(first, count) for n values that have nothing to do with each other: one long row is shared
// out, too.
template <typename Fn>
void ForValues(int64_t n, ThreadPool& pool, const Fn& fn) {
  constexpr int64_t kUnit = 1024;
  ForRows((n + kUnit - 1) / kUnit, kUnit, pool, [&](int64_t first, int64_t count) {
    const int64_t begin = first * kUnit;
    fn(begin, std::min(n, begin + count * kUnit) - begin);
  });
}

}  // namespace
}  // namespace quire::kernels

#define QUIRE_BODY "kernels/cpu/ops_rows-inl.h"
#include "kernels/cpu/foreach_isa-inl.h"

namespace quire::kernels {

void RmsNorm(const float* x, int64_t ldx, const float* weight, float offset, float eps,
             int64_t rows, int64_t dim, float* out, int64_t ldout, ThreadPool& pool) {
  const auto norm = QUIRE_FOR_ISA(RmsNormRows);
  ForRows(rows, dim, pool, [&](int64_t first, int64_t count) {
    norm(x + first * ldx, ldx, weight, offset, eps, count, dim, out + first * ldout, ldout);
  });
}

void RmsNorm(const float* x, int64_t ldx, const float* weight, float offset, float eps,
             int64_t rows, int64_t dim, float* out, int64_t ldout) {
  QUIRE_FOR_ISA(RmsNormRows)(x, ldx, weight, offset, eps, rows, dim, out, ldout);
}

void AddRmsNorm(const float* weight, float offset, float eps, int64_t rows, int64_t dim, float* y,
                float* x, ThreadPool& pool) {
  const auto norm = QUIRE_FOR_ISA(RmsNormRows);
  ForRows(rows, dim, pool, [&](int64_t first, int64_t count) {
    float* const part = y + first * dim;
    norm(part, dim, weight, offset, eps, count, dim, part, dim);
    float* const sum = x + first * dim;
    for (int64_t i = 0; i < count * dim; ++i) sum[i] += part[i];
  });
}

void ApplyRope(const RopeArgs& rope, std::span<const Heads> parts, int64_t rows, ThreadPool& pool) {
  const int32_t half = rope.rotary_dim / 2;
  const int64_t head_dim = rope.head_dim;
  const auto norm = QUIRE_FOR_ISA(RmsNormRows);
  const auto rotate_halves = QUIRE_FOR_ISA(RotateHalves);
  const auto rotate_row = [&](const Heads& part, int64_t r) {
    float* const x = part.x + r * part.num_heads * head_dim;
    if (part.norm != nullptr) {
      norm(x, head_dim, part.norm, rope.norm_offset, rope.norm_eps, part.num_heads, head_dim, x,
           head_dim);
    }
    const float* c = rope.cos + r * half;
    const float* s = rope.sin + r * half;
    if (!rope.interleaved) return rotate_halves(x, part.num_heads, head_dim, c, s, half);
    for (int32_t h = 0; h < part.num_heads; ++h) {
      float* const p = x + h * head_dim;
      for (int32_t i = 0; i < half; ++i) {
        const float a = p[2 * i];
        const float b = p[2 * i + 1];
        p[2 * i] = a * c[i] - b * s[i];
        p[2 * i + 1] = b * c[i] + a * s[i];
      }
    }
  };
  int64_t values = 0;
  for (const Heads& part : parts) values += part.num_heads * head_dim;
  ForRows(rows, values, pool, [&](int64_t first, int64_t count) {
    for (int64_t r = first; r < first + count; ++r) {
      for (const Heads& part : parts) rotate_row(part, r);
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
  ForValues(rows * dim, pool, [&](int64_t first, int64_t count) {
    row(act, gate + first, up + first, count, out + first);
  });
}

void GatedActivation(Activation act, const float* gate, const float* up, int64_t n, float* out) {
  QUIRE_FOR_ISA(GatedRow)(act, gate, up, n, out);
}

void SoftCap(float cap, int64_t rows, int64_t dim, float* x, ThreadPool& pool) {
  const auto row = QUIRE_FOR_ISA(SoftCapRow);
  ForValues(rows * dim, pool, [&](int64_t first, int64_t count) { row(cap, count, x + first); });
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
