// server/metrics/families.cc -- see families.h.
#include "server/metrics/families.h"

#include <algorithm>
#include <iterator>
#include <limits>

namespace quire {

prometheus::ClientMetric& Families::Sample(const std::string& name, const std::string& help,
                                           prometheus::MetricType type,
                                           const MetricLabels& labels) {
  auto family = std::find_if(all_.begin(), all_.end(),
                             [&](const prometheus::MetricFamily& f) { return f.name == name; });
  if (family == all_.end()) {
    all_.push_back(prometheus::MetricFamily{name, help, type, {}});
    family = std::prev(all_.end());
  }
  prometheus::ClientMetric& sample = family->metric.emplace_back();
  for (const MetricLabels* list : {&base_, &labels}) {
    for (const auto& [key, value] : *list) sample.label.push_back({key, value});
  }
  return sample;
}

void Families::Counter(const std::string& name, const std::string& help, double value,
                       const MetricLabels& labels) {
  Sample(name, help, prometheus::MetricType::Counter, labels).counter.value = value;
}

void Families::Gauge(const std::string& name, const std::string& help, double value,
                     const MetricLabels& labels) {
  Sample(name, help, prometheus::MetricType::Gauge, labels).gauge.value = value;
}

void Families::Histogram(const std::string& name, const std::string& help,
                         const std::vector<double>& bounds, const std::vector<double>& counts,
                         double sum, const MetricLabels& labels) {
  prometheus::ClientMetric& sample = Sample(name, help, prometheus::MetricType::Histogram, labels);
  double total = 0;
  for (size_t i = 0; i <= bounds.size(); ++i) {
    total += counts[i];
    sample.histogram.bucket.push_back(
        {static_cast<uint64_t>(total),
         i < bounds.size() ? bounds[i] : std::numeric_limits<double>::infinity()});
  }
  sample.histogram.sample_count = static_cast<uint64_t>(total);
  sample.histogram.sample_sum = sum;
}

void Families::Histogram(const std::string& name, const std::string& help,
                         const prometheus::ClientMetric& collected, const MetricLabels& labels) {
  Sample(name, help, prometheus::MetricType::Histogram, labels).histogram = collected.histogram;
}

}  // namespace quire
