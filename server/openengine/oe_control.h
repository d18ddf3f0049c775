// server/openengine/oe_control.h -- openengine.v1.Control: what is told of the engine, and aborts.
// gRPC threads; see docs/grpc.md for what is served.
#pragma once

#include <grpcpp/grpcpp.h>

#include <string>

#include "openengine/v1/openengine.grpc.pb.h"
#include "server/grpc/serving.h"

namespace quire {

class OeControl final : public ::openengine::v1::Control::CallbackService {
 public:
  // Outlives the server that this is registered with.
  explicit OeControl(const Serving& serving);

  using Context = grpc::CallbackServerContext;
  using Unary = grpc::ServerUnaryReactor;

  Unary* GetServerInfo(Context* context, const ::openengine::v1::GetServerInfoRequest* request,
                       ::openengine::v1::ServerInfo* response) override;
  Unary* GetModelInfo(Context* context, const ::openengine::v1::GetModelInfoRequest* request,
                      ::openengine::v1::ModelInfo* response) override;
  Unary* GetLoad(Context* context, const ::openengine::v1::GetLoadRequest* request,
                 ::openengine::v1::LoadInfo* response) override;
  Unary* Health(Context* context, const ::openengine::v1::HealthRequest* request,
                ::openengine::v1::HealthResponse* response) override;
  Unary* Abort(Context* context, const ::openengine::v1::AbortRequest* request,
               ::openengine::v1::AbortResponse* response) override;
  Unary* LoadLora(Context* context, const ::openengine::v1::LoadLoraRequest* request,
                  ::openengine::v1::LoadLoraResponse* response) override;
  Unary* UnloadLora(Context* context, const ::openengine::v1::UnloadLoraRequest* request,
                    ::openengine::v1::UnloadLoraResponse* response) override;
  Unary* ListLoras(Context* context, const ::openengine::v1::ListLorasRequest* request,
                   ::openengine::v1::ListLorasResponse* response) override;
  Unary* GetKvEventSources(Context* context,
                           const ::openengine::v1::GetKvEventSourcesRequest* request,
                           ::openengine::v1::GetKvEventSourcesResponse* response) override;
  grpc::ServerWriteReactor<::openengine::v1::SubscribeKvEventsResponse>* SubscribeKvEvents(
      Context* context, const ::openengine::v1::SubscribeKvEventsRequest* request) override;

 private:
  const Serving& serving_;
  const std::string instance_id_;  // of this process
};

}  // namespace quire
