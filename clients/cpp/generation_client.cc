#include "clients/cpp/generation_client.h"

#include <algorithm>
#include <utility>

namespace quire {
namespace {

// Puts the key into every call. gRPC's call credentials would do that with TLS only.
class KeyInterceptor final : public grpc::experimental::Interceptor {
 public:
  explicit KeyInterceptor(const std::string& value) : value_(value) {}
  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(
            grpc::experimental::InterceptionHookPoints::PRE_SEND_INITIAL_METADATA)) {
      methods->GetSendInitialMetadata()->insert({"authorization", value_});
    }
    methods->Proceed();
  }

 private:
  const std::string& value_;
};

class KeyInterceptors final : public grpc::experimental::ClientInterceptorFactoryInterface {
 public:
  explicit KeyInterceptors(const std::string& key) : value_("Bearer " + key) {}
  grpc::experimental::Interceptor* CreateClientInterceptor(
      grpc::experimental::ClientRpcInfo*) override {
    return new KeyInterceptor(value_);
  }

 private:
  const std::string value_;
};

// What a header may hold. gRPC aborts the process for anything else.
bool IsHeaderValue(const std::string& text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c >= ' ' && c <= '~'; });
}

void SetTimeout(grpc::ClientContext& context, const GenerationClient::Timeout& timeout) {
  if (timeout) context.set_deadline(std::chrono::system_clock::now() + *timeout);
}

}  // namespace

absl::StatusOr<std::shared_ptr<grpc::Channel>> Connect(const ConnectOptions& o) {
  if (o.client_certificate.empty() != o.client_key.empty()) {
    return InvalidArgument("client_certificate and client_key go together; one of them is empty");
  }
  if (!o.tls && !(o.root_certificates.empty() && o.client_key.empty())) {
    return InvalidArgument("certificates are given, but tls=false; set tls");
  }
  if (!IsHeaderValue(o.api_key)) {
    return InvalidArgument("api_key has a byte that is not printable ASCII, such as a line's end");
  }
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetMaxSendMessageSize(-1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  std::vector<std::unique_ptr<grpc::experimental::ClientInterceptorFactoryInterface>> interceptors;
  if (!o.api_key.empty()) interceptors.push_back(std::make_unique<KeyInterceptors>(o.api_key));
  const std::shared_ptr<grpc::ChannelCredentials> credentials =
      o.tls ? grpc::SslCredentials({o.root_certificates, o.client_key, o.client_certificate})
            : grpc::InsecureChannelCredentials();
  return grpc::experimental::CreateCustomChannelWithInterceptors(o.address, credentials, arguments,
                                                                 std::move(interceptors));
}

absl::Status ToStatus(const grpc::Status& status) {
  // The codes are the same numbers, by design of both.
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

GenerationClient::GenerationClient(std::shared_ptr<grpc::Channel> channel)
    : stub_(v1::Generation::NewStub(std::move(channel))) {}

absl::StatusOr<v1::GenerateResult> GenerationClient::Generate(const v1::GenerateRequest& request,
                                                              Timeout timeout) {
  grpc::ClientContext context;
  SetTimeout(context, timeout);
  v1::GenerateResult result;
  RETURN_IF_ERROR(ToStatus(stub_->GenerateUnary(&context, request, &result)));
  return result;
}

absl::Status GenerationClient::Stream(const v1::GenerateRequest& request, const OnEvent& on_event,
                                      Timeout timeout) {
  grpc::ClientContext context;
  SetTimeout(context, timeout);
  const std::unique_ptr<grpc::ClientReader<v1::GenerateEvent>> reader =
      stub_->Generate(&context, request);
  v1::GenerateEvent event;
  bool has_usage = false;  // the last event's mark
  while (reader->Read(&event)) {
    has_usage = event.has_usage();
    if (!on_event(event)) context.TryCancel();
  }
  absl::Status status = ToStatus(reader->Finish());
  if (status.ok() && !has_usage) {
    return absl::DataLossError("the stream ended before all outputs had ended");
  }
  return status;
}

absl::StatusOr<std::vector<TokenId>> GenerationClient::Tokenize(const std::string& text,
                                                                Timeout timeout) {
  grpc::ClientContext context;
  SetTimeout(context, timeout);
  v1::TokenizeRequest request;
  request.set_text(text);
  v1::TokenizeResponse response;
  RETURN_IF_ERROR(ToStatus(stub_->Tokenize(&context, request, &response)));
  return std::vector<TokenId>(response.token_ids().begin(), response.token_ids().end());
}

absl::StatusOr<std::string> GenerationClient::Detokenize(std::span<const TokenId> ids,
                                                         Timeout timeout) {
  grpc::ClientContext context;
  SetTimeout(context, timeout);
  v1::DetokenizeRequest request;
  request.mutable_token_ids()->Add(ids.begin(), ids.end());
  v1::DetokenizeResponse response;
  RETURN_IF_ERROR(ToStatus(stub_->Detokenize(&context, request, &response)));
  return response.text();
}

absl::StatusOr<std::vector<std::string>> GenerationClient::Abort(
    std::span<const std::string> request_ids, Timeout timeout) {
  grpc::ClientContext context;
  SetTimeout(context, timeout);
  v1::AbortRequest request;
  request.mutable_request_ids()->Add(request_ids.begin(), request_ids.end());
  v1::AbortResponse response;
  RETURN_IF_ERROR(ToStatus(stub_->Abort(&context, request, &response)));
  return std::vector<std::string>(response.aborted_request_ids().begin(),
                                  response.aborted_request_ids().end());
}

// ---- an answer from its events ----

v1::Output& AnswerCollector::output(uint32_t index) {
  auto& outputs = *result_.mutable_outputs();
  const auto at = std::find_if(outputs.begin(), outputs.end(), [&](const v1::Output& output) {
    return output.output_index() >= index;
  });
  if (at != outputs.end() && at->output_index() == index) return *at;
  const auto place = static_cast<int>(at - outputs.begin());
  result_.add_outputs()->set_output_index(index);
  for (int i = outputs.size() - 1; i > place; --i) outputs.SwapElements(i, i - 1);
  return outputs[place];
}

void AnswerCollector::Take(const v1::GenerateEvent& event) {
  result_.set_request_id(event.request_id());
  if (event.has_prompt_logprobs()) {
    result_.mutable_prompt_logprobs()->MergeFrom(event.prompt_logprobs().logprobs());
  }
  if (event.has_delta()) {
    const v1::Delta& delta = event.delta();
    v1::Output& out = output(delta.output_index());
    out.mutable_text()->append(delta.text());
    out.mutable_token_ids()->MergeFrom(delta.token_ids());
    out.mutable_logprobs()->MergeFrom(delta.logprobs());
  }
  if (event.has_finished()) {
    *output(event.finished().output_index()).mutable_finished() = event.finished();
  }
  if (event.has_usage()) *result_.mutable_usage() = event.usage();
  if (event.has_timings()) *result_.mutable_timings() = event.timings();
}

bool AnswerCollector::complete() const {
  return result_.has_usage() && !result_.outputs().empty() &&
         std::all_of(result_.outputs().begin(), result_.outputs().end(),
                     [](const v1::Output& output) { return output.has_finished(); });
}

}  // namespace quire
