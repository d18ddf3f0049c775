// server/metrics/metrics.h -- the text of /metrics, and who fills it.
//
//   edge thread     RequestMetrics   counters and histograms of requests
//   gRPC, HTTP      CallMetrics      calls by method and status
//   when scraped    EngineSnapshot, access and edge counters, process
//
// What is written keeps these promises whatever its sources say: a counter or a bucket is never
// below what an earlier page said, a gauge is never negative, nothing is NaN.
// Text() may be called on any thread, by several scrapers at once.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/status.h"
#include "scheduler/engine.h"
#include "server/metrics/call_metrics.h"
#include "server/metrics/families.h"
#include "server/metrics/request_metrics.h"

namespace quire {

class Metrics {
 public:
  struct Options {
    std::string model_name;
    std::string prefix = "vllm:";  // of the names that others have, too
    bool legacy_names = false;
    std::string histogram_buckets;  // see ReadBuckets
    int32_t max_model_len = 0;
  };
  // ERRORS: those of ReadBuckets.
  static absl::StatusOr<std::unique_ptr<Metrics>> Make(Options options);

  // What the engine and others know when they are asked. Any thread, for as long as this lives.
  void UseEngine(std::function<EngineSnapshot()> snapshot, std::function<int32_t()> num_deferred);
  void AddSource(std::function<void(Families&)> source) { sources_.push_back(std::move(source)); }

  RequestMetrics& requests() { return requests_; }
  CallMetrics& calls() { return calls_; }

  // text/plain; version=0.0.4; charset=utf-8
  std::string Text() const;
  // The value of a response header `endpoint-load-metrics`, as the request header
  // `endpoint-load-metrics-format` asks for it: TEXT or JSON; empty for anything else.
  std::string Orca(std::string_view format) const;

 private:
  Metrics(Options options, const std::vector<std::vector<double>>& bounds);
  void MakeSane(std::vector<prometheus::MetricFamily>& families) const;

  const Options options_;
  RequestMetrics requests_;
  CallMetrics calls_;
  std::function<EngineSnapshot()> snapshot_;
  std::function<int32_t()> num_deferred_;
  std::vector<std::function<void(Families&)>> sources_;

  mutable std::mutex mutex_;
  mutable std::map<std::string, std::vector<double>> told_;  // guarded by mutex_; by series
};

}  // namespace quire
