// server/cli/client.h -- what the gRPC clients of `quire` share.
#pragma once

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <memory>
#include <string>

namespace CLI {
class App;
}

namespace quire {

struct ServerAddress {
  std::string host = "127.0.0.1";
  int32_t port = 50051;

  void AddOptions(CLI::App& app);
  std::string ToString() const;
  std::shared_ptr<grpc::Channel> Connect() const;
};

// "UNAVAILABLE: ..." with the remedy for a server that is not there.
std::string Explain(const grpc::Status& status, const ServerAddress& address);

}  // namespace quire
