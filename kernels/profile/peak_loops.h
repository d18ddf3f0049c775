// kernels/profile/peak_loops.h -- the loops that machine_peaks.cc times, by instruction set.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "kernels/cpu_isa.h"
#include "kernels/profile/op_profile.h"

namespace quire::kernels {

struct PeakLoop {
  MathType type;
  std::string_view unit;
  CpuIsa isa;  // the first row whose kernels may use it
  bool (*supported)();
  void (*run)(int64_t rounds);
  double operations_per_round;
};
// For each type, the narrowest first.
std::span<const PeakLoop> PeakLoops();

// Reads `bytes`, a multiple of 4096, once; p is 64-byte aligned.
using ReadFn = void (*)(const std::byte* p, size_t bytes);
ReadFn ActiveReadLoop();

// Linux gives a process the tiles' registers only if it asks; true if it may use them from now on.
// Any thread, any number of times; threads started later may, too.
bool RequestAmx();

}  // namespace quire::kernels
