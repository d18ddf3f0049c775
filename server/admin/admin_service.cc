// server/admin/admin_service.cc -- see admin_service.h.
#include "server/admin/admin_service.h"

#include "server/admin/process_info.h"
#include "server/convert.h"
#include "server/version.h"

namespace quire {
namespace {

grpc::ServerUnaryReactor* Answer(grpc::CallbackServerContext* context) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

uint32_t U32(int64_t v) { return static_cast<uint32_t>(v); }
uint64_t U64(int64_t v) { return static_cast<uint64_t>(v); }

}  // namespace

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
  info->set_max_num_seqs(U32(o.max_num_seqs));
  info->set_max_num_batched_tokens(U32(o.max_num_batched_tokens));
  info->set_max_queued_requests(U32(o.max_queued_requests));
  info->set_max_message_bytes(U64(o.max_message_bytes));
  info->set_max_stream_buffer_bytes(U64(o.max_stream_buffer_bytes));
  info->set_resident_bytes(U64(ResidentBytes()));
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
  info->set_kv_cache_dtype(facts_.kv_cache_dtype);
  info->set_num_threads(U32(facts_.num_threads));
  return Answer(context);
}

grpc::ServerUnaryReactor* AdminService::GetBlockStats(grpc::CallbackServerContext* context,
                                                      const pb::GetBlockStatsRequest*,
                                                      pb::BlockStats* stats) {
  ToProto(engine_.snapshot(), facts_.options.block_size, *stats);
  return Answer(context);
}

}  // namespace quire
