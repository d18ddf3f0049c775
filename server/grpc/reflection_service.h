// server/grpc/reflection_service.h -- grpc.reflection.v1, which gRPC 1.51 doesn't bring (it has
// v1alpha only). Answers from the descriptors that are linked into the daemon. gRPC threads.
#pragma once

#include <grpcpp/grpcpp.h>

#include <string>
#include <vector>

#include "grpc/reflection/v1/reflection.grpc.pb.h"

namespace quire {

class ReflectionService final : public ::grpc::reflection::v1::ServerReflection::CallbackService {
 public:
  // services: full names, as ListServices is to tell them.
  explicit ReflectionService(std::vector<std::string> services) : services_(std::move(services)) {}

  grpc::ServerBidiReactor<::grpc::reflection::v1::ServerReflectionRequest,
                          ::grpc::reflection::v1::ServerReflectionResponse>*
  ServerReflectionInfo(grpc::CallbackServerContext* context) override;

 private:
  const std::vector<std::string> services_;
};

}  // namespace quire
