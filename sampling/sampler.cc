#include "sampling/sampler.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

#include "sampling/philox.h"
#include "sampling/processors.h"
#include "sampling/selection.h"

namespace quire {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

// Log-softmax of the raw logits, summed in double in order of ids. NaN counts as -infinity; several
// infinite logits share the probability.
void FillLogprobs(const SampleRow& row, SamplerScratch& scratch, Sampled& sampled) {
  const int32_t argmax = ArgMax(row.logits);
  const float best = argmax < 0 ? kNever : row.logits[argmax];
  scratch.values.resize(row.logits.size());
  if (std::isinf(best)) {
    for (size_t i = 0; i < row.logits.size(); ++i) scratch.values[i] = row.logits[i] == best;
  } else {
    ExpWeights(row.logits, best, /*temperature=*/1.0f, scratch.values);
  }
  const double sum = SumOf(scratch.values);
  const double log_sum = std::log(sum);
  const auto logprob = [&](float x) {
    if (!(x > kNever)) return kNever;
    return static_cast<float>((x == best ? 0.0 : double{x} - best) - log_sum);
  };
  sampled.logprob = logprob(row.logits[sampled.token]);
  SelectTop(row.logits, static_cast<size_t>(row.params->num_logprobs), sampled.top);
  for (TokenLogprob& entry : sampled.top) entry.logprob = logprob(entry.logprob);
}

// Inverse of the cumulative distribution over the candidates, in order of ids. Sums of blocks are
// kept, so that the weights are gone through once and not twice.
TokenId Draw(const SampleRow& row, SamplerScratch& scratch) {
  constexpr size_t kBlock = 256;
  const std::span<const float> weights = scratch.values;
  scratch.sums.clear();
  double total = 0;
  for (size_t first = 0; first < weights.size(); first += kBlock) {
    scratch.sums.push_back(total);
    total += SumOf(weights.subspan(first, std::min(kBlock, weights.size() - first)));
  }
  const auto position = static_cast<uint32_t>(row.prompt.size() + row.output.size());
  // The middle of the uniform's step: at 0 itself the first token would win whatever its weight.
  const double uniform =
      PhiloxUniform(row.seed, static_cast<uint32_t>(row.branch), position, /*draw=*/0) + 0x1p-25;
  const double target = total * uniform;
  // The last block that starts at or below the target.
  const auto above = std::upper_bound(scratch.sums.begin(), scratch.sums.end(), target);
  const auto block = static_cast<size_t>(above - scratch.sums.begin()) - 1;
  double sum = scratch.sums[block];
  size_t chosen = block * kBlock;
  for (size_t i = chosen; i < std::min(chosen + kBlock, weights.size()); ++i) {
    if (weights[i] <= 0) continue;
    // If the block's sum was rounded up beyond the last weight's end, that weight is meant.
    chosen = i;
    sum += weights[i];
    if (sum > target) break;
  }
  return scratch.ids[chosen];
}

TokenId Choose(const SampleRow& row, SamplerScratch& scratch) {
  const std::span<const float> logits = EditLogits(row, scratch);
  const int32_t best = ArgMax(logits);
  if (best < 0) return LowestAllowed(row, scratch);
  if (row.params->greedy()) return best;
  FilterTokens(logits, *row.params, scratch);
  return Draw(row, scratch);
}

}  // namespace

Sampled Sample(const SampleRow& row, SamplerScratch& scratch) {
  DCHECK(!row.logits.empty() && row.params != nullptr);
  Sampled sampled;
  sampled.token = Choose(row, scratch);
  if (row.params->num_logprobs >= 0) FillLogprobs(row, scratch, sampled);
  return sampled;
}

float PhiloxUniform(uint64_t seed, uint32_t branch, uint32_t position, uint32_t draw) {
  const uint32_t word =
      Philox4x32({position, branch, draw, 0},
                 {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)})[0];
  return static_cast<float>(word >> 8) * 0x1p-24f;
}

}  // namespace quire
