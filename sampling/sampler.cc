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
  double sum = 0;
  for (float x : row.logits) {
    if (x > kNever) sum += x == best ? 1.0f : std::exp(x - best);
  }
  const double log_sum = std::log(sum);
  const auto logprob = [&](float x) {
    if (!(x > kNever)) return kNever;
    return static_cast<float>((x == best ? 0.0 : double{x} - best) - log_sum);
  };
  sampled.logprob = logprob(row.logits[sampled.token]);
  SelectTop(row.logits, static_cast<size_t>(row.params->num_logprobs), scratch.best);
  sampled.top = scratch.best;
  std::sort(sampled.top.begin(), sampled.top.end(),
            [](const TokenLogprob& a, const TokenLogprob& b) {
              return a.logprob > b.logprob || (a.logprob == b.logprob && a.token < b.token);
            });
  for (TokenLogprob& entry : sampled.top) entry.logprob = logprob(entry.logprob);
}

// Inverse of the cumulative distribution over the candidates, in order of ids.
TokenId Draw(const SampleRow& row, const SamplerScratch& scratch) {
  const auto position = static_cast<uint32_t>(row.prompt.size() + row.output.size());
  const double uniform =
      PhiloxUniform(row.seed, static_cast<uint32_t>(row.branch), position, /*draw=*/0);
  double total = 0;
  for (float w : scratch.values) total += w;
  const double target = uniform * total;
  double sum = 0;
  for (size_t i = 0; i < scratch.ids.size(); ++i) {
    sum += scratch.values[i];
    if (sum > target) return scratch.ids[i];
  }
  CHECK(false, "uniform {} of total weight {} was not reached", uniform, total);
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
