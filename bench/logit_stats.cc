#include "bench/logit_stats.h"

#include <algorithm>
#include <cmath>

#include "base/status.h"

namespace quire {
namespace {

double LogSumExp(std::span<const float> logits) {
  const double most = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float x : logits) sum += std::exp(static_cast<double>(x) - most);
  return most + std::log(sum);
}

size_t Best(std::span<const float> logits) {
  return static_cast<size_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

}  // namespace

void ReferenceRow::Set(std::span<const float> logits) {
  logits_ = logits;
  log_sum_ = LogSumExp(logits);
  best_ = Best(logits);
  probabilities_.resize(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) {
    probabilities_[i] = std::exp(static_cast<double>(logits[i]) - log_sum_);
  }
}

void LogitComparison::Add(const ReferenceRow& reference, std::span<const float> logits,
                          TokenId next) {
  CHECK(logits.size() == reference.logits_.size() && next >= 0 &&
            static_cast<size_t>(next) < logits.size(),
        "{} logits beside {}, next token {}", logits.size(), reference.logits_.size(), next);
  const double log_sum = LogSumExp(logits);
  // sum p (log p - log q), where log p = reference - its log sum, log q = logits - log sum.
  double difference = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    difference += reference.probabilities_[i] *
                  (static_cast<double>(reference.logits_[i]) - static_cast<double>(logits[i]));
  }
  kl_.push_back(difference - reference.log_sum_ + log_sum);
  const auto at = static_cast<size_t>(next);
  const double loss = log_sum - static_cast<double>(logits[at]);
  const double increase = loss - (reference.log_sum_ - static_cast<double>(reference.logits_[at]));
  loss_ += loss;
  increase_ += increase;
  increase_squared_ += increase * increase;
  same_best_ += Best(logits) == reference.best_;
  ++tokens_;
}

ComparisonResult LogitComparison::Result() const {
  ComparisonResult r;
  if (tokens_ == 0) return r;
  const auto n = static_cast<double>(tokens_);
  r.tokens = tokens_;
  r.loss = loss_ / n;
  r.perplexity = std::exp(r.loss);
  r.loss_increase = increase_ / n;
  const double variance = std::max(0.0, increase_squared_ / n - r.loss_increase * r.loss_increase);
  r.increase_error = tokens_ > 1 ? std::sqrt(variance / (n - 1)) : 0;
  std::vector<double> kl = kl_;
  std::sort(kl.begin(), kl.end());
  for (const double v : kl) r.mean_kl += v / n;
  r.p99_kl = kl[(kl.size() * 99 + 99) / 100 - 1];
  r.max_kl = kl.back();
  r.same_best = static_cast<double>(same_best_) / n;
  return r;
}

}  // namespace quire
