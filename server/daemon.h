// server/daemon.h -- scheduler, engine, edge, gRPC and HTTP server, wired together.
//
// `quire serve` gives it a loaded model; tests give it a fake executor. Start, Drain and Stop are
// called from one thread; Drain also from the edge thread (signals).
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/status.h"
#include "scheduler/engine.h"
#include "scheduler/ngram_proposer.h"
#include "scheduler/suffix_proposer.h"
#include "server/admin/admin_listener.h"
#include "server/admin/admin_service.h"
#include "server/admin/cache_control.h"
#include "server/edge/edge.h"
#include "server/edge/grammar_worker.h"
#include "server/front_door.h"
#include "server/grpc/generation_service.h"
#include "server/grpc/grpc_server.h"
#include "server/grpc/kv_event_streams.h"
#include "server/grpc/other_services.h"
#include "server/guards.h"
#include "server/http/generation_call.h"
#include "server/http/http_server.h"
#include "server/metrics/token_rate.h"
#include "server/served_model.h"

namespace quire {

class KvEventHub;
class KvEventPublisher;

class Daemon {
 public:
  struct Parts {
    ServerFacts facts;
    ServedModel model;
    std::string fingerprint;  // see SchedulerOptions
    std::function<std::string(int32_t)> rope_regime;
    BlockManager* blocks = nullptr;  // all outlive the daemon
    Executor* executor = nullptr;
    Proposer* draft = nullptr;  // guesses by a draft model; null = there is none
    CacheControl cache;
  };

  // Listens and serves when it returns. ERRORS: kUnavailable (port), kInvalidArgument (limits).
  static absl::StatusOr<std::unique_ptr<Daemon>> Start(Parts parts);
  ~Daemon();

  int32_t port() const { return server_->port(); }
  // 0: HTTP is off.
  int32_t http_port() const { return http_ == nullptr ? 0 : http_->port(); }
  // Where quire.v1.Admin listens, as gRPC targets ("unix:/..."), the socket first.
  std::vector<std::string> admin_addresses() const { return admin_listener_->addresses(); }
  Edge& edge() { return edge_; }
  Metrics& metrics() { return guards_->metrics(); }
  const Engine& engine() const { return engine_; }
  const ServerFacts& facts() const { return parts_.facts; }
  // Null without the option kv_events.
  KvEventHub* kv_events() const { return kv_events_.get(); }
  const KvEventPublisher* kv_event_publisher() const { return kv_event_publisher_.get(); }

  // Health says NOT_SERVING, nothing new is accepted, what runs may end until `timeout` has passed.
  // Any thread; a second call shortens the time.
  void Drain(std::chrono::milliseconds timeout);
  // Until the drain is over or the engine has failed; its error then.
  absl::Status Wait();
  // Ends all threads. Done by the destructor, too.
  void Stop();

 private:
  Daemon(Parts parts, SchedulerOptions options, std::unique_ptr<Guards> guards);
  void SetDone(absl::Status status);
  absl::Status StartKvEvents();
  absl::Status StartGrpc();
  absl::Status StartHttp();

  Parts parts_;
  const std::unique_ptr<Guards> guards_;
  NgramProposer ngram_;
  SuffixProposer suffix_;
  Scheduler scheduler_;
  std::unique_ptr<KvEventHub> kv_events_;  // outlives all who read it
  KvEventStreams kv_event_streams_;
  TokenRate token_rate_;
  Edge edge_;
  Engine engine_;
  GrammarWorker grammars_;
  FrontDoor door_;
  GenerationService generation_;
  AdminService admin_;
  OtherServices others_;
  std::unique_ptr<KvEventPublisher> kv_event_publisher_;
  std::unique_ptr<GrpcServer> server_;
  std::unique_ptr<AdminListener> admin_listener_;
  IdsInUse http_ids_;
  std::unique_ptr<HttpServer> http_;

  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;    // guarded by mutex_
  absl::Status status_;  // guarded by mutex_
  bool stopped_ = false;
};

}  // namespace quire
