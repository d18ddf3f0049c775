// kernels/profile/machine_peaks.h -- what this machine can do at best, measured: what a kernel's
// rate is a share of.
//
// Called by `quire bench ops`, `quire kernels` and benchmarks, on a thread with nothing else to do;
// each measurement has threads of its own and takes well below a second. Neighbours on the machine
// lower the figures: the best of several short runs is taken.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "kernels/cpu_isa.h"
#include "kernels/profile/op_profile.h"

namespace quire::kernels {

// Rate of one kind of multiply-add on registers: no memory takes part.
struct MathPeak {
  MathType type = MathType::kF32;
  std::string_view unit;           // "avx512 fma", "amx tdpbf16ps": what was measured
  CpuIsa isa = CpuIsa::kPortable;  // the first row of cpu_isa.h whose kernels may use it
  bool available = false;          // this CPU, and the system, let us use it
  double gops_per_thread = 0;      // 2 operations per multiply-add
};

// Every unit that this build knows, best last for each type; unavailable ones are there, too.
// `seconds`: for each.
std::vector<MathPeak> MeasureMath(int32_t num_threads, double seconds = 0.03);
// Of the available ones of a type, the fastest, all threads together; 0 if there is none.
double BestGops(const std::vector<MathPeak>& peaks, MathType type, int32_t num_threads);

// What a kernel of `isa` can be compared with: the fastest available unit of that type that it may
// use; if it has none, of float32. Null if peaks has neither.
const MathPeak* UnitInUse(const std::vector<MathPeak>& peaks, MathType type, CpuIsa isa);

// GB/s of reading `bytes` again and again by all threads together, each a share of its own, on huge
// pages if the system has them. What level of memory that is, is the size's choice.
double MeasureRead(size_t bytes, int32_t num_threads, double seconds = 0.1);

// Bytes of the data caches, as the system tells; 0: unknown.
struct CacheSizes {
  size_t l1 = 0;  // of a core
  size_t l2 = 0;  // of a core, mostly
  size_t l3 = 0;  // of all, in a virtual machine also of strangers
};
CacheSizes ReadCacheSizes();

// Peaks for one process: what `quire bench ops` compares with.
struct MachinePeaks {
  int32_t num_threads = 0;
  std::vector<MathPeak> math;
  size_t cache_bytes = 0;  // per thread, half of L2: activations
  double cache_gb_s = 0;
  size_t memory_bytes = 0;  // weights and keys: the working set that was asked for
  double memory_gb_s = 0;

  double gops(MathType type) const { return BestGops(math, type, num_threads); }
};
MachinePeaks MeasurePeaks(int32_t num_threads, size_t working_set_bytes);

// Least microseconds for a cost: max(bytes / bandwidth, operations / peak of their type). Weights
// and keys come from memory; activations from the cache, unless they exceed it.
struct Bound {
  double us = 0;
  double memory_us = 0;
  double math_us = 0;
};
Bound BoundOf(const OpCost& cost, double calls, const MachinePeaks& peaks);

}  // namespace quire::kernels
