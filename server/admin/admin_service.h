// server/admin/admin_service.h -- quire.v1.Admin: what an operator can ask. gRPC threads; every
// answer comes from a snapshot, so nothing here waits for the engine.
#pragma once

#include <grpcpp/grpcpp.h>

#include <chrono>

#include "models/runtime.h"
#include "quire/v1/quire.grpc.pb.h"
#include "scheduler/engine.h"
#include "server/edge/edge.h"
#include "server/options.h"
#include "server/served_model.h"

namespace quire {

// What is fixed once the model is loaded.
struct ServerFacts {
  ServerOptions options;
  ModelConfig config;
  MemoryProfile memory;
  std::string attention;
  std::string kv_cache_dtype;
  std::string weight_format;
  int32_t num_threads = 0;
  std::chrono::steady_clock::time_point start{};  // of the process
  double load_s = 0;
};

class AdminService final : public ::quire::v1::Admin::CallbackService {
 public:
  // All outlive the server that this is registered with.
  AdminService(const ServerFacts& facts, const ServedModel& model, const Engine& engine,
               const Edge& edge)
      : facts_(facts), model_(model), engine_(engine), edge_(edge) {}

  grpc::ServerUnaryReactor* GetServerInfo(grpc::CallbackServerContext* context,
                                          const ::quire::v1::GetServerInfoRequest* request,
                                          ::quire::v1::ServerInfo* info) override;
  grpc::ServerUnaryReactor* GetModelInfo(grpc::CallbackServerContext* context,
                                         const ::quire::v1::GetModelInfoRequest* request,
                                         ::quire::v1::ModelInfo* info) override;
  grpc::ServerUnaryReactor* GetBlockStats(grpc::CallbackServerContext* context,
                                          const ::quire::v1::GetBlockStatsRequest* request,
                                          ::quire::v1::BlockStats* stats) override;

 private:
  const ServerFacts& facts_;
  const ServedModel& model_;
  const Engine& engine_;
  const Edge& edge_;
};

}  // namespace quire
