// server/metrics/call_metrics.cc -- see call_metrics.h.
#include "server/metrics/call_metrics.h"

#include <algorithm>

namespace quire {
namespace {

constexpr std::array<const char*, 17> kCodes = {
    "OK",       "Canceled",       "Unknown",          "InvalidArgument",   "DeadlineExceeded",
    "NotFound", "AlreadyExists",  "PermissionDenied", "ResourceExhausted", "FailedPrecondition",
    "Aborted",  "OutOfRange",     "Unimplemented",    "Internal",          "Unavailable",
    "DataLoss", "Unauthenticated"};

prometheus::Histogram::BucketBoundaries Bounds() {
  return {.001, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 600};
}

// "/package.Service/Method"
MetricLabels LabelsOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (path.empty() || path.front() != '/' || slash == 0) {
    return {{"grpc_service", "other"}, {"grpc_method", "other"}};
  }
  return {{"grpc_service", path.substr(1, slash - 1)}, {"grpc_method", path.substr(slash + 1)}};
}

}  // namespace

CallMetrics::Grpc::Grpc() : seconds(Bounds()) {}
CallMetrics::Http::Http() : seconds(Bounds()) {}

CallMetrics::Grpc& CallMetrics::GrpcOf(const std::string& path) {
  const std::lock_guard lock(mutex_);
  const bool is_full = grpc_.size() >= kMaxSeries && grpc_.count(path) == 0;
  std::unique_ptr<Grpc>& entry = grpc_[is_full ? "other" : path];
  if (entry == nullptr) entry = std::make_unique<Grpc>();
  return *entry;
}

void CallMetrics::GrpcStarted(const std::string& path) { GrpcOf(path).started.Increment(); }

void CallMetrics::GrpcHandled(const std::string& path, int code, double seconds) {
  Grpc& grpc = GrpcOf(path);
  constexpr int kUnknown = 2;
  const bool is_known = code >= 0 && code < static_cast<int>(kNumGrpcCodes);
  grpc.handled[static_cast<size_t>(is_known ? code : kUnknown)].Increment();
  grpc.seconds.Observe(std::max(0.0, seconds));
}

void CallMetrics::HttpHandled(const std::string& method, const std::string& handler, int status,
                              double seconds) {
  Http* http = nullptr;
  {
    const std::lock_guard lock(mutex_);
    std::pair<std::string, std::string> name(method, handler);
    if (http_.size() >= kMaxSeries && http_.count(name) == 0) name = {"other", "other"};
    std::unique_ptr<Http>& entry = http_[name];
    if (entry == nullptr) entry = std::make_unique<Http>();
    http = entry.get();
  }
  http->handled[static_cast<size_t>(std::clamp(status / 100, 1, 5) - 1)].Increment();
  http->seconds.Observe(std::max(0.0, seconds));
}

void CallMetrics::Write(Families& out) const {
  const std::lock_guard lock(mutex_);
  for (const auto& [path, grpc] : grpc_) {
    const MetricLabels labels = LabelsOf(path);
    out.Counter("grpc_server_started_total", "gRPC calls that reached a handler.",
                grpc->started.Value(), labels);
    for (size_t code = 0; code < kNumGrpcCodes; ++code) {
      const double count = grpc->handled[code].Value();
      if (count == 0) continue;
      MetricLabels with_code = labels;
      with_code.emplace_back("grpc_code", kCodes[code]);
      out.Counter("grpc_server_handled_total", "gRPC calls that have ended, by status.", count,
                  with_code);
    }
    out.Histogram("grpc_server_handling_seconds", "Time of gRPC calls, from handler to status.",
                  grpc->seconds.Collect(), labels);
  }
  for (const auto& [name, http] : http_) {
    const MetricLabels labels = {{"method", name.first}, {"handler", name.second}};
    for (size_t i = 0; i < http->handled.size(); ++i) {
      const double count = http->handled[i].Value();
      if (count == 0) continue;
      MetricLabels with_status = labels;
      with_status.emplace_back("status", std::to_string(i + 1) + "xx");
      out.Counter("http_requests_total", "HTTP requests that were answered, by status.", count,
                  with_status);
    }
    out.Histogram("http_request_duration_seconds", "Time of HTTP requests.",
                  http->seconds.Collect(), labels);
  }
}

}  // namespace quire
