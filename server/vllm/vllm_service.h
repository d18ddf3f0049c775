// server/vllm/vllm_service.h -- vllm.grpc.engine.VllmEngine: what the SMG gateway and llm-d's
// router speak to engines.
//
// gRPC threads check, translate and tokenize; the rest happens on the edge thread. See
// vllm_request.h and vllm_answer.h for the translation, docs/grpc.md for what is served.
#pragma once

#include <grpcpp/grpcpp.h>

#include "server/grpc/serving.h"
#include "server/grpc/tokenizer_archive.h"
#include "vllm/grpc/engine/vllm_engine.grpc.pb.h"

namespace quire {

class VllmService final : public ::vllm::grpc::engine::VllmEngine::CallbackService {
 public:
  // Both outlive the server that this is registered with.
  VllmService(const Serving& serving, const TokenizerArchive& tokenizer)
      : serving_(serving), tokenizer_(tokenizer) {}

  template <typename M>
  using Stream = grpc::ServerWriteReactor<M>;
  using Context = grpc::CallbackServerContext;

  Stream<::vllm::grpc::engine::GenerateResponse>* Generate(
      Context* context, const ::vllm::grpc::engine::GenerateRequest* request) override;
  grpc::ServerUnaryReactor* Embed(Context* context,
                                  const ::vllm::grpc::engine::EmbedRequest* request,
                                  ::vllm::grpc::engine::EmbedResponse* response) override;
  grpc::ServerUnaryReactor* HealthCheck(
      Context* context, const ::vllm::grpc::engine::HealthCheckRequest* request,
      ::vllm::grpc::engine::HealthCheckResponse* response) override;
  grpc::ServerUnaryReactor* FlushCache(Context* context,
                                       const ::smg::grpc::common::FlushCacheRequest* request,
                                       ::smg::grpc::common::FlushCacheResponse* response) override;
  grpc::ServerUnaryReactor* StartProfile(Context* context,
                                         const ::smg::grpc::common::StartProfileRequest* request,
                                         ::smg::grpc::common::ProfileResponse* response) override;
  grpc::ServerUnaryReactor* StopProfile(Context* context,
                                        const ::smg::grpc::common::StopProfileRequest* request,
                                        ::smg::grpc::common::ProfileResponse* response) override;
  grpc::ServerUnaryReactor* Abort(Context* context,
                                  const ::vllm::grpc::engine::AbortRequest* request,
                                  ::vllm::grpc::engine::AbortResponse* response) override;
  grpc::ServerUnaryReactor* GetModelInfo(
      Context* context, const ::vllm::grpc::engine::GetModelInfoRequest* request,
      ::vllm::grpc::engine::GetModelInfoResponse* response) override;
  grpc::ServerUnaryReactor* GetServerInfo(
      Context* context, const ::vllm::grpc::engine::GetServerInfoRequest* request,
      ::vllm::grpc::engine::GetServerInfoResponse* response) override;
  grpc::ServerUnaryReactor* GetLoads(Context* context,
                                     const ::vllm::grpc::engine::GetLoadsRequest* request,
                                     ::vllm::grpc::engine::GetLoadsResponse* response) override;
  Stream<::smg::grpc::common::GetTokenizerChunk>* GetTokenizer(
      Context* context, const ::smg::grpc::common::GetTokenizerRequest* request) override;
  Stream<::smg::grpc::common::KvEventBatch>* SubscribeKvEvents(
      Context* context, const ::smg::grpc::common::SubscribeKvEventsRequest* request) override;

 private:
  const Serving& serving_;
  const TokenizerArchive& tokenizer_;
};

}  // namespace quire
