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

// Log-softmax, summed in double in order of ids. NaN counts as -infinity; several infinite logits
// share the probability.
class LogSoftmax {
 public:
  explicit LogSoftmax(std::span<const float> logits) {
    const int32_t argmax = ArgMax(logits);
    best_ = argmax < 0 ? kNever : logits[argmax];
    log_sum_ = std::log(std::isinf(best_) ? static_cast<double>(kernels::CountEqual(logits, best_))
                                          : kernels::SumExp(logits, best_));
  }
  float operator()(float logit) const {
    if (!(logit > kNever)) return kNever;
    return static_cast<float>((logit == best_ ? 0.0 : double{logit} - best_) - log_sum_);
  }

 private:
  float best_;
  double log_sum_;
};

int32_t RankOf(std::span<const float> logits, TokenId token) {
  const float own = std::isnan(logits[token]) ? kNever : logits[token];
  const auto better = static_cast<int32_t>(kernels::CountAbove(logits, own));
  const std::span<const float> before = logits.first(static_cast<size_t>(token));
  const size_t equal = own > kNever ? kernels::CountEqual(before, own)
                                    : before.size() - kernels::CountAbove(before, kNever);
  return 1 + better + static_cast<int32_t>(equal);
}

void Score(std::span<const float> logits, TokenId token, size_t k, std::span<const TokenId> asked,
           Sampled& sampled) {
  const LogSoftmax logprob(logits);
  sampled.token = token;
  sampled.logprob = logprob(logits[token]);
  sampled.rank = RankOf(logits, token);
  SelectTop(logits, k, sampled.top);
  for (TokenLogprob& entry : sampled.top) entry.logprob = logprob(entry.logprob);
  sampled.asked.clear();
  for (const TokenId id : asked) {
    const bool known = id >= 0 && static_cast<size_t>(id) < logits.size();
    sampled.asked.push_back({id, known ? logprob(logits[id]) : kNever});
  }
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
    total += kernels::Sum(weights.subspan(first, std::min(kBlock, weights.size() - first)));
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
  return SampleKnown(row, Choose(row, scratch));
}

Sampled SampleKnown(const SampleRow& row, TokenId token) {
  Sampled sampled;
  sampled.token = token;
  const SamplingParams& params = *row.params;
  if (params.num_logprobs >= 0 || !params.logprob_token_ids.empty()) {
    Score(row.logits, sampled.token, static_cast<size_t>(std::max(0, params.num_logprobs)),
          params.logprob_token_ids, sampled);
  }
  return sampled;
}

void Candidates(const SampleRow& row, size_t k, SamplerScratch& scratch, Sampled& sampled) {
  DCHECK(!row.logits.empty() && row.params != nullptr);
  const LogSoftmax logprob(row.logits);
  scratch.logprobs.resize(row.logits.size());
  for (size_t i = 0; i < row.logits.size(); ++i) scratch.logprobs[i] = logprob(row.logits[i]);
  SampleRow edited = row;
  edited.logits = scratch.logprobs;
  std::vector<TokenLogprob>& top = sampled.top;
  SelectTop(EditLogits(edited, scratch), k, top);
  while (!top.empty() && top.back().logprob == kNever) top.pop_back();
}

void ScoreToken(std::span<const float> logits, TokenId token, size_t k, Sampled& sampled) {
  CHECK(token >= 0 && static_cast<size_t>(token) < logits.size(), "token={} of {}", token,
        logits.size());
  Score(logits, token, k, {}, sampled);
}

float PhiloxUniform(uint64_t seed, uint32_t branch, uint32_t position, uint32_t draw) {
  const uint32_t word =
      Philox4x32({position, branch, draw, 0},
                 {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)})[0];
  return static_cast<float>(word >> 8) * 0x1p-24f;
}

}  // namespace quire
