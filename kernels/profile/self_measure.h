// kernels/profile/self_measure.h -- quick rates of each kernel on this machine, for `quire
// kernels`. Tens of milliseconds a row: enough to see which is the one to take, not for a report
// (bench/*_bench.cc).
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/status.h"
#include "base/thread_pool.h"
#include "kernels/attention.h"
#include "kernels/compute_type.h"
#include "kernels/cpu_isa.h"
#include "kernels/profile/machine_peaks.h"

namespace quire::kernels {

// The best of several calls.
struct AttentionRates {
  double decode_gb_s = 0;      // keys and values read once
  double decode_share = 0;     // of reading as many bytes again and again
  double prefill_gflop_s = 0;  // softmax not counted
  double prefill_share = 0;    // of the peak of float32
};
// 8 sequences of 1024 keys; 512 queries of one sequence. REQUIRES: the backend supports kv_dtype
// with head_dim 64 and pages of 16.
AttentionRates MeasureAttention(const AttentionBackend& backend, DType kv_dtype,
                                const MachinePeaks& peaks, ThreadPool& pool);

struct LinearRates {
  double decode_gb_s = 0;   // one row
  double decode_share = 0;  // of reading at peaks.memory_gb_s
  double prefill_gflop_s = 0;
  double prefill_share = 0;  // of the peak of prefill_unit
  std::string_view prefill_unit;
  int32_t prefill_rows = 0;
};
// 1536 x 1536 weights in the ISA in use; several copies, more than L2 holds.
LinearRates MeasureLinear(DType format, ComputeType compute, const MachinePeaks& peaks,
                          ThreadPool& pool);

// What weights of that format are once packed for `compute`: several formats may become one.
DType PackedType(DType format, ComputeType compute, ThreadPool& pool);

// What a kernel of `compute` is compared with.
MathType MathOf(ComputeType compute);

}  // namespace quire::kernels
