// server/vllm/vllm_info.cc -- the calls of VllmEngine that tell about model, server and load.
#include <algorithm>
#include <ctime>

#include "server/grpc/call.h"
#include "server/grpc/engine_load.h"
#include "server/version.h"
#include "server/vllm/vllm_service.h"

namespace quire {
namespace {

namespace ve = ::vllm::grpc::engine;

int32_t Capped(int64_t value) {
  return static_cast<int32_t>(std::clamp<int64_t>(value, 0, INT32_MAX));
}

// ISO 8601, UTC.
std::string Now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  char text[32];
  return std::string(text, std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%S+00:00", &parts));
}

}  // namespace

grpc::ServerUnaryReactor* VllmService::HealthCheck(Context*, const ve::HealthCheckRequest*,
                                                   ve::HealthCheckResponse* response) {
  const bool draining = serving_.door.edge().draining();
  response->set_healthy(!draining);
  response->set_message(draining ? "the server is shutting down" : "ok");
  return AnswerNow();
}

grpc::ServerUnaryReactor* VllmService::GetModelInfo(Context*, const ve::GetModelInfoRequest*,
                                                    ve::GetModelInfoResponse* response) {
  const ServedModel& model = serving_.door.model();
  const ModelConfig& config = serving_.facts.config;
  response->set_model_path(serving_.facts.options.model);
  response->set_tokenizer_path(serving_.facts.options.model);
  response->set_is_generation(true);
  response->set_max_context_length(static_cast<uint32_t>(model.max_model_len));
  response->set_max_req_input_len(model.max_model_len - 1);
  response->set_vocab_size(static_cast<uint32_t>(model.vocab_size));
  response->set_served_model_name(model.name);
  response->set_model_type(config.architecture);
  response->add_architectures(config.architecture);
  for (const TokenId id : model.eos_token_ids) response->add_eos_token_ids(id);
  response->set_pad_token_id(std::max(0, config.pad_token_id));
  response->set_bos_token_id(std::max(0, config.bos_token_id));
  response->set_default_sampling_params_json(config.default_sampling_json);
  return AnswerNow();
}

grpc::ServerUnaryReactor* VllmService::GetServerInfo(Context*, const ve::GetServerInfoRequest*,
                                                     ve::GetServerInfoResponse* response) {
  const ServerFacts& facts = serving_.facts;
  const EngineLoad load = LoadOf(serving_.engine.snapshot(), serving_.layout);
  response->set_active_requests(
      static_cast<uint32_t>(load.running_requests + load.waiting_requests));
  response->set_is_paused(serving_.paused());
  response->set_uptime_seconds(
      std::chrono::duration<double>(std::chrono::steady_clock::now() - facts.start).count());
  response->set_server_type("quire");
  response->set_data_parallel_size(1);
  response->set_kv_cache_dtype(facts.kv_cache_dtype);
  response->set_block_size(load.block_size);
  response->set_attention_backend(facts.attention);
  response->set_model_dtype(facts.compute);
  response->set_max_num_seqs(facts.options.max_num_seqs);
  // Where a grammar begins to hold: with the first token.
  response->set_constrained_decoding_start("first_token");
  return AnswerNow();
}

grpc::ServerUnaryReactor* VllmService::GetLoads(Context*, const ve::GetLoadsRequest* request,
                                                ve::GetLoadsResponse* response) {
  if (request->has_dp_rank() && request->dp_rank() != 0) {
    return AnswerNow(
        InvalidArgument("dp_rank={} is not here; this engine is rank 0", request->dp_rank()));
  }
  const EngineLoad load = LoadOf(serving_.engine.snapshot(), serving_.layout);
  response->set_timestamp(Now());
  response->set_version(Version());
  response->set_dp_rank_count(1);
  ve::SchedulerLoad& rank = *response->add_loads();
  rank.set_num_running_reqs(load.running_requests);
  rank.set_num_waiting_reqs(load.waiting_requests);
  rank.set_num_total_reqs(load.running_requests + load.waiting_requests);
  rank.set_num_used_tokens(Capped(load.used_blocks * load.block_size));
  rank.set_max_total_num_tokens(Capped(load.total_blocks * load.block_size));
  rank.set_token_usage(load.usage());
  rank.set_gen_throughput(serving_.token_rate.PerSecond(std::chrono::steady_clock::now()));
  rank.set_cache_hit_rate(load.hit_rate());
  rank.set_max_running_requests(serving_.facts.options.max_num_seqs);
  rank.set_utilization(static_cast<double>(load.running_requests) /
                       static_cast<double>(serving_.facts.options.max_num_seqs));
  return AnswerNow();
}

}  // namespace quire
