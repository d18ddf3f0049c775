// server/metrics/families.h -- metrics while a page is written. One thread; no state between pages.
#pragma once

#include <prometheus/metric_family.h>

#include <string>
#include <utility>
#include <vector>

namespace quire {

using MetricLabels = std::vector<std::pair<std::string, std::string>>;

class Families {
 public:
  // base: labels of every sample.
  explicit Families(MetricLabels base) : base_(std::move(base)) {}

  // Samples of one name need not follow each other.
  void Counter(const std::string& name, const std::string& help, double value,
               const MetricLabels& labels = {});
  void Gauge(const std::string& name, const std::string& help, double value,
             const MetricLabels& labels = {});
  // counts: [bounds + 1] of values up to each bound (inclusive) and above the last.
  void Histogram(const std::string& name, const std::string& help,
                 const std::vector<double>& bounds, const std::vector<double>& counts, double sum,
                 const MetricLabels& labels = {});
  // One that the library collected.
  void Histogram(const std::string& name, const std::string& help,
                 const prometheus::ClientMetric& collected, const MetricLabels& labels = {});

  std::vector<prometheus::MetricFamily>& all() { return all_; }

 private:
  prometheus::ClientMetric& Sample(const std::string& name, const std::string& help,
                                   prometheus::MetricType type, const MetricLabels& labels);

  const MetricLabels base_;
  std::vector<prometheus::MetricFamily> all_;
};

}  // namespace quire
