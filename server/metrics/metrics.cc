// server/metrics/metrics.cc -- see metrics.h.
#include "server/metrics/metrics.h"

#include <prometheus/text_serializer.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/json.h"
#include "server/metrics/engine_metrics.h"

namespace quire {
namespace {

std::string SeriesOf(const std::string& name, const prometheus::ClientMetric& sample) {
  std::string series = name;
  for (const auto& label : sample.label) series += '\n' + label.name + '=' + label.value;
  return series;
}

double NotNegative(double value) { return std::isfinite(value) && value > 0 ? value : 0; }

bool IsFormat(std::string_view text, std::string_view upper) {
  return text.size() == upper.size() &&
         std::equal(text.begin(), text.end(), upper.begin(), [](char a, char b) {
           return (a >= 'a' && a <= 'z' ? static_cast<char>(a - 'a' + 'A') : a) == b;
         });
}

}  // namespace

Metrics::Metrics(Options options, const std::vector<std::vector<double>>& bounds)
    : options_(std::move(options)), requests_(bounds) {}

absl::StatusOr<std::unique_ptr<Metrics>> Metrics::Make(Options options) {
  ASSIGN_OR_RETURN(const std::vector<std::vector<double>> bounds,
                   ReadBuckets(options.histogram_buckets, options.max_model_len));
  return std::unique_ptr<Metrics>(new Metrics(std::move(options), bounds));
}

void Metrics::UseEngine(std::function<EngineSnapshot()> snapshot,
                        std::function<int32_t()> num_deferred) {
  snapshot_ = std::move(snapshot);
  num_deferred_ = std::move(num_deferred);
}

// A source that goes back (a clock, an overflow, a fault) must cost neither a scrape nor a rate().
void Metrics::MakeSane(std::vector<prometheus::MetricFamily>& families) const {
  const std::lock_guard lock(mutex_);
  for (prometheus::MetricFamily& family : families) {
    for (prometheus::ClientMetric& sample : family.metric) {
      if (family.type == prometheus::MetricType::Gauge) {
        sample.gauge.value = NotNegative(sample.gauge.value);
      } else if (family.type == prometheus::MetricType::Counter) {
        std::vector<double>& told = told_[SeriesOf(family.name, sample)];
        told.resize(1);
        told[0] = std::max(told[0], NotNegative(sample.counter.value));
        sample.counter.value = told[0];
      } else if (family.type == prometheus::MetricType::Histogram) {
        auto& histogram = sample.histogram;
        std::vector<double>& told = told_[SeriesOf(family.name, sample)];
        told.resize(histogram.bucket.size() + 1);
        uint64_t least = 0;  // cumulative counts ascend
        for (size_t i = 0; i < histogram.bucket.size(); ++i) {
          uint64_t& count = histogram.bucket[i].cumulative_count;
          count = std::max({count, least, static_cast<uint64_t>(told[i])});
          told[i] = static_cast<double>(count);
          least = count;
        }
        told.back() = std::max(told.back(), NotNegative(histogram.sample_sum));
        histogram.sample_sum = told.back();
        histogram.sample_count = least;
      }
    }
  }
}

std::string Metrics::Text() const {
  Families engine({{"model_name", options_.model_name}, {"engine", "0"}});
  if (snapshot_) {
    WriteEngine(snapshot_(), num_deferred_(), options_.prefix, options_.legacy_names, engine);
  }
  requests_.Write(options_.prefix, engine);
  Families others{MetricLabels()};
  calls_.Write(others);
  for (const auto& source : sources_) source(others);
  std::vector<prometheus::MetricFamily> all = std::move(engine.all());
  all.insert(all.end(), others.all().begin(), others.all().end());
  MakeSane(all);
  return prometheus::TextSerializer().Serialize(all);
}

std::string Metrics::Orca(std::string_view format) const {
  const bool as_text = IsFormat(format, "TEXT");
  if ((!as_text && !IsFormat(format, "JSON")) || !snapshot_) return {};
  const EngineSnapshot now = snapshot_();
  const double usage = CacheUsage(now);
  const int32_t waiting = now.scheduler.waiting_seqs + num_deferred_();
  if (as_text) {
    return fmt::format(
        "TEXT named_metrics.kv_cache_usage_perc={}, named_metrics.num_requests_waiting={}", usage,
        waiting);
  }
  JsonWriter w;
  w.BeginObject();
  w.Key("named_metrics");
  w.BeginObject();
  w.Key("kv_cache_usage_perc");
  w.Double(usage);
  w.Key("num_requests_waiting");
  w.Int(waiting);
  w.EndObject();
  w.EndObject();
  return "JSON " + w.text();
}

}  // namespace quire
