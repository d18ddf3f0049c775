// server/openengine/oe_inference.h -- openengine.v1.Inference: one streaming call.
//
// gRPC threads check, translate and tokenize; the rest happens on the edge thread. A request that
// is refused ends with a status; one that fails after its first event ends with an error event and
// OK, as that contract has it.
#pragma once

#include <grpcpp/grpcpp.h>

#include "openengine/v1/openengine.grpc.pb.h"
#include "server/grpc/serving.h"

namespace quire {

class OeInference final : public ::openengine::v1::Inference::CallbackService {
 public:
  // Outlives the server that this is registered with.
  explicit OeInference(const Serving& serving) : serving_(serving) {}

  grpc::ServerWriteReactor<::openengine::v1::GenerateResponse>* Generate(
      grpc::CallbackServerContext* context,
      const ::openengine::v1::GenerateRequest* request) override;

 private:
  const Serving& serving_;
};

}  // namespace quire
