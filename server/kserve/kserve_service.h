// server/kserve/kserve_service.h -- inference.GRPCInferenceService: KServe v2 as Triton speaks it,
// with the tensors of Triton's vLLM backend.
//
// gRPC threads check, translate and tokenize; the rest happens on the edge thread. See
// infer_request.h and infer_answer.h for the translation, docs/grpc.md for what is served.
#pragma once

#include <grpcpp/grpcpp.h>

#include "inference/grpc_service.grpc.pb.h"
#include "server/grpc/serving.h"

namespace quire {

class KserveService final : public ::inference::GRPCInferenceService::CallbackService {
 public:
  // Outlives the server that this is registered with.
  explicit KserveService(const Serving& serving) : serving_(serving) {}

  using Context = grpc::CallbackServerContext;
  using Unary = grpc::ServerUnaryReactor;

  Unary* ModelInfer(Context* context, const ::inference::ModelInferRequest* request,
                    ::inference::ModelInferResponse* response) override;
  grpc::ServerBidiReactor<::inference::ModelInferRequest, ::inference::ModelStreamInferResponse>*
  ModelStreamInfer(Context* context) override;

  // What is told: kserve_info.cc.
  Unary* ServerLive(Context* context, const ::inference::ServerLiveRequest* request,
                    ::inference::ServerLiveResponse* response) override;
  Unary* ServerReady(Context* context, const ::inference::ServerReadyRequest* request,
                     ::inference::ServerReadyResponse* response) override;
  Unary* ModelReady(Context* context, const ::inference::ModelReadyRequest* request,
                    ::inference::ModelReadyResponse* response) override;
  Unary* ServerMetadata(Context* context, const ::inference::ServerMetadataRequest* request,
                        ::inference::ServerMetadataResponse* response) override;
  Unary* ModelMetadata(Context* context, const ::inference::ModelMetadataRequest* request,
                       ::inference::ModelMetadataResponse* response) override;
  Unary* ModelConfig(Context* context, const ::inference::ModelConfigRequest* request,
                     ::inference::ModelConfigResponse* response) override;
  Unary* ModelStatistics(Context* context, const ::inference::ModelStatisticsRequest* request,
                         ::inference::ModelStatisticsResponse* response) override;
  Unary* RepositoryIndex(Context* context, const ::inference::RepositoryIndexRequest* request,
                         ::inference::RepositoryIndexResponse* response) override;

  // UNIMPLEMENTED: there is one model, which stays, and no memory is shared. kserve_refused.cc.
  Unary* RepositoryModelLoad(Context* context,
                             const ::inference::RepositoryModelLoadRequest* request,
                             ::inference::RepositoryModelLoadResponse* response) override;
  Unary* RepositoryModelUnload(Context* context,
                               const ::inference::RepositoryModelUnloadRequest* request,
                               ::inference::RepositoryModelUnloadResponse* response) override;
  Unary* SystemSharedMemoryStatus(Context* context,
                                  const ::inference::SystemSharedMemoryStatusRequest* request,
                                  ::inference::SystemSharedMemoryStatusResponse* response) override;
  Unary* SystemSharedMemoryRegister(
      Context* context, const ::inference::SystemSharedMemoryRegisterRequest* request,
      ::inference::SystemSharedMemoryRegisterResponse* response) override;
  Unary* SystemSharedMemoryUnregister(
      Context* context, const ::inference::SystemSharedMemoryUnregisterRequest* request,
      ::inference::SystemSharedMemoryUnregisterResponse* response) override;
  Unary* CudaSharedMemoryStatus(Context* context,
                                const ::inference::CudaSharedMemoryStatusRequest* request,
                                ::inference::CudaSharedMemoryStatusResponse* response) override;
  Unary* CudaSharedMemoryRegister(Context* context,
                                  const ::inference::CudaSharedMemoryRegisterRequest* request,
                                  ::inference::CudaSharedMemoryRegisterResponse* response) override;
  Unary* CudaSharedMemoryUnregister(
      Context* context, const ::inference::CudaSharedMemoryUnregisterRequest* request,
      ::inference::CudaSharedMemoryUnregisterResponse* response) override;
  Unary* TraceSetting(Context* context, const ::inference::TraceSettingRequest* request,
                      ::inference::TraceSettingResponse* response) override;
  Unary* LogSettings(Context* context, const ::inference::LogSettingsRequest* request,
                     ::inference::LogSettingsResponse* response) override;

 private:
  const Serving& serving_;
};

}  // namespace quire
