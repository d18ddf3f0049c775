// tests/support/sampling_oracle.h -- the sampling parameters by their plain definitions: double
// precision, maps, full sorts, no shared code with sampling/. Slow on purpose. Shares of
// probability are rounded to float32 before they are compared with a parameter, as 12 of 40 equal
// tokens shall be 0.3.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <vector>

#include "sampling/params.h"

namespace quire {

struct OracleRow {
  std::vector<float> logits;
  SamplingParams params;
  StopConditions stop;
  std::vector<TokenId> prompt, output;
};

inline constexpr double kOracleNone = -std::numeric_limits<double>::infinity();

// Logits after biases, penalties and bans.
inline std::vector<double> OracleLogits(const OracleRow& row) {
  const SamplingParams& p = row.params;
  std::vector<double> x(row.logits.begin(), row.logits.end());
  for (const auto& entry : p.logit_bias) x[entry.first] += entry.second;
  std::map<TokenId, int> counts;
  for (TokenId t : row.output) ++counts[t];
  for (const auto& entry : counts) {
    x[entry.first] -= double{p.frequency_penalty} * entry.second + double{p.presence_penalty};
  }
  std::vector<TokenId> all = row.prompt;
  all.insert(all.end(), row.output.begin(), row.output.end());
  for (TokenId t : std::set<TokenId>(all.begin(), all.end())) {
    x[t] = x[t] < 0 ? x[t] * p.repetition_penalty : x[t] / p.repetition_penalty;
  }
  // Would `next` end a sequence of n tokens that has occurred before?
  const size_t n = static_cast<size_t>(p.no_repeat_ngram_size);
  for (TokenId next = 0; n > 0 && next < static_cast<TokenId>(x.size()); ++next) {
    std::vector<TokenId> text = all;
    text.push_back(next);
    if (text.size() < n) continue;
    for (size_t i = 0; i + n < text.size(); ++i) {
      if (std::equal(text.end() - n, text.end(), text.begin() + i)) x[next] = kOracleNone;
    }
  }
  for (const std::vector<TokenId>& word : p.bad_words) {
    std::vector<TokenId> text = all;
    text.push_back(word.back());
    if (text.size() >= word.size() && std::equal(word.rbegin(), word.rend(), text.rbegin())) {
      x[word.back()] = kOracleNone;
    }
  }
  if (static_cast<int32_t>(row.output.size()) < p.min_tokens) {
    for (TokenId t : row.stop.eos_token_ids) x[t] = kOracleNone;
    for (TokenId t : row.stop.stop_token_ids) x[t] = kOracleNone;
  }
  if (!p.allowed_token_ids.empty()) {
    const std::set<TokenId> allowed(p.allowed_token_ids.begin(), p.allowed_token_ids.end());
    for (TokenId t = 0; t < static_cast<TokenId>(x.size()); ++t) {
      if (allowed.count(t) == 0) x[t] = kOracleNone;
    }
  }
  return x;
}

inline std::vector<double> OracleSoftmax(const std::vector<double>& x, double temperature) {
  const double best = *std::max_element(x.begin(), x.end());
  std::vector<double> p;
  double sum = 0;
  for (double v : x) {
    p.push_back(std::exp((v - best) / temperature));
    sum += p.back();
  }
  for (double& v : p) v /= sum;
  return p;
}

// Ids with a finite logit, sorted by `key` ascending, ties by id.
inline std::vector<TokenId> OracleSorted(const std::vector<double>& x,
                                         const std::vector<double>& key) {
  std::vector<TokenId> ids;
  for (TokenId t = 0; t < static_cast<TokenId>(x.size()); ++t) {
    if (x[t] > kOracleNone) ids.push_back(t);
  }
  std::stable_sort(ids.begin(), ids.end(), [&](TokenId a, TokenId b) { return key[a] < key[b]; });
  return ids;
}

// Probability of each token; exactly 0 for those that are dropped.
inline std::vector<double> OracleProbs(const OracleRow& row) {
  const SamplingParams& p = row.params;
  std::vector<double> x = OracleLogits(row);
  const auto negated = [](std::vector<double> v) {
    for (double& e : v) e = -e;
    return v;
  };
  const std::vector<TokenId> ranked = OracleSorted(x, negated(x));
  if (p.top_n_sigma > 0) {
    double mean = 0, variance = 0;
    for (TokenId t : ranked) mean += x[t] / static_cast<double>(ranked.size());
    for (TokenId t : ranked) {
      variance += (x[t] - mean) * (x[t] - mean) / static_cast<double>(ranked.size());
    }
    const double cut = x[ranked[0]] - p.top_n_sigma * std::sqrt(variance);
    for (double& v : x) v = v < cut ? kOracleNone : v;
  }
  if (p.top_k > 0 && static_cast<size_t>(p.top_k) < ranked.size()) {
    const double cut = x[ranked[p.top_k - 1]];  // ties with it stay
    for (double& v : x) v = v < cut ? kOracleNone : v;
  }
  std::vector<double> probs = OracleSoftmax(x, p.temperature);
  if (p.top_p < 1) {
    double before = 0;
    bool first = true;
    for (TokenId t : OracleSorted(x, negated(probs))) {
      if (!first && static_cast<float>(before) >= p.top_p) x[t] = kOracleNone;
      before += probs[t];
      first = false;
    }
    probs = OracleSoftmax(x, p.temperature);
  }
  if (p.min_p > 0) {
    const double best = *std::max_element(probs.begin(), probs.end());
    for (size_t t = 0; t < x.size(); ++t) x[t] = probs[t] < p.min_p * best ? kOracleNone : x[t];
    probs = OracleSoftmax(x, p.temperature);
  }
  if (p.typical_p < 1) {
    double entropy = 0;
    std::vector<double> distance;
    for (double q : probs) entropy -= q > 0 ? q * std::log(q) : 0;
    for (double q : probs) distance.push_back(std::fabs(-std::log(q) - entropy));
    double mass = 0;
    bool done = false;
    double last = 0;
    for (TokenId t : OracleSorted(x, distance)) {
      if (done && distance[t] > last + 1e-9) x[t] = kOracleNone;  // ties with the last one stay
      if (!done) last = distance[t];
      mass += probs[t];
      done = done || static_cast<float>(mass) >= p.typical_p;
    }
    probs = OracleSoftmax(x, p.temperature);
  }
  return probs;
}

}  // namespace quire
