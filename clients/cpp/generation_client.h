// clients/cpp/generation_client.h -- a client of quire.v1.Generation in C++; `quire generate` is
// one.
//
//   GenerationClient client(*Connect({.address = "localhost:50051"}));
//   quire::v1::GenerateRequest request;
//   request.set_text("Once upon a time");
//   absl::Status status = client.Stream(request, [](const quire::v1::GenerateEvent& event) {
//     std::cout << event.delta().text() << std::flush;
//     return true;  // false: enough
//   });
//
// Requests and events are the messages of proto/quire/v1/quire.proto, where fields are explained.
//
// Thread: any; calls block, and several may run at the same time.
// ERRORS of all calls: the server's status, code and message as they are; kDeadlineExceeded;
// kCancelled if the client had enough.
#pragma once

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/types.h"
#include "quire/v1/quire.grpc.pb.h"

namespace quire {

struct ConnectOptions {
  std::string address = "localhost:50051";  // host:port, [IPv6]:port or unix:path
  std::string api_key;                      // sent as a bearer token; empty: none
  bool tls = false;
  // PEM texts, with tls. Empty roots: those that gRPC comes with.
  std::string root_certificates;
  std::string client_certificate;  // with its key, for servers that ask who it is
  std::string client_key;
};

// Connects when it is first used. ERRORS: kInvalidArgument for options that contradict each other.
absl::StatusOr<std::shared_ptr<grpc::Channel>> Connect(const ConnectOptions& options);

// A gRPC status as ours.
absl::Status ToStatus(const grpc::Status& status);

class GenerationClient {
 public:
  using Timeout = std::optional<std::chrono::milliseconds>;  // nullopt: none
  // Returns false to end the call.
  using OnEvent = std::function<bool(const v1::GenerateEvent&)>;

  explicit GenerationClient(std::shared_ptr<grpc::Channel> channel);

  absl::StatusOr<v1::GenerateResult> Generate(const v1::GenerateRequest& request,
                                              Timeout timeout = {});
  // Each event as it comes; OK only if all outputs have ended.
  absl::Status Stream(const v1::GenerateRequest& request, const OnEvent& on_event,
                      Timeout timeout = {});

  absl::StatusOr<std::vector<TokenId>> Tokenize(const std::string& text, Timeout timeout = {});
  absl::StatusOr<std::string> Detokenize(std::span<const TokenId> ids, Timeout timeout = {});
  // Those of the ids that were in flight.
  absl::StatusOr<std::vector<std::string>> Abort(std::span<const std::string> request_ids,
                                                 Timeout timeout = {});

 private:
  const std::unique_ptr<v1::Generation::Stub> stub_;
};

// The answer that a stream's events add up to: what Generate returns.
class AnswerCollector {
 public:
  void Take(const v1::GenerateEvent& event);
  // All outputs have ended, and the last event has come.
  bool complete() const;
  const v1::GenerateResult& result() const { return result_; }

 private:
  v1::Output& output(uint32_t index);
  v1::GenerateResult result_;
};

}  // namespace quire
