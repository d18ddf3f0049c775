// kernels/linear.h -- y = x W^T with weights packed once, in any format that a checkpoint brings.
//
// Exactness (C1): the number of rows, threads and the instruction set change blocking only, never a
// bit. In float32 y[m][n] is one chain, k ascending, acc = fma(x[m][k], w[n][k], acc) from 0;
// w[n][k] is the weight's float32 value (for block types: what the format's dequantiser gives). In
// bf16 x and w are rounded to bfloat16 (cpu/linear_dot.h); in int8 x becomes 8-bit codes, a scale
// for each 32 values of a row, weights stay exact (cpu/linear_int8.h). These state the order.
//
// Weights keep their file format's precision and about its size in memory: block types stay packed
// and are expanded in registers or in a small scratch tile that lives in cache.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/dtype.h"
#include "base/status.h"
#include "base/tensor_view.h"
#include "base/thread_pool.h"
#include "kernels/compute_type.h"
#include "kernels/quantize.h"

namespace quire::kernels {

// Columns per panel: the unit of packing and of parallel work (bf16: half of it).
inline constexpr int32_t kPanel = 64;

// A weight matrix [n, k], repacked for the kernels of its compute type (block_format.h). Move-only.
class PackedWeight {
 public:
  PackedWeight() = default;
  PackedWeight(PackedWeight&&) noexcept = default;
  PackedWeight& operator=(PackedWeight&&) noexcept = default;

  // w: [n, k], any of F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K; k is a
  // multiple of the block size. The source is not kept. kBF16 rounds F32 and F16 to BF16,
  // kI8 all plain types to Q8_0, unless `quantization` asks for less.
  // ERRORS: kUnimplemented naming the type; kInvalidArgument for a shape that does not fit.
  static absl::StatusOr<PackedWeight> Pack(const TensorView& w, ThreadPool& pool,
                                           ComputeType compute = ComputeType::kF32,
                                           Quantization quantization = Quantization::kNone);

  int64_t n() const { return n_; }
  int64_t k() const { return k_; }
  DType dtype() const { return dtype_; }            // as packed
  ComputeType compute() const { return compute_; }  // never kAuto
  size_t bytes() const { return bytes_; }
  const std::byte* data() const { return data_.get(); }

  // Row `row` of [n, k] as float32: embedding look-ups share a tied output head's memory.
  void Row(int64_t row, float* out) const;

 private:
  struct Free {
    void operator()(std::byte* p) const;
  };
  int64_t n_ = 0;
  int64_t k_ = 0;
  DType dtype_ = DType::kF32;
  ComputeType compute_ = ComputeType::kF32;
  size_t bytes_ = 0;
  std::unique_ptr<std::byte, Free> data_;
};

// One product. y = x W^T (+ bias) (+ residual): added in this order after the chain.
struct LinearJob {
  const PackedWeight* w = nullptr;
  const float* x = nullptr;  // [m, k], row stride ldx floats
  int64_t ldx = 0;
  float* y = nullptr;  // [m, n], row stride ldy floats
  int64_t ldy = 0;
  const float* bias = nullptr;      // [n] or null
  const float* residual = nullptr;  // [m, n], row stride ldy, or null; may be y itself
};

// Scratch that RunLinear needs for m rows of each distinct input of depth k that is multiplied in
// bf16 or int8: the rounded rows, for int8 their scales and sums.
size_t LinearScratchBytes(int64_t m, int64_t k);

// Rows of x that are made just before they are read, in the same parallel loop: a norm, an
// activation. make(state, first, count) writes that many rows; called once for each, by any worker.
struct RowMaker {
  void (*make)(const void* state, int64_t first, int64_t count) = nullptr;
  const void* state = nullptr;
};
// fn(first, count); it outlives the result.
template <typename Fn>
RowMaker MakerOf(const Fn& fn) {
  return {[](const void* state, int64_t first, int64_t count) {
            (*static_cast<const Fn*>(state))(first, count);
          },
          &fn};
}

// All jobs have the same number of rows m; they run in one fork-join (q, k and v; gate and up).
// scratch: 64-byte aligned; may be empty if all weights are computed in float32.
// maker: of the jobs' rows, which are then the same for all jobs.
void RunLinear(std::span<const LinearJob> jobs, int64_t m, ThreadPool& pool,
               std::span<std::byte> scratch = {}, RowMaker maker = {});

// Dequantises `count` values of any type above from file format; the oracle is PyPI's `gguf`.
void Dequantize(DType type, const std::byte* src, int64_t count, float* dst);

}  // namespace quire::kernels
