// server/grpc/call_interceptor.cc -- see call_interceptor.h.
#include "server/grpc/call_interceptor.h"

#include <chrono>
#include <string>

#include "server/grpc/status.h"

namespace quire {
namespace {

using Clock = std::chrono::steady_clock;
using grpc::experimental::InterceptionHookPoints;

class CallInterceptor final : public grpc::experimental::Interceptor {
 public:
  CallInterceptor(CallMetrics& metrics, const char* path) : metrics_(metrics), path_(path) {
    metrics_.GrpcStarted(path_);
  }
  // A call that was cut before it had a status.
  ~CallInterceptor() override { Ended(grpc::StatusCode::CANCELLED); }

  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::PRE_SEND_STATUS)) {
      const grpc::Status status = methods->GetSendStatus();
      if (const auto wait = RetryPushback(status); wait.has_value()) {
        methods->GetSendTrailingMetadata()->insert(
            {"grpc-retry-pushback-ms", std::to_string(wait->count())});
      }
      Ended(status.error_code());
    }
    methods->Proceed();
  }

 private:
  void Ended(grpc::StatusCode code) {
    if (ended_) return;
    ended_ = true;
    metrics_.GrpcHandled(path_, code, std::chrono::duration<double>(Clock::now() - begin_).count());
  }

  CallMetrics& metrics_;
  const std::string path_;
  const Clock::time_point begin_ = Clock::now();
  bool ended_ = false;
};

class Factory final : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  explicit Factory(CallMetrics& metrics) : metrics_(metrics) {}
  grpc::experimental::Interceptor* CreateServerInterceptor(
      grpc::experimental::ServerRpcInfo* info) override {
    return new CallInterceptor(metrics_, info->method());
  }

 private:
  CallMetrics& metrics_;
};

}  // namespace

ServerInterceptors CallInterceptors(CallMetrics& metrics) {
  ServerInterceptors interceptors;
  interceptors.push_back(std::make_unique<Factory>(metrics));
  return interceptors;
}

}  // namespace quire
