// server/grpc/grpc_server.h -- the listening gRPC server: our services, health and reflection.
// quire.v1.Admin is not among them: it has a listener of its own (admin/admin_listener.h).
//
// Health (grpc.health.v1) knows "" and each service by its full name; Check of another name is
// NOT_FOUND. The daemon listens only once it is ready, so NOT_SERVING means draining.
#pragma once

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "server/grpc/counting_listener.h"
#include "server/grpc/generation_service.h"
#include "server/grpc/other_services.h"
#include "server/grpc/reflection_service.h"
#include "server/options.h"

namespace quire {

class Guards;
// As the options of these names; 0 where they say so.
struct ConnectionLimits {
  int32_t max_connections = 0;
  int32_t max_concurrent_streams = 0;
  double keepalive_time_s = 60;
  double keepalive_timeout_s = 20;
  double min_ping_interval_s = 10;
  int32_t max_ping_strikes = 0;
  double max_connection_idle_s = 0;
};
ConnectionLimits ConnectionLimitsOf(const ServerOptions& options);

class GrpcServer {
 public:
  struct Options {
    std::string host;
    int32_t port = 0;  // 0 = any
    int64_t max_message_bytes = 0;
    Guards* guards = nullptr;  // outlive the server
    ConnectionLimits connections;
  };

  // The services outlive the server. ERRORS: kUnavailable naming host and port.
  static absl::StatusOr<std::unique_ptr<GrpcServer>> Start(const Options& options,
                                                           GenerationService& generation,
                                                           OtherServices& others);
  ~GrpcServer();

  int32_t port() const { return port_; }
  // Any thread.
  void SetServing(bool serving);
  // Closes the port, waits for calls up to `grace`, cancels the rest; returns when all are done.
  void Shutdown(std::chrono::milliseconds grace);

 private:
  explicit GrpcServer(std::vector<std::string> services);

  const std::vector<std::string> services_;  // full names, health and reflection not among them
  ReflectionService reflection_;
  std::shared_ptr<grpc::ServerCredentials> credentials_;  // gRPC asks it while it listens
  std::unique_ptr<CountingListener> listener_;            // null: gRPC listens itself
  std::unique_ptr<grpc::Server> server_;
  int32_t port_ = 0;
};

// Whether host:port can be listened on, before the model is loaded. ERRORS: kUnavailable with the
// system's reason; kInvalidArgument for a host that is none.
absl::Status CheckPort(const std::string& host, int32_t port);

}  // namespace quire
