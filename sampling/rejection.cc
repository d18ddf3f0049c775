#include "sampling/rejection.h"

#include <algorithm>
#include <cstddef>

#include "base/status.h"
#include "sampling/processors.h"
#include "sampling/selection.h"

namespace quire {
namespace {

constexpr uint32_t kAcceptDraw = 1;
constexpr uint32_t kResidualDraw = 2;

// The middle of the uniform's step, as in the sampler.
double Uniform(uint64_t seed, int32_t branch, uint32_t position, uint32_t draw) {
  return PhiloxUniform(seed, static_cast<uint32_t>(branch), position, draw) + 0x1p-25;
}

// Weights of a distribution, looked up in ascending order of ids.
class Cursor {
 public:
  explicit Cursor(const TokenWeights& d) : d_(d), sum_(kernels::Sum(d.weights)) {}
  double Probability(TokenId token) {
    while (i_ < d_.ids.size() && d_.ids[i_] < token) ++i_;
    return i_ < d_.ids.size() && d_.ids[i_] == token ? d_.weights[i_] / sum_ : 0;
  }

 private:
  const TokenWeights& d_;
  const double sum_;
  size_t i_ = 0;
};

double ProbabilityOf(const TokenWeights& d, TokenId token) { return Cursor(d).Probability(token); }

}  // namespace

TokenWeights DistributionOf(const SampleRow& row, SamplerScratch& scratch) {
  const std::span<const float> logits = EditLogits(row, scratch);
  const int32_t best = ArgMax(logits);
  if (best < 0 || row.params->greedy()) {
    scratch.ids.assign(1, best < 0 ? LowestAllowed(row, scratch) : best);
    scratch.values.assign(1, 1.0f);
  } else {
    FilterTokens(logits, *row.params, scratch);
  }
  return {scratch.ids, scratch.values};
}

DraftVerdict VerifyDraft(const TokenWeights& target, const TokenWeights& proposal, TokenId guess,
                         uint64_t seed, int32_t branch, uint32_t position) {
  CHECK(!target.ids.empty() && target.ids.size() == target.weights.size() &&
            proposal.ids.size() == proposal.weights.size(),
        "{} and {} tokens, {} and {} weights", target.ids.size(), proposal.ids.size(),
        target.weights.size(), proposal.weights.size());
  const double q = ProbabilityOf(proposal, guess);
  CHECK(q > 0, "token {} can't have been drawn from its proposal", guess);
  const double p = ProbabilityOf(target, guess);
  if (Uniform(seed, branch, position, kAcceptDraw) * q < p) return {true, guess};

  const auto visit_residual = [&](auto&& visit) {
    Cursor t(target);
    Cursor o(proposal);
    for (const TokenId token : target.ids) {
      if (visit(token, std::max(0.0, t.Probability(token) - o.Probability(token)))) return;
    }
  };
  double total = 0;
  visit_residual([&](TokenId, double weight) {
    total += weight;
    return false;
  });
  // Equal distributions accept everything, but for rounding.
  if (total <= 0) return {true, guess};
  const double aim = total * Uniform(seed, branch, position, kResidualDraw);
  double sum = 0;
  DraftVerdict verdict;
  visit_residual([&](TokenId token, double weight) {
    if (weight <= 0) return false;
    verdict.token = token;
    sum += weight;
    return sum > aim;
  });
  return verdict;
}

DraftVerdict VerifyPointDraft(const TokenWeights& target, TokenId guess, uint64_t seed,
                              int32_t branch, uint32_t position) {
  const float certain = 1;
  return VerifyDraft(target, {{&guess, 1}, {&certain, 1}}, guess, seed, branch, position);
}

}  // namespace quire
