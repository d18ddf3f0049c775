// server/admin/admin_service.h -- quire.v1.Admin: what an operator can ask and do.
//
// gRPC threads. What has a snapshot is answered from it at once. The rest runs on the engine thread
// between two steps, copies plain data out, and is turned into messages by gRPC's threads.
#pragma once

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <functional>
#include <mutex>

#include "models/runtime.h"
#include "quire/v1/quire.grpc.pb.h"
#include "scheduler/engine.h"
#include "server/admin/cache_control.h"
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
  std::string compute;
  std::string kv_cache_dtype;
  std::string weight_format;
  int32_t num_threads = 0;
  std::chrono::steady_clock::time_point start{};  // of the process
  double load_s = 0;
};

class AdminService final : public ::quire::v1::Admin::CallbackService {
 public:
  // All outlive the server that this is registered with.
  AdminService(const ServerFacts& facts, const ServedModel& model, const CacheLayout& layout,
               const CacheControl& control, Engine& engine, const Edge& edge);

  grpc::ServerUnaryReactor* GetServerInfo(grpc::CallbackServerContext* context,
                                          const ::quire::v1::GetServerInfoRequest* request,
                                          ::quire::v1::ServerInfo* reply) override;
  grpc::ServerUnaryReactor* GetModelInfo(grpc::CallbackServerContext* context,
                                         const ::quire::v1::GetModelInfoRequest* request,
                                         ::quire::v1::ModelInfo* reply) override;
  grpc::ServerUnaryReactor* GetMemoryProfile(grpc::CallbackServerContext* context,
                                             const ::quire::v1::GetMemoryProfileRequest* request,
                                             ::quire::v1::MemoryProfile* reply) override;
  grpc::ServerUnaryReactor* GetBlockStats(grpc::CallbackServerContext* context,
                                          const ::quire::v1::GetBlockStatsRequest* request,
                                          ::quire::v1::BlockStats* reply) override;
  grpc::ServerWriteReactor<::quire::v1::BlockBatch>* InspectBlocks(
      grpc::CallbackServerContext* context,
      const ::quire::v1::InspectBlocksRequest* request) override;
  grpc::ServerWriteReactor<::quire::v1::RequestBatch>* InspectRequests(
      grpc::CallbackServerContext* context,
      const ::quire::v1::InspectRequestsRequest* request) override;
  grpc::ServerWriteReactor<::quire::v1::PrefixBatch>* DumpPrefixTree(
      grpc::CallbackServerContext* context,
      const ::quire::v1::DumpPrefixTreeRequest* request) override;
  grpc::ServerUnaryReactor* FlushPrefixCache(grpc::CallbackServerContext* context,
                                             const ::quire::v1::FlushPrefixCacheRequest* request,
                                             ::quire::v1::FlushPrefixCacheResponse* reply) override;
  grpc::ServerUnaryReactor* PinPrefix(grpc::CallbackServerContext* context,
                                      const ::quire::v1::PinPrefixRequest* request,
                                      ::quire::v1::Pin* reply) override;
  grpc::ServerUnaryReactor* UnpinPrefix(grpc::CallbackServerContext* context,
                                        const ::quire::v1::UnpinPrefixRequest* request,
                                        ::quire::v1::UnpinPrefixResponse* reply) override;
  grpc::ServerUnaryReactor* ListPins(grpc::CallbackServerContext* context,
                                     const ::quire::v1::ListPinsRequest* request,
                                     ::quire::v1::ListPinsResponse* reply) override;
  grpc::ServerUnaryReactor* UpdateConfig(grpc::CallbackServerContext* context,
                                         const ::quire::v1::UpdateConfigRequest* request,
                                         ::quire::v1::Config* reply) override;
  grpc::ServerUnaryReactor* GetConfig(grpc::CallbackServerContext* context,
                                      const ::quire::v1::GetConfigRequest* request,
                                      ::quire::v1::Config* reply) override;
  grpc::ServerUnaryReactor* Pause(grpc::CallbackServerContext* context,
                                  const ::quire::v1::PauseRequest* request,
                                  ::quire::v1::PauseResponse* reply) override;
  grpc::ServerUnaryReactor* Resume(grpc::CallbackServerContext* context,
                                   const ::quire::v1::ResumeRequest* request,
                                   ::quire::v1::ResumeResponse* reply) override;
  grpc::ServerUnaryReactor* SaveCache(grpc::CallbackServerContext* context,
                                      const ::quire::v1::SaveCacheRequest* request,
                                      ::quire::v1::CacheTransfer* reply) override;
  grpc::ServerUnaryReactor* LoadCache(grpc::CallbackServerContext* context,
                                      const ::quire::v1::LoadCacheRequest* request,
                                      ::quire::v1::CacheTransfer* reply) override;

  bool paused() const { return live().paused; }  // any thread

 private:
  using Work = std::function<absl::Status(Scheduler&)>;
  // As the last calls left it, for answers that don't wait for the engine.
  struct Live {
    ::quire::v1::Config config;
    bool paused = false;
  };
  Live live() const;  // any thread
  // Engine thread.
  void FillConfig(Scheduler& scheduler, ::quire::v1::Config& out);
  bool SetPaused(Scheduler& scheduler, bool paused);  // what it was before

  // Runs `work`, which fills the call's reply, on the engine thread, and ends the call.
  grpc::ServerUnaryReactor* OnEngine(grpc::CallbackServerContext* context, Work work);
  // Streams what `copy` returns, in batches; `status` instead if it is an error.
  template <typename Batch, typename List>
  grpc::ServerWriteReactor<Batch>* StreamFromEngine(const absl::Status& status,
                                                    std::function<List(Scheduler&)> copy);
  grpc::ServerUnaryReactor* Transfer(
      grpc::CallbackServerContext* context, const std::string& directory,
      const std::function<absl::StatusOr<CacheTransfer>(const std::string&)>& run,
      ::quire::v1::CacheTransfer* reply);

  const ServerFacts& facts_;
  const ServedModel& model_;
  const CacheLayout& layout_;
  const CacheControl& control_;
  Engine& engine_;
  const Edge& edge_;
  mutable std::mutex mutex_;
  Live live_;  // guarded by mutex_
};

}  // namespace quire
