// server/kserve/kserve_info.cc -- the calls of KServe that tell about server and model.
#include "server/grpc/call.h"
#include "server/kserve/infer_request.h"
#include "server/kserve/kserve_service.h"
#include "server/version.h"

namespace quire {
namespace {

constexpr const char* kPlatform = "quire";

inference::DataType TypeOf(std::string_view datatype) {
  if (datatype == "BYTES") return inference::TYPE_STRING;
  if (datatype == "BOOL") return inference::TYPE_BOOL;
  return datatype == "FP32" ? inference::TYPE_FP32 : inference::TYPE_UINT32;
}

}  // namespace

KserveService::Unary* KserveService::ServerLive(Context*, const inference::ServerLiveRequest*,
                                                inference::ServerLiveResponse* response) {
  response->set_live(true);
  return AnswerNow();
}

KserveService::Unary* KserveService::ServerReady(Context*, const inference::ServerReadyRequest*,
                                                 inference::ServerReadyResponse* response) {
  response->set_ready(!serving_.door.edge().draining());
  return AnswerNow();
}

KserveService::Unary* KserveService::ModelReady(Context*,
                                                const inference::ModelReadyRequest* request,
                                                inference::ModelReadyResponse* response) {
  const bool is_ours =
      CheckKserveModel(request->name(), request->version(), serving_.door.model()).ok();
  response->set_ready(is_ours && !serving_.door.edge().draining());
  return AnswerNow();
}

KserveService::Unary* KserveService::ServerMetadata(Context*,
                                                    const inference::ServerMetadataRequest*,
                                                    inference::ServerMetadataResponse* response) {
  response->set_name("quire");
  response->set_version(Version());
  response->add_extensions("statistics");
  response->add_extensions("model_repository");
  return AnswerNow();
}

KserveService::Unary* KserveService::ModelMetadata(Context*,
                                                   const inference::ModelMetadataRequest* request,
                                                   inference::ModelMetadataResponse* response) {
  const ServedModel& model = serving_.door.model();
  const absl::Status status = CheckKserveModel(request->name(), request->version(), model);
  if (!status.ok()) return AnswerNow(status);
  response->set_name(model.name);
  response->add_versions(kKserveModelVersion);
  response->set_platform(kPlatform);
  const auto add = [](const KserveTensor& tensor, auto& out) {
    out.set_name(tensor.name);
    out.set_datatype(tensor.datatype);
    out.add_shape(tensor.elements);
  };
  for (const KserveTensor& tensor : kKserveInputs) add(tensor, *response->add_inputs());
  for (const KserveTensor& tensor : kKserveOutputs) add(tensor, *response->add_outputs());
  return AnswerNow();
}

KserveService::Unary* KserveService::ModelConfig(Context*,
                                                 const inference::ModelConfigRequest* request,
                                                 inference::ModelConfigResponse* response) {
  const ServedModel& model = serving_.door.model();
  const absl::Status status = CheckKserveModel(request->name(), request->version(), model);
  if (!status.ok()) return AnswerNow(status);
  inference::ModelConfig& config = *response->mutable_config();
  config.set_name(model.name);
  config.set_backend(kPlatform);
  config.set_max_batch_size(0);  // one element a tensor; requests are batched by the scheduler
  for (const KserveTensor& tensor : kKserveInputs) {
    auto& input = *config.add_input();
    input.set_name(tensor.name);
    input.set_data_type(TypeOf(tensor.datatype));
    input.add_dims(tensor.elements);
    input.set_optional(std::string_view(tensor.name) != "text_input");
  }
  for (const KserveTensor& tensor : kKserveOutputs) {
    auto& output = *config.add_output();
    output.set_name(tensor.name);
    output.set_data_type(TypeOf(tensor.datatype));
    output.add_dims(tensor.elements);
  }
  // A streamed request has many responses.
  config.mutable_model_transaction_policy()->set_decoupled(true);
  return AnswerNow();
}

// All requests of this server, whichever way they came.
KserveService::Unary* KserveService::ModelStatistics(
    Context*, const inference::ModelStatisticsRequest* request,
    inference::ModelStatisticsResponse* response) {
  const ServedModel& model = serving_.door.model();
  const absl::Status status = CheckKserveModel(request->name(), request->version(), model);
  if (!status.ok()) return AnswerNow(status);
  const RequestCounts counts = serving_.door.edge().counts();
  auto& stats = *response->add_model_stats();
  stats.set_name(model.name);
  stats.set_version(kKserveModelVersion);
  stats.set_inference_count(counts.ok);
  stats.set_execution_count(static_cast<uint64_t>(serving_.engine.snapshot().scheduler.steps));
  stats.mutable_inference_stats()->mutable_success()->set_count(counts.ok);
  stats.mutable_inference_stats()->mutable_fail()->set_count(counts.cancelled + counts.deadline +
                                                             counts.failed);
  return AnswerNow();
}

KserveService::Unary* KserveService::RepositoryIndex(
    Context*, const inference::RepositoryIndexRequest* request,
    inference::RepositoryIndexResponse* response) {
  if (!request->repository_name().empty()) {
    return AnswerNow(InvalidArgument("repository_name={} is not known; leave it out",
                                     request->repository_name().substr(0, 64)));
  }
  const bool ready = !serving_.door.edge().draining();
  if (request->ready() && !ready) return AnswerNow();
  auto& entry = *response->add_models();
  entry.set_name(serving_.door.model().name);
  entry.set_version(kKserveModelVersion);
  entry.set_state(ready ? "READY" : "UNAVAILABLE");
  if (!ready) entry.set_reason("the server is shutting down");
  return AnswerNow();
}

}  // namespace quire
