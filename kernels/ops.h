// kernels/ops.h -- the row-wise rest of a decoder layer. Each row is computed alone, by one fixed
// order of operations that does not depend on the instruction set: reductions run in 16 interleaved
// partial sums that are joined pairwise (C1).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/thread_pool.h"

namespace quire::kernels {

// out[r] = x[r] / sqrt(mean(x[r]^2) + eps) * (offset + weight). offset is 1 where the
// checkpoint stores weight - 1, else 0.
// x and out: [rows, dim], row strides in floats; out may be x.
void RmsNorm(const float* x, int64_t ldx, const float* weight, float offset, float eps,
             int64_t rows, int64_t dim, float* out, int64_t ldout, ThreadPool& pool);

// The same on the calling thread.
void RmsNorm(const float* x, int64_t ldx, const float* weight, float offset, float eps,
             int64_t rows, int64_t dim, float* out, int64_t ldout);

// x[r] += norm(y[r]) as RmsNorm has it; y is overwritten by its norm. [rows, dim] each, contiguous.
void AddRmsNorm(const float* weight, float offset, float eps, int64_t rows, int64_t dim, float* y,
                float* x, ThreadPool& pool);

// Rotary embedding in place; the first rotary_dim of each head are rotated. cos, sin:
// [rows, rotary_dim / 2], attention scaling already multiplied in. Half-split pairs
// (i, i + rotary_dim / 2); interleaved pairs (2i, 2i + 1).
struct RopeArgs {
  int32_t head_dim = 0;
  int32_t rotary_dim = 0;  // 0: no rotation
  bool interleaved = false;
  const float* cos = nullptr;
  const float* sin = nullptr;
  float norm_offset = 0.0f;  // of norms before the rotation, as RmsNorm's
  float norm_eps = 0.0f;
};
// Queries or keys.
struct Heads {
  float* x = nullptr;  // [rows, num_heads, head_dim]
  int32_t num_heads = 0;
  const float* norm = nullptr;  // [head_dim]: each head is normed first; null: it is not
};
// All parts of a row in one parallel loop over rows.
void ApplyRope(const RopeArgs& rope, std::span<const Heads> parts, int64_t rows, ThreadPool& pool);

// cos[i], sin[i] = scaling * cos, sin(position * inv_freq[i]), angles in float32.
void RopeAngles(int32_t position, std::span<const float> inv_freq, float scaling, float* cos,
                float* sin);

// x[r][i] = cap * tanh(x[r][i] / cap) in place. x: [rows, dim], contiguous.
void SoftCap(float cap, int64_t rows, int64_t dim, float* x, ThreadPool& pool);

enum class Activation : uint8_t { kSilu, kGeluTanh, kGelu, kRelu };

// out[r][i] = act(gate[r][i]) * up[r][i]. [rows, dim] each, contiguous; out may be gate.
void GatedActivation(Activation act, const float* gate, const float* up, int64_t rows, int64_t dim,
                     float* out, ThreadPool& pool);

// The same for n values on the calling thread.
void GatedActivation(Activation act, const float* gate, const float* up, int64_t n, float* out);

// A float32 exp with relative error below 2e-7 that is the same on every machine; exp(-inf) = 0,
// and below -87 it is 0 (no denormals).
float ExpF32(float x);
// The same, bit for bit, for n values with the ISA in use; out may be x.
void ExpRow(const float* x, int64_t n, float* out);

// dst[copies[i].dst page] = src page, whole pages of page_bytes; runs over the pool, in any order:
// no page is written twice, or both read and written.
struct PageCopyArgs {
  int32_t src;
  int32_t dst;
};
void CopyPages(std::byte* base, size_t page_bytes, std::span<const PageCopyArgs> copies,
               ThreadPool& pool);

}  // namespace quire::kernels
