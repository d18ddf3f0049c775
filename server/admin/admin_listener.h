// server/admin/admin_listener.h -- where quire.v1.Admin listens: a Unix socket that only this user
// can open, and a TCP port if an option names one. Nothing of it is on the port of clients.
//
// The socket's folder is its lock, so no key is asked there; on TCP a key needs admin=true.
// Health and reflection as on the other port. Start, Shutdown: one thread.
#pragma once

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "server/admin/admin_service.h"
#include "server/grpc/reflection_service.h"

namespace quire {

class Guards;

class AdminListener {
 public:
  struct Options {
    std::string socket;  // path; empty: none
    std::string host;
    int32_t port = -1;  // -1: none; 0: any
    int64_t max_message_bytes = 0;
    Guards* guards = nullptr;  // outlive the server
  };

  // ERRORS: kUnavailable naming the socket or the port, with a remedy.
  static absl::StatusOr<std::unique_ptr<AdminListener>> Start(const Options& options,
                                                              AdminService& admin);
  ~AdminListener();

  // As gRPC targets: the socket's, then the port's, as far as there are.
  std::vector<std::string> addresses() const;
  int32_t port() const { return port_; }  // 0: none
  void SetServing(bool serving);
  void Shutdown(std::chrono::milliseconds grace);

 private:
  AdminListener();

  ReflectionService reflection_;
  std::shared_ptr<grpc::ServerCredentials> socket_credentials_, port_credentials_;
  std::unique_ptr<grpc::Server> server_;  // null: it listens nowhere
  std::string socket_;
  std::string host_;
  int32_t port_ = 0;
};

}  // namespace quire
