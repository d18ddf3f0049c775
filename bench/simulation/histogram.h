// bench/simulation/histogram.h -- percentiles of any number of times in little memory. Pure; any
// thread.
//
// Buckets of equal ratio: 64 in each power of two, so a percentile is off by 0.8% at most; mean and
// maximum are exact. Grows with the range of values, not with their number.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "bench/workloads.h"

namespace quire {

class Histogram {
 public:
  // us: microseconds, not negative.
  void Add(int64_t us) {
    const size_t bucket = BucketOf(us);
    if (bucket >= counts_.size()) counts_.resize(bucket + 1);
    ++counts_[bucket];
    ++count_;
    sum_ += static_cast<double>(us);
    max_ = std::max(max_, us);
  }
  int64_t count() const { return count_; }
  double mean() const { return count_ > 0 ? sum_ / static_cast<double>(count_) : 0; }

  // In milliseconds, nearest rank.
  Percentiles Ms() const {
    if (count_ == 0) return {};
    return {.p50 = Rank(50),
            .p90 = Rank(90),
            .p99 = Rank(99),
            .mean = mean() / 1e3,
            .max = static_cast<double>(max_) / 1e3};
  }

 private:
  static constexpr int kBits = 6;
  static size_t BucketOf(int64_t us) {
    const auto value = static_cast<uint64_t>(std::max<int64_t>(us, 0));
    int shift = 0;
    while ((value >> shift) >= (uint64_t{2} << kBits)) ++shift;
    return (static_cast<size_t>(shift) << kBits) + static_cast<size_t>(value >> shift);
  }
  // The middle of a bucket.
  static double ValueOf(size_t bucket) {
    if (bucket < (size_t{2} << kBits)) return static_cast<double>(bucket);
    const size_t shift = (bucket >> kBits) - 1;
    const size_t low = (bucket - (shift << kBits)) << shift;
    return static_cast<double>(low) + static_cast<double>((size_t{1} << shift) - 1) / 2;
  }
  double Rank(int64_t percent) const {
    const int64_t rank = std::max<int64_t>(1, (percent * count_ + 99) / 100);
    int64_t seen = 0;
    for (size_t b = 0; b < counts_.size(); ++b) {
      seen += counts_[b];
      if (seen >= rank) return std::min(ValueOf(b), static_cast<double>(max_)) / 1e3;
    }
    return static_cast<double>(max_) / 1e3;
  }

  std::vector<int64_t> counts_;
  int64_t count_ = 0;
  double sum_ = 0;
  int64_t max_ = 0;
};

}  // namespace quire
