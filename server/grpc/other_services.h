// server/grpc/other_services.h -- the services of other engines' protos, on the same port as ours.
//
// Built with the daemon, registered once; each translates into a quire.v1.GenerateRequest and goes
// through the front door. docs/grpc.md says what is served.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <vector>

#include "server/grpc/serving.h"

namespace quire {

class OtherServices {
 public:
  explicit OtherServices(Serving serving);
  ~OtherServices();

  // REQUIRES: this outlives the server.
  void Register(grpc::ServerBuilder& builder);
  // Full names, for health and reflection.
  std::vector<std::string> names() const;

 private:
  struct Services;
  const std::unique_ptr<Services> services_;
};

}  // namespace quire
