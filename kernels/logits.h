// kernels/logits.h -- passes over one row of logits for the sampler: maxima, exponentials, sums.
//
// Thread: any; each call is one row on the caller's thread. The bits are the same in every
// instruction set: sums run in 16 interleaved partial sums in double that are joined pairwise.
// NaN is never larger than anything.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace quire::kernels {

// The lowest index of the largest value; -1 if there is none above -infinity.
int32_t ArgMax(std::span<const float> x);

// The first index from `first` on whose value is above `floor`; x.size() if there is none.
size_t FirstAbove(std::span<const float> x, size_t first, float floor);

// How many are above `floor`; how many equal `value`.
size_t CountAbove(std::span<const float> x, float floor);
size_t CountEqual(std::span<const float> x, float value);

// The values above `floor` and their indices, in order; returns how many there are.
// REQUIRES: room for x.size() in both.
size_t KeepAbove(std::span<const float> x, float floor, float* values, int32_t* ids);
// Of n values and their ids those that are at least `cut`, in place and in order; returns how many.
size_t KeepAtLeast(float cut, size_t n, float* values, int32_t* ids);

// weights[i] = e^((x[i] - best) / temperature) with a relative error below 2e-7; 0 below e^-87 and
// for NaN. In place is fine. REQUIRES: best is finite and the largest; temperature > 0.
void ExpWeights(std::span<const float> x, float best, float temperature, std::span<float> weights);

double Sum(std::span<const float> x);
// Sum of e^(x[i] - best), each rounded to float32 as by ExpWeights, without storing them.
double SumExp(std::span<const float> x, float best);

}  // namespace quire::kernels
