// bench/logit_stats.h -- how far a model's predictions are from those of a reference.
//
// Called by accuracy_bench.cc; pure; thread: any. Depends on base/ only. Everything is summed in
// float64, in nats.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/types.h"

namespace quire {

// The reference's logits after one token, and what is needed of them again and again.
class ReferenceRow {
 public:
  // logits: finite, at least one; must outlive the row's use.
  void Set(std::span<const float> logits);

 private:
  friend class LogitComparison;
  std::span<const float> logits_;
  std::vector<double> probabilities_;
  double log_sum_ = 0;  // of exp(logits)
  size_t best_ = 0;     // the lowest id of the largest logit
};

struct ComparisonResult {
  int64_t tokens = 0;
  double loss = 0;            // mean of -log p(next token)
  double perplexity = 0;      // exp(loss)
  double loss_increase = 0;   // loss - the reference's
  double increase_error = 0;  // its standard error, token by token
  double mean_kl = 0;         // of KL(reference || other)
  double p99_kl = 0;          // nearest rank
  double max_kl = 0;
  double same_best = 0;  // share of tokens after which both would take the same one
};

class LogitComparison {
 public:
  // REQUIRES: as many logits as the reference has; 0 <= next < that many. Logits that are not
  // finite count as what they are: the sums show it.
  void Add(const ReferenceRow& reference, std::span<const float> logits, TokenId next);
  ComparisonResult Result() const;

 private:
  int64_t tokens_ = 0;
  int64_t same_best_ = 0;
  double loss_ = 0;
  double increase_ = 0;
  double increase_squared_ = 0;
  std::vector<double> kl_;
};

}  // namespace quire
