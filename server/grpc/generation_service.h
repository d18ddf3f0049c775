// server/grpc/generation_service.h -- quire.v1.Generation over gRPC's callback API.
//
// gRPC threads check and tokenize a request, then hand it to the edge; everything after that
// happens on the edge thread (see edge/edge.h). One reactor per call, see generation_service.cc.
#pragma once

#include <grpcpp/grpcpp.h>

#include "quire/v1/quire.grpc.pb.h"
#include "server/convert.h"
#include "server/edge/edge.h"
#include "server/front_door.h"
#include "server/served_model.h"

namespace quire {

class GenerationService final : public pb::Generation::CallbackService {
 public:
  // Outlives the server that this is registered with.
  explicit GenerationService(FrontDoor& door);

  grpc::ServerWriteReactor<pb::GenerateEvent>* Generate(
      grpc::CallbackServerContext* context, const pb::GenerateRequest* request) override;
  grpc::ServerUnaryReactor* GenerateUnary(grpc::CallbackServerContext* context,
                                          const pb::GenerateRequest* request,
                                          pb::GenerateResult* result) override;
  grpc::ServerUnaryReactor* Tokenize(grpc::CallbackServerContext* context,
                                     const pb::TokenizeRequest* request,
                                     pb::TokenizeResponse* response) override;
  grpc::ServerUnaryReactor* Detokenize(grpc::CallbackServerContext* context,
                                       const pb::DetokenizeRequest* request,
                                       pb::DetokenizeResponse* response) override;
  grpc::ServerUnaryReactor* Abort(grpc::CallbackServerContext* context,
                                  const pb::AbortRequest* request,
                                  pb::AbortResponse* response) override;

 private:
  FrontDoor& door_;
  const ServedModel& model_;
  Edge& edge_;
};

}  // namespace quire
