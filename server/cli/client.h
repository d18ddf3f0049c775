// server/cli/client.h -- what the gRPC clients of `quire` share: options and error texts around the
// client library (clients/cpp).
//
// A key is read from QUIRE_API_KEY and nowhere else: a flag would show it to everybody on the
// machine.
#pragma once

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"

namespace CLI {
class App;
}

namespace quire {

struct ServerAddress {
  std::string host = "127.0.0.1";
  int32_t port = 50051;
  bool tls = false;
  std::string ca_cert;  // PEM file; empty: the system's
  std::string cert;     // PEM files of a client that must show who it is
  std::string key;
  // Of quire.v1.Admin; without, it is looked for (Admin).
  std::string admin_socket;
  int32_t admin_port = 0;

  void AddOptions(CLI::App& app);       // of the port of clients
  void AddAdminOptions(CLI::App& app);  // also of where Admin listens
  std::string ToString() const;         // of the port of clients
  std::shared_ptr<grpc::Channel> Connect() const;

  // Where Admin is: admin_socket, else host and admin_port, else the socket of a daemon on `port`
  // of this machine.
  std::string AdminTarget() const;
  std::shared_ptr<grpc::Channel> ConnectAdmin() const;
};

// "UNAVAILABLE: ..." with the remedy for a server that is not there. target: that was called.
std::string Explain(const absl::Status& status, const std::string& target);
std::string Explain(const absl::Status& status, const ServerAddress& address);

}  // namespace quire
