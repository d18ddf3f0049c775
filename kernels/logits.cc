// Row passes of the sampler: which instruction set's; the loops are in kernels/cpu/logits-inl.h.
#include "kernels/logits.h"

#include "kernels/cpu_isa.h"

#define QUIRE_BODY "kernels/cpu/logits-inl.h"
#include "kernels/cpu/foreach_isa-inl.h"

namespace quire::kernels {

int32_t ArgMax(std::span<const float> x) {
  return static_cast<int32_t>(QUIRE_FOR_ISA(ArgMaxRow)(x.data(), x.size()));
}

size_t FirstAbove(std::span<const float> x, size_t first, float floor) {
  return QUIRE_FOR_ISA(FirstAboveRow)(x.data(), x.size(), first, floor);
}

size_t CountAbove(std::span<const float> x, float floor) {
  return QUIRE_FOR_ISA(CountAboveRow)(x.data(), x.size(), floor);
}

size_t CountEqual(std::span<const float> x, float value) {
  return QUIRE_FOR_ISA(CountEqualRow)(x.data(), x.size(), value);
}

size_t KeepAbove(std::span<const float> x, float floor, float* values, int32_t* ids) {
  return QUIRE_FOR_ISA(KeepAboveRow)(x.data(), x.size(), floor, values, ids);
}

size_t KeepAtLeast(float cut, size_t n, float* values, int32_t* ids) {
  return QUIRE_FOR_ISA(KeepAtLeastRow)(cut, n, values, ids);
}

void ExpWeights(std::span<const float> x, float best, float temperature, std::span<float> weights) {
  QUIRE_FOR_ISA(ExpWeightsRow)(x.data(), x.size(), best, temperature, weights.data());
}

double Sum(std::span<const float> x) { return QUIRE_FOR_ISA(SumRow)(x.data(), x.size()); }

double SumExp(std::span<const float> x, float best) {
  return QUIRE_FOR_ISA(SumExpRow)(x.data(), x.size(), best);
}

}  // namespace quire::kernels
