// server/metrics/call_metrics.h -- calls by protocol, method and status: gRPC and HTTP.
//
// Any thread. The names are those of go-grpc-prometheus and of prometheus-fastapi-instrumentator.
// Labels are bounded: methods and handlers are those that a server registered, never what a client
// wrote; beyond kMaxSeries of a family everything is "other".
#pragma once

#include <prometheus/counter.h>
#include <prometheus/histogram.h>

#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "server/metrics/families.h"

namespace quire {

class CallMetrics {
 public:
  // path: "/package.Service/Method"; code: a gRPC status code.
  void GrpcStarted(const std::string& path);
  void GrpcHandled(const std::string& path, int code, double seconds);
  // handler: the route as it was registered.
  void HttpHandled(const std::string& method, const std::string& handler, int status,
                   double seconds);

  void Write(Families& out) const;

 private:
  static constexpr size_t kMaxSeries = 1000;
  static constexpr size_t kNumGrpcCodes = 17;
  struct Grpc {
    Grpc();
    prometheus::Counter started;
    std::array<prometheus::Counter, kNumGrpcCodes> handled;
    prometheus::Histogram seconds;
  };
  struct Http {
    Http();
    std::array<prometheus::Counter, 5> handled;  // 1xx to 5xx
    prometheus::Histogram seconds;
  };
  Grpc& GrpcOf(const std::string& path);

  // Entries stay, so a reference outlives the lock.
  mutable std::mutex mutex_;
  std::map<std::string, std::unique_ptr<Grpc>> grpc_;                          // guarded by mutex_
  std::map<std::pair<std::string, std::string>, std::unique_ptr<Http>> http_;  // guarded by mutex_
};

}  // namespace quire
