// server/admin/admin_service.cc -- see admin_service.h.
#include "server/admin/admin_service.h"

#include <algorithm>
#include <string>
#include <utility>

#include "models/pool_sizes.h"
#include "server/admin/admin_convert.h"
#include "server/admin/batch_reactor.h"
#include "server/admin/cache_actions.h"
#include "server/admin/cache_path.h"
#include "server/admin/inspect.h"
#include "server/admin/live_config.h"
#include "server/admin/process_info.h"
#include "server/convert.h"
#include "server/grpc/status.h"
#include "server/scheduling.h"
#include "server/version.h"

namespace quire {
namespace {

constexpr uint32_t kDefaultLimit = 1000;
constexpr uint32_t kMaxRequests = 10'000;
constexpr uint32_t kMaxEntries = 100'000;
constexpr size_t kMaxBatchBytes = 256 << 10;

grpc::ServerUnaryReactor* Answer(grpc::CallbackServerContext* context,
                                 const absl::Status& status = absl::OkStatus()) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  reactor->Finish(ToGrpc(status));
  return reactor;
}

uint32_t U32(int64_t v) { return static_cast<uint32_t>(v); }
uint64_t U64(int64_t v) { return static_cast<uint64_t>(v); }

absl::Status EngineIsGone() {
  return absl::UnavailableError("the engine has stopped; the daemon is about to end");
}

template <typename Request>
absl::Status ReadLimit(const Request& request, uint32_t most, size_t& limit) {
  limit = request.has_limit() ? request.limit() : kDefaultLimit;
  if (limit >= 1 && limit <= most) return absl::OkStatus();
  return InvalidArgument("limit={} is outside [1, {}]", limit, most);
}

absl::Status ReadFilter(const pb::InspectBlocksRequest& request, size_t num_pools,
                        BlockFilter& filter) {
  RETURN_IF_ERROR(ReadLimit(request, kMaxEntries, filter.limit));
  if (!request.states().empty()) {
    filter.empty = filter.used = filter.cached = false;
    for (const int state : request.states()) {
      if (state < pb::BLOCK_STATE_EMPTY || state > pb::BLOCK_STATE_CACHED) {
        return InvalidArgument("states has {}, must be of EMPTY, USED, CACHED", state);
      }
      filter.empty |= state == pb::BLOCK_STATE_EMPTY;
      filter.used |= state == pb::BLOCK_STATE_USED;
      filter.cached |= state == pb::BLOCK_STATE_CACHED;
    }
  }
  filter.request_id = request.request_id();
  if (request.has_pool()) {
    if (request.pool() >= num_pools) {
      return InvalidArgument("pool={} must be below {}", request.pool(), num_pools);
    }
    filter.pool = request.pool();
  }
  if (request.first_block() > INT32_MAX) {
    return InvalidArgument("first_block={} exceeds {}", request.first_block(), INT32_MAX);
  }
  filter.first = std::max(1, static_cast<int32_t>(request.first_block()));
  return absl::OkStatus();
}

void ToProto(const PinInfo& pin, const Scheduler& scheduler, pb::Pin& out) {
  out.set_pin_id(pin.id);
  out.set_cache_salt(SaltOf(scheduler.blocks(), pin.root));
  out.set_num_tokens(U32(pin.num_tokens));
  if (pin.expires_ms != kNoExpiry) {
    out.set_ttl_ms(std::max<int64_t>(1, pin.expires_ms - scheduler.now_ms()));
  }
}

}  // namespace

AdminService::AdminService(const ServerFacts& facts, const ServedModel& model,
                           const CacheLayout& layout, const CacheControl& control, Engine& engine,
                           const Edge& edge)
    : facts_(facts),
      model_(model),
      layout_(layout),
      control_(control),
      engine_(engine),
      edge_(edge) {
  ToProto(ToSchedulerOptions(facts.options), live_.config);
}

grpc::ServerUnaryReactor* AdminService::OnEngine(grpc::CallbackServerContext* context, Work work) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  const bool posted = engine_.PostAdminCall({[this, reactor, work = std::move(work)](Scheduler& s) {
    s.blocks().SetTime(s.now_ms());  // an idle engine's clock stands still
    const absl::Status status = work(s);
    engine_.UpdateSnapshot();
    reactor->Finish(ToGrpc(status));
  }});
  if (!posted) reactor->Finish(ToGrpc(EngineIsGone()));
  return reactor;
}

template <typename Batch, typename List>
grpc::ServerWriteReactor<Batch>* AdminService::StreamFromEngine(
    const absl::Status& status, std::function<List(Scheduler&)> copy) {
  const auto max_bytes = static_cast<size_t>(facts_.options.max_message_bytes / 2);
  auto* const reactor = new BatchReactor<List, Batch>(std::min(kMaxBatchBytes, max_bytes));
  if (!status.ok()) {
    reactor->Refuse(ToGrpc(status));
    return reactor;
  }
  const bool posted = engine_.PostAdminCall({[reactor, copy = std::move(copy)](Scheduler& s) {
    s.blocks().SetTime(s.now_ms());
    reactor->Send(copy(s));
  }});
  if (!posted) reactor->Refuse(ToGrpc(EngineIsGone()));
  return reactor;
}

// ---- what is told at once ----

grpc::ServerUnaryReactor* AdminService::GetServerInfo(grpc::CallbackServerContext* context,
                                                      const pb::GetServerInfoRequest*,
                                                      pb::ServerInfo* info) {
  const ServerOptions& o = facts_.options;
  info->set_version(Version());
  info->set_served_model_name(model_.name);
  info->set_uptime_s(
      std::chrono::duration<double>(std::chrono::steady_clock::now() - facts_.start).count());
  info->set_load_s(facts_.load_s);
  info->set_draining(edge_.draining());
  info->set_max_model_len(U32(model_.max_model_len));
  info->set_default_max_tokens(U32(o.default_max_tokens));
  const Live now = live();
  info->set_paused(now.paused);
  info->set_max_num_seqs(U32(now.config.max_num_seqs()));
  info->set_max_num_batched_tokens(U32(now.config.max_num_batched_tokens()));
  info->set_max_queued_requests(U32(now.config.max_queued_requests()));
  info->set_num_speculative_tokens(U32(now.config.num_speculative_tokens()));
  info->set_scheduling_policy(now.config.scheduling_policy());
  info->set_has_draft_model(model_.has_draft_model);
  info->set_speculation(o.speculation);
  info->set_max_message_bytes(U64(o.max_message_bytes));
  info->set_max_stream_buffer_bytes(U64(o.max_stream_buffer_bytes));
  info->set_resident_bytes(U64(ResidentBytes()));
  info->set_cpu_ms(ProcessCpuMs());
  for (const ThreadCpu& one : ReadThreadCpu()) {
    pb::ThreadCpu* const thread = info->add_threads();
    thread->set_name(one.name);
    thread->set_threads(U32(one.threads));
    thread->set_cpu_ms(one.cpu_ms);
  }
  ToProto(facts_.memory, *info->mutable_memory());
  ToProto(edge_.counts(), *info->mutable_requests());
  return Answer(context);
}

grpc::ServerUnaryReactor* AdminService::GetModelInfo(grpc::CallbackServerContext* context,
                                                     const pb::GetModelInfoRequest*,
                                                     pb::ModelInfo* info) {
  const ModelConfig& c = facts_.config;
  info->set_served_model_name(model_.name);
  info->set_name(c.name);
  info->set_architecture(c.architecture);
  info->set_weight_format(facts_.weight_format);
  info->set_vocab_size(U32(c.vocab_size));
  info->set_num_layers(U32(static_cast<int64_t>(c.layers.size())));
  info->set_max_position(U32(c.max_position));
  info->set_max_model_len(U32(model_.max_model_len));
  for (const TokenId id : c.eos_token_ids) info->add_eos_token_ids(U32(id));
  if (c.bos_token_id >= 0) info->set_bos_token_id(U32(c.bos_token_id));
  info->set_has_chat_template(model_.render_chat != nullptr);
  info->set_attention(facts_.attention);
  info->set_compute(facts_.compute);
  info->set_kv_cache_dtype(facts_.kv_cache_dtype);
  info->set_num_threads(U32(facts_.num_threads));
  return Answer(context);
}

grpc::ServerUnaryReactor* AdminService::GetMemoryProfile(grpc::CallbackServerContext* context,
                                                         const pb::GetMemoryProfileRequest*,
                                                         pb::MemoryProfile* profile) {
  ToProto(facts_.memory, *profile);
  AddPools(layout_, engine_.snapshot(), *profile);
  profile->set_resident(U64(ResidentBytes()));
  return Answer(context);
}

grpc::ServerUnaryReactor* AdminService::GetBlockStats(grpc::CallbackServerContext* context,
                                                      const pb::GetBlockStatsRequest*,
                                                      pb::BlockStats* stats) {
  ToProto(engine_.snapshot(), facts_.options.block_size, *stats);
  const Live now = live();
  stats->mutable_scheduler()->set_policy(now.config.scheduling_policy());
  stats->mutable_scheduler()->set_paused(now.paused);
  if (control_.files != nullptr) ToProto(control_.files(), *stats->mutable_files());
  return Answer(context);
}

// ---- what is walked through ----

grpc::ServerWriteReactor<pb::BlockBatch>* AdminService::InspectBlocks(
    grpc::CallbackServerContext*, const pb::InspectBlocksRequest* request) {
  BlockFilter filter;
  const absl::Status status = ReadFilter(*request, layout_.pools.size(), filter);
  return StreamFromEngine<pb::BlockBatch, BlockList>(
      status, [filter = std::move(filter)](Scheduler& s) { return CopyBlocks(s, filter); });
}

grpc::ServerWriteReactor<pb::RequestBatch>* AdminService::InspectRequests(
    grpc::CallbackServerContext*, const pb::InspectRequestsRequest* request) {
  size_t limit = 0;
  const absl::Status status = ReadLimit(*request, kMaxRequests, limit);
  const bool tables = !request->has_include_tables() || request->include_tables();
  return StreamFromEngine<pb::RequestBatch, RequestList>(
      status, [id = request->request_id(), tables, limit](Scheduler& s) {
        return CopyRequests(s, id, tables, limit);
      });
}

grpc::ServerWriteReactor<pb::PrefixBatch>* AdminService::DumpPrefixTree(
    grpc::CallbackServerContext*, const pb::DumpPrefixTreeRequest* request) {
  size_t limit = 0;
  const absl::Status status = ReadLimit(*request, kMaxEntries, limit);
  return StreamFromEngine<pb::PrefixBatch, PrefixTree>(
      status, [tokens = request->include_tokens(), limit](Scheduler& s) {
        return CopyPrefixTree(s, tokens, limit);
      });
}

// ---- what is done to the cache ----

grpc::ServerUnaryReactor* AdminService::FlushPrefixCache(grpc::CallbackServerContext* context,
                                                         const pb::FlushPrefixCacheRequest* request,
                                                         pb::FlushPrefixCacheResponse* reply) {
  std::optional<std::string> salt;
  if (request->what_case() == pb::FlushPrefixCacheRequest::kCacheSalt) {
    salt = request->cache_salt();
  } else if (!request->all()) {
    return Answer(context, InvalidArgument("what is not set; give cache_salt, or all=true"));
  }
  return OnEngine(context, [salt = std::move(salt), reply](Scheduler& s) {
    const FlushCounts counts = FlushPrefixes(s, salt);
    reply->set_flushed_nodes(U64(counts.nodes));
    reply->set_emptied_blocks(U64(counts.emptied_blocks));
    reply->set_ended_pins(U32(counts.ended_pins));
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* AdminService::PinPrefix(grpc::CallbackServerContext* context,
                                                  const pb::PinPrefixRequest* request,
                                                  pb::Pin* reply) {
  PinRequest pin;
  if (const absl::Status status = PinFromProto(*request, model_, pin); !status.ok()) {
    return Answer(context, status);
  }
  return OnEngine(context, [pin = std::move(pin), reply](Scheduler& s) -> absl::Status {
    ASSIGN_OR_RETURN(const PinInfo info, s.PinPrefix(pin.tokens, pin.cache_salt, pin.ttl_ms));
    ToProto(info, s, *reply);
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* AdminService::UnpinPrefix(grpc::CallbackServerContext* context,
                                                    const pb::UnpinPrefixRequest* request,
                                                    pb::UnpinPrefixResponse* reply) {
  const bool all = request->all();
  if (!all && request->what_case() != pb::UnpinPrefixRequest::kPinId) {
    return Answer(context, InvalidArgument("what is not set; give pin_id, or all=true"));
  }
  return OnEngine(context, [all, id = request->pin_id(), reply](Scheduler& s) -> absl::Status {
    int64_t ended = 0;
    for (const PinInfo& pin : s.blocks().pins()) {
      if (all || pin.id == id) ended += s.blocks().Unpin(pin.id);
    }
    reply->set_ended_pins(U32(ended));
    if (all || ended > 0) return absl::OkStatus();
    return Error(absl::StatusCode::kNotFound,
                 "pin_id={} is not there (any more); ListPins has those that are", id);
  });
}

grpc::ServerUnaryReactor* AdminService::ListPins(grpc::CallbackServerContext* context,
                                                 const pb::ListPinsRequest*,
                                                 pb::ListPinsResponse* reply) {
  return OnEngine(context, [reply](Scheduler& s) {
    const BlockManager& blocks = s.blocks();
    for (const PinInfo& pin : blocks.pins()) ToProto(pin, s, *reply->add_pins());
    int64_t pinned = 0;
    for (size_t p = 0; p < blocks.pools().size(); ++p) pinned += blocks.pinned_pages(p);
    reply->set_pinned_blocks(U32(pinned));
    return absl::OkStatus();
  });
}

// ---- what is changed while serving ----

void AdminService::FillConfig(Scheduler& scheduler, pb::Config& out) {
  for (const PagePool& pool : scheduler.blocks().pools())
    out.add_num_blocks(U32(pool.num_usable()));
  out.set_main_pool(U32(MainPool(layout_)));
  ToProto(scheduler.options(), out);
  const std::lock_guard lock(mutex_);
  live_.config = out;
  live_.paused = scheduler.paused();
}

AdminService::Live AdminService::live() const {
  const std::lock_guard lock(mutex_);
  Live copy = live_;
  copy.paused = copy.paused && !edge_.draining();  // a drain ends a pause
  return copy;
}

grpc::ServerUnaryReactor* AdminService::UpdateConfig(grpc::CallbackServerContext* context,
                                                     const pb::UpdateConfigRequest* request,
                                                     pb::Config* reply) {
  absl::StatusOr<LiveUpdate> update = ReadUpdate(*request);
  if (!update.ok()) return Answer(context, update.status());
  if (update->num_blocks && control_.set_num_blocks == nullptr) {
    return Answer(context,
                  absl::UnimplementedError("num_blocks can't be changed while this is served"));
  }
  return OnEngine(context, [this, update = *std::move(update), reply](Scheduler& s) {
    absl::Status status = ApplyUpdate(update, control_.set_num_blocks, s);
    if (status.ok()) FillConfig(s, *reply);
    return status;
  });
}

grpc::ServerUnaryReactor* AdminService::GetConfig(grpc::CallbackServerContext* context,
                                                  const pb::GetConfigRequest*, pb::Config* reply) {
  return OnEngine(context, [this, reply](Scheduler& s) {
    FillConfig(s, *reply);
    return absl::OkStatus();
  });
}

bool AdminService::SetPaused(Scheduler& scheduler, bool paused) {
  const bool was = scheduler.paused();
  scheduler.SetPaused(paused);
  const std::lock_guard lock(mutex_);
  live_.paused = paused;
  return was;
}

grpc::ServerUnaryReactor* AdminService::Pause(grpc::CallbackServerContext* context,
                                              const pb::PauseRequest*, pb::PauseResponse* reply) {
  if (edge_.draining()) {
    return Answer(context, absl::FailedPreconditionError(
                               "the server is draining: what runs is to end, not to wait"));
  }
  return OnEngine(context, [this, reply](Scheduler& s) {
    reply->set_was_paused(SetPaused(s, true));
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* AdminService::Resume(grpc::CallbackServerContext* context,
                                               const pb::ResumeRequest*,
                                               pb::ResumeResponse* reply) {
  return OnEngine(context, [this, reply](Scheduler& s) {
    reply->set_was_paused(SetPaused(s, false));
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* AdminService::Transfer(
    grpc::CallbackServerContext* context, const std::string& directory,
    const std::function<absl::StatusOr<CacheTransfer>(const std::string&)>& run,
    pb::CacheTransfer* reply) {
  absl::StatusOr<std::string> path = ResolveCachePath(facts_.options.cache_directory, directory);
  if (!path.ok()) return Answer(context, path.status());
  if (run == nullptr) {
    return Answer(context, absl::UnimplementedError("this model's cache can't be saved or loaded"));
  }
  return OnEngine(context, [&run, path = *std::move(path), reply](Scheduler&) -> absl::Status {
    ASSIGN_OR_RETURN(const CacheTransfer counts, run(path));
    ToProto(counts, *reply);
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* AdminService::SaveCache(grpc::CallbackServerContext* context,
                                                  const pb::SaveCacheRequest* request,
                                                  pb::CacheTransfer* reply) {
  return Transfer(context, request->directory(), control_.save, reply);
}

grpc::ServerUnaryReactor* AdminService::LoadCache(grpc::CallbackServerContext* context,
                                                  const pb::LoadCacheRequest* request,
                                                  pb::CacheTransfer* reply) {
  return Transfer(context, request->directory(), control_.load, reply);
}

}  // namespace quire
