// server/openengine/oe_control.cc -- see oe_control.h.
#include "server/openengine/oe_control.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "server/events/kv_event_publisher.h"
#include "server/grpc/call.h"
#include "server/grpc/engine_load.h"
#include "server/openengine/oe_kv_events.h"
#include "server/version.h"

namespace quire {
namespace {

namespace oe = ::openengine::v1;

// Of the contract: as it was released in v0.1.0.
constexpr uint32_t kSchemaRevision = 1;
constexpr const char* kSchemaRelease = "v0.1.0";
constexpr uint32_t kMaxTopN = 20;
constexpr uint32_t kMaxSequences = 128;

int64_t UnixNanos() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

absl::Status CheckModel(const std::string& name, const ServedModel& model) {
  if (name.empty() || name == model.name) return absl::OkStatus();
  return Error(absl::StatusCode::kNotFound, "model={} is not served here; {} is",
               name.substr(0, 64), model.name);
}

bool IsRankZero(const google::protobuf::RepeatedField<uint32_t>& ranks) {
  return ranks.empty() || std::find(ranks.begin(), ranks.end(), 0u) != ranks.end();
}

class KvEventsReactor final : public KvEventCall<oe::SubscribeKvEventsResponse> {
 public:
  using KvEventCall::KvEventCall;

 private:
  oe::SubscribeKvEventsResponse Encode(const KvEventBatch& batch) override {
    return ToOe(batch, facts());
  }
  std::optional<oe::SubscribeKvEventsResponse> LastWord(const absl::Status& status) override {
    return OeKvEventsError(status);
  }
};

void FillHealth(bool draining, oe::HealthResponse& response) {
  response.set_state(draining ? oe::HEALTH_STATE_DRAINING : oe::HEALTH_STATE_READY);
}

}  // namespace

OeControl::OeControl(const Serving& serving)
    : serving_(serving),
      instance_id_(fmt::format("quire-{}-{:x}", ::getpid(), static_cast<uint64_t>(UnixNanos()))) {}

OeControl::Unary* OeControl::GetServerInfo(Context*, const oe::GetServerInfoRequest*,
                                           oe::ServerInfo* response) {
  const ServerOptions& options = serving_.facts.options;
  const EngineLoad load = LoadOf(serving_.engine.snapshot(), serving_.layout);
  response->set_engine_name("quire");
  response->set_engine_version(Version());
  response->set_engine_role(oe::ENGINE_ROLE_AGGREGATED);
  response->set_instance_id(instance_id_);
  response->add_supported_models(serving_.door.model().name);
  response->set_schema_revision(kSchemaRevision);
  response->set_minimum_client_revision(kSchemaRevision);
  response->set_schema_release(kSchemaRelease);
  oe::ParallelismInfo& parallelism = *response->mutable_parallelism();
  parallelism.set_tensor_parallel_size(1);
  parallelism.set_pipeline_parallel_size(1);
  parallelism.set_data_parallel_size(1);
  parallelism.set_data_parallel_rank(0);
  response->mutable_kv_connector()->set_enabled(false);
  response->mutable_kv_connector()->set_supports_drain(true);
  oe::DeploymentCapacity& capacity = *response->mutable_capacity();
  capacity.set_kv_block_size(static_cast<uint32_t>(load.block_size));
  capacity.set_total_kv_blocks(static_cast<uint64_t>(load.total_blocks));
  capacity.set_max_running_requests(static_cast<uint64_t>(options.max_num_seqs));
  capacity.set_max_batched_tokens(static_cast<uint64_t>(options.max_num_batched_tokens));
  capacity.set_max_loras(0);
  return AnswerNow();
}

OeControl::Unary* OeControl::GetModelInfo(Context*, const oe::GetModelInfoRequest* request,
                                          oe::ModelInfo* response) {
  const ServedModel& model = serving_.door.model();
  const absl::Status status = CheckModel(request->model(), model);
  if (!status.ok()) return AnswerNow(status);
  response->set_model_id(model.name);
  response->set_served_model_name(model.name);
  response->set_max_context_length(static_cast<uint32_t>(model.max_model_len));
  response->set_max_output_tokens(static_cast<uint32_t>(model.max_model_len - 1));
  response->set_supports_text_input(true);
  response->set_supports_token_ids_input(true);
  response->set_supports_lora(false);
  response->set_supports_multimodal(false);
  oe::GenerationCapabilities& can = *response->mutable_generation();
  for (oe::LogprobCapabilities* logprobs :
       {can.mutable_prompt_logprobs(), can.mutable_output_logprobs()}) {
    logprobs->set_supported(true);
    logprobs->set_max_top_n(kMaxTopN);
    logprobs->add_candidate_selection_modes(oe::CANDIDATE_TOKEN_SELECTION_MODE_TOP_N);
  }
  can.mutable_output_logprobs()->add_candidate_selection_modes(
      oe::CANDIDATE_TOKEN_SELECTION_MODE_TOKEN_IDS);
  can.mutable_guided_decoding()->set_supported(true);
  for (int mode = oe::GUIDED_DECODING_MODE_JSON_SCHEMA;
       mode <= oe::GUIDED_DECODING_MODE_JSON_OBJECT; ++mode) {
    can.mutable_guided_decoding()->add_modes(static_cast<oe::GuidedDecodingMode>(mode));
  }
  can.set_max_num_sequences(kMaxSequences);
  can.set_supports_priority(true);
  can.set_supports_stop_in_output(true);
  can.set_supports_cache_salt(true);
  can.set_supports_prefix_cache_bypass(true);
  return AnswerNow();
}

OeControl::Unary* OeControl::GetLoad(Context*, const oe::GetLoadRequest* request,
                                     oe::LoadInfo* response) {
  const EngineLoad load = LoadOf(serving_.engine.snapshot(), serving_.layout);
  response->set_instance_id(instance_id_);
  response->set_timestamp_unix_nanos(static_cast<uint64_t>(UnixNanos()));
  const auto fill = [&load](auto& out) {
    out.set_running_requests(static_cast<uint32_t>(load.running_requests));
    out.set_queued_requests(static_cast<uint32_t>(load.waiting_requests));
    out.set_used_kv_blocks(static_cast<uint64_t>(load.used_blocks));
    out.set_total_kv_blocks(static_cast<uint64_t>(load.total_blocks));
  };
  fill(*response);
  response->set_running_tokens(static_cast<uint64_t>(load.used_blocks * load.block_size));
  response->set_active_kv_sessions(0);  // caches are not transferred here
  auto& attributes = *response->mutable_attributes()->mutable_fields();
  attributes["gen_throughput"].set_number_value(
      serving_.token_rate.PerSecond(std::chrono::steady_clock::now()));
  attributes["cache_hit_rate"].set_number_value(load.hit_rate());
  if (request->include_per_rank()) {
    oe::RankLoadInfo& rank = *response->add_ranks();
    rank.set_data_parallel_rank(0);
    fill(rank);
  }
  return AnswerNow();
}

OeControl::Unary* OeControl::Health(Context*, const oe::HealthRequest* request,
                                    oe::HealthResponse* response) {
  const absl::Status status = CheckModel(request->model(), serving_.door.model());
  if (!status.ok()) return AnswerNow(status);
  if (request->role() != oe::ENGINE_ROLE_UNSPECIFIED &&
      request->role() != oe::ENGINE_ROLE_AGGREGATED) {
    return AnswerNow(absl::FailedPreconditionError(
        "role: this engine does prefill and decode, ENGINE_ROLE_AGGREGATED"));
  }
  const bool draining = serving_.door.edge().draining();
  FillHealth(draining, *response);
  if (!request->include_inference_probe()) return AnswerNow();
  // The engine's thread gets to it between two steps: it steps.
  auto* const reactor = new SimpleReactor;
  const bool posted = serving_.engine.PostAdminCall({[reactor, response](Scheduler&) {
    oe::HealthCheck& check = *response->add_checks();
    check.set_name("engine");
    check.set_state(oe::HEALTH_STATE_READY);
    check.set_message("the engine steps");
    reactor->Finish(grpc::Status::OK);
  }});
  if (!posted) {
    oe::HealthCheck& check = *response->add_checks();
    check.set_name("engine");
    check.set_state(oe::HEALTH_STATE_NOT_READY);
    check.set_message("the engine has ended");
    reactor->Finish(grpc::Status::OK);
  }
  return reactor;
}

OeControl::Unary* OeControl::Abort(Context* context, const oe::AbortRequest* request,
                                   oe::AbortResponse* response) {
  std::vector<std::string> ids;
  switch (request->target_case()) {
    case oe::AbortRequest::kRequestId:
      ids.push_back(request->request_id());
      break;
    case oe::AbortRequest::kAllRequests:
      break;
    case oe::AbortRequest::kKvSession:
      return Unimplemented("kv_session: caches are not transferred here");
    case oe::AbortRequest::TARGET_NOT_SET:
      return AnswerNow(InvalidArgument("target is not set; give request_id or all_requests"));
  }
  return AbortRequests(serving_.door, *context, std::move(ids), request->has_all_requests(),
                       [response](const std::vector<std::string>& aborted) {
                         response->set_status(aborted.empty() ? oe::ABORT_STATUS_ALREADY_FINISHED
                                                              : oe::ABORT_STATUS_ABORTED);
                         response->set_message(fmt::format("{} were in flight", aborted.size()));
                       });
}

OeControl::Unary* OeControl::LoadLora(Context*, const oe::LoadLoraRequest*, oe::LoadLoraResponse*) {
  return Unimplemented("no adapters are served");
}

OeControl::Unary* OeControl::UnloadLora(Context*, const oe::UnloadLoraRequest*,
                                        oe::UnloadLoraResponse*) {
  return Unimplemented("no adapters are served");
}

OeControl::Unary* OeControl::ListLoras(Context*, const oe::ListLorasRequest*,
                                       oe::ListLorasResponse*) {
  return AnswerNow();  // none
}

OeControl::Unary* OeControl::GetKvEventSources(Context*,
                                               const oe::GetKvEventSourcesRequest* request,
                                               oe::GetKvEventSourcesResponse* response) {
  const KvEventPublisher* const publisher = serving_.publisher();
  oe::KvEventSource source;
  if (publisher != nullptr && IsRankZero(request->data_parallel_ranks()) &&
      FillZmqSource(serving_.facts.options, publisher->bound_endpoint(),
                    publisher->bound_replay_endpoint(), source)) {
    *response->add_sources() = std::move(source);
  }
  return AnswerNow();
}

grpc::ServerWriteReactor<oe::SubscribeKvEventsResponse>* OeControl::SubscribeKvEvents(
    Context*, const oe::SubscribeKvEventsRequest* request) {
  using Refused = RefusingStream<oe::SubscribeKvEventsResponse>;
  for (const uint32_t rank : request->data_parallel_ranks()) {
    if (rank == 0) continue;
    return new Refused(
        InvalidArgument("data_parallel_ranks={} is not here; this engine is rank 0", rank));
  }
  if (!serving_.kv_events.on()) return new Refused(absl::FailedPreconditionError(kKvEventsAreOff));
  if (const absl::Status s = serving_.kv_events.Enter(); !s.ok()) return new Refused(s);
  auto* const reactor = new KvEventsReactor(serving_.kv_events);
  KvEventHub::Start start{.sequence = request->start_sequence_number(),
                          .snapshot_if_gone = request->include_snapshot()};
  // 0 is what a client sends that names no number.
  if (start.sequence > 0) {
    start.from = KvEventHub::From::kSequence;
  } else if (request->include_snapshot()) {
    start.from = KvEventHub::From::kSnapshot;
  }
  reactor->Open(start);
  return reactor;
}

}  // namespace quire
