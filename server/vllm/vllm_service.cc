// server/vllm/vllm_service.cc -- see vllm_service.h. What only tells: vllm_info.cc.
#include "server/vllm/vllm_service.h"

#include <cmath>
#include <memory>
#include <utility>

#include "server/admin/cache_actions.h"
#include "server/grpc/call.h"
#include "server/grpc/queued_stream.h"
#include "server/vllm/vllm_answer.h"
#include "server/vllm/vllm_kv_events.h"
#include "server/vllm/vllm_request.h"

namespace quire {
namespace {

namespace ve = ::vllm::grpc::engine;
namespace smg = ::smg::grpc::common;

// Of the archive, in one message.
constexpr size_t kChunkBytes = 64 << 10;

class GenerateReactor final : public GenerationStream<ve::GenerateResponse> {
 public:
  GenerateReactor(const Serving& serving, bool stream)
      : GenerationStream(serving.door.edge()), model_(serving.door.model()), stream_(stream) {}

  // Edge thread.
  void OnAccepted(const RequestStats& stats) override { answer_->Accepted(stats); }
  void OnPromptLogprobs(const std::vector<PromptLogprob>& logprobs) override {
    answer_->AddPromptLogprobs(logprobs);
  }
  void OnDelta(Delta delta) override { Send(answer_->Add(delta)); }
  void OnBranchEnd(const BranchEnd& end, const RequestStats* last) override {
    Send(answer_->End(end, last));
  }
  void OnClosed(const absl::Status& status, bool, const RequestStats& stats) override {
    const bool aborted = absl::IsCancelled(status) && answer_ != nullptr && answer_->told_aborted();
    if (absl::IsResourceExhausted(status)) DropQueue();
    if (status.ok() || aborted) Send(answer_->TakeCompletes(stats));
    CloseWith(aborted ? grpc::Status::OK : ToGrpc(WithNames(status, VllmFieldNames())));
  }

 private:
  absl::Status Begin(const Generation& generation) override {
    answer_ = std::make_unique<VllmAnswer>(generation, stream_, model_.eos_token_ids);
    const int64_t bytes = answer_->input_logprob_bytes();
    if (bytes <= static_cast<int64_t>(model_.max_message_bytes / 2)) return absl::OkStatus();
    return InvalidArgument(
        "sampling_params.prompt_logprobs={} of {} tokens may take {} bytes, limit is {} (half of "
        "max_message_bytes); ask for fewer, or use quire.v1",
        generation.request->prompt_logprobs, generation.request->prompt.size(), bytes,
        model_.max_message_bytes / 2);
  }
  void Send(VllmAnswer::Messages messages) {
    for (ve::GenerateResponse& message : messages) Enqueue(std::move(message));
  }

  const ServedModel& model_;
  const bool stream_;
  std::unique_ptr<VllmAnswer> answer_;  // once the request was let in
};

// Deletes itself; gRPC threads.
class TokenizerReactor final : public grpc::ServerWriteReactor<smg::GetTokenizerChunk> {
 public:
  explicit TokenizerReactor(absl::StatusOr<std::shared_ptr<const TokenizerArchive::Archive>> a) {
    if (a.ok()) {
      archive_ = *std::move(a);
      WriteNext();
    } else {
      Finish(ToGrpc(a.status()));
    }
  }
  void OnWriteDone(bool ok) override {
    if (!ok) return Finish(grpc::Status::CANCELLED);
    if (next_ == archive_->bytes.size()) return Finish(grpc::Status::OK);
    WriteNext();
  }
  void OnDone() override { delete this; }

 private:
  void WriteNext() {
    chunk_.set_data(archive_->bytes.substr(next_, kChunkBytes));
    next_ += chunk_.data().size();
    if (next_ == archive_->bytes.size()) chunk_.set_sha256(archive_->sha256);
    StartWrite(&chunk_);
  }

  std::shared_ptr<const TokenizerArchive::Archive> archive_;
  size_t next_ = 0;
  smg::GetTokenizerChunk chunk_;  // alive until OnWriteDone
};

class KvEventsReactor final : public KvEventCall<smg::KvEventBatch> {
 public:
  using KvEventCall::KvEventCall;

 private:
  smg::KvEventBatch Encode(const KvEventBatch& batch) override {
    return ToVllm(batch, facts(), next_event_id_);
  }

  uint64_t next_event_id_ = 1;
};

absl::Status Start(const Serving& serving, const grpc::CallbackServerContext& context,
                   const ve::GenerateRequest& request, GenerateReactor* reactor) {
  ASSIGN_OR_RETURN(pb::GenerateRequest ours, FromVllm(request));
  RETURN_IF_ERROR(ReadExtras(context, ours));
  const bool unary = !request.stream();
  return WithNames(StartGeneration(serving.door, context, ours, unary, reactor), VllmFieldNames());
}

}  // namespace

grpc::ServerWriteReactor<ve::GenerateResponse>* VllmService::Generate(
    Context* context, const ve::GenerateRequest* request) {
  auto* const reactor = new GenerateReactor(serving_, request->stream());
  if (const absl::Status s = Start(serving_, *context, *request, reactor); !s.ok()) {
    reactor->Refuse(s);
  }
  return reactor;
}

grpc::ServerUnaryReactor* VllmService::Embed(Context*, const ve::EmbedRequest*,
                                             ve::EmbedResponse*) {
  return Unimplemented("Embed is not served: the model generates text");
}

grpc::ServerUnaryReactor* VllmService::StartProfile(Context*, const smg::StartProfileRequest*,
                                                    smg::ProfileResponse*) {
  return Unimplemented("StartProfile is not served; start the server with profile_ops instead");
}

grpc::ServerUnaryReactor* VllmService::StopProfile(Context*, const smg::StopProfileRequest*,
                                                   smg::ProfileResponse*) {
  return Unimplemented("StopProfile is not served; start the server with profile_ops instead");
}

grpc::ServerUnaryReactor* VllmService::FlushCache(Context*, const smg::FlushCacheRequest* request,
                                                  smg::FlushCacheResponse* response) {
  // Nothing is waited for: what runs keeps what it holds.
  if (!(request->timeout_s() >= 0) || std::isinf(request->timeout_s())) {
    return AnswerNow(InvalidArgument("timeout_s={} must be at least 0", request->timeout_s()));
  }
  auto* const reactor = new SimpleReactor;
  const bool posted = serving_.engine.PostAdminCall({[this, reactor, response](Scheduler& s) {
    s.blocks().SetTime(s.now_ms());
    const FlushCounts counts = FlushPrefixes(s, std::nullopt);
    serving_.engine.UpdateSnapshot();
    response->set_success(true);
    response->set_message(fmt::format("{} cached prefix blocks were forgotten", counts.nodes));
    reactor->Finish(grpc::Status::OK);
  }});
  if (!posted) reactor->Finish(ToGrpc(absl::UnavailableError("the server is shutting down")));
  return reactor;
}

grpc::ServerUnaryReactor* VllmService::Abort(Context* context, const ve::AbortRequest* request,
                                             ve::AbortResponse*) {
  std::vector<std::string> ids(request->request_ids().begin(), request->request_ids().end());
  return AbortRequests(serving_.door, *context, std::move(ids), /*all=*/false,
                       [](const std::vector<std::string>&) {});
}

grpc::ServerWriteReactor<smg::GetTokenizerChunk>* VllmService::GetTokenizer(
    Context*, const smg::GetTokenizerRequest*) {
  return new TokenizerReactor(tokenizer_.Get());
}

grpc::ServerWriteReactor<smg::KvEventBatch>* VllmService::SubscribeKvEvents(
    Context*, const smg::SubscribeKvEventsRequest* request) {
  using Refused = RefusingStream<smg::KvEventBatch>;
  // This proto's clients take UNIMPLEMENTED for "not here", and stop asking.
  if (!serving_.kv_events.on()) return new Refused(absl::UnimplementedError(kKvEventsAreOff));
  if (const absl::Status s = serving_.kv_events.Enter(); !s.ok()) return new Refused(s);
  auto* const reactor = new KvEventsReactor(serving_.kv_events);
  // 0 is "from the current state": all batches if they are kept, else what they have led to.
  reactor->Open({.from = KvEventHub::From::kSequence,
                 .sequence = request->start_sequence_number(),
                 .snapshot_if_gone = request->start_sequence_number() == 0});
  return reactor;
}

}  // namespace quire
