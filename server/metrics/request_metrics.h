// server/metrics/request_metrics.h -- counters and histograms of requests, as the edge sees them.
//
// Observed on the edge thread (refusals: any thread), read by whoever scrapes; the library's
// atomics and uncontended locks lie between them. Nothing here is touched by the engine.
#pragma once

#include <prometheus/counter.h>
#include <prometheus/histogram.h>

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "server/edge/observer.h"
#include "server/metrics/buckets.h"
#include "server/metrics/families.h"

namespace quire {

// What a request ended with; as dashboards name it.
enum class EndReason : uint8_t { kStop, kLength, kAbort, kDeadline, kError };
inline constexpr size_t kNumEndReasons = 5;

// Why one was not let in.
enum class RefusalReason : uint8_t { kQueue, kRateLimit, kInvalid, kDenied, kDraining, kOther };
inline constexpr size_t kNumRefusalReasons = 6;

class RequestMetrics final : public EdgeObserver {
 public:
  // bounds: of ReadBuckets.
  explicit RequestMetrics(const std::vector<std::vector<double>>& bounds);

  void OnStarted(const RequestStats& stats) override;
  void OnToken(const TokenTime& time) override;
  void OnEnd(const RequestEnd& end) override;
  void OnRefused(const absl::Status& status) override;

  // prefix: "vllm:" or "quire:", of the names that others have, too.
  void Write(const std::string& prefix, Families& out) const;

 private:
  void Observe(Measure measure, double value) {
    histograms_[static_cast<size_t>(measure)]->Observe(value);
  }

  std::vector<std::unique_ptr<prometheus::Histogram>> histograms_;  // [kNumMeasures]
  prometheus::Counter prompt_tokens_, cached_tokens_, generation_tokens_;
  std::array<prometheus::Counter, kNumEndReasons> ends_;
  std::array<prometheus::Counter, kNumRefusalReasons> refusals_;
  prometheus::Counter deadline_queued_, deadline_running_;
  prometheus::Counter never_fits_;   // refused by the engine: no pool of this size can hold it
  prometheus::Counter slow_client_;  // cut off: it didn't read
};

}  // namespace quire
