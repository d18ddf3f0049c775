#include "server/cli/client.h"

#include <fmt/format.h>
#include <grpc/support/log.h>

#include <CLI/CLI.hpp>
#include <vector>

#include "base/status.h"
#include "server/cli/commands.h"

namespace quire {

int Fail(int code, const char* message) {
  std::fprintf(stderr, "quire: error: %s\n", message);
  return code;
}

void ServerAddress::AddOptions(CLI::App& app) {
  app.add_option("--host", host, "of the server")->capture_default_str();
  app.add_option("--port", port, "of the server")
      ->check(CLI::Range(1, 65535))
      ->capture_default_str();
}

std::string ServerAddress::ToString() const {
  return host.find(':') == std::string::npos ? fmt::format("{}:{}", host, port)
                                             : fmt::format("[{}]:{}", host, port);
}

std::shared_ptr<grpc::Channel> ServerAddress::Connect() const {
  gpr_set_log_function([](gpr_log_func_args*) {});  // the status says it
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetMaxSendMessageSize(-1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  // Kept until the process ends: taking the last channel down races with gRPC 1.51's own callback
  // thread, which then aborts (one `quire bench serve` in thirty).
  static auto* const channels = new std::vector<std::shared_ptr<grpc::Channel>>;
  channels->push_back(
      grpc::CreateCustomChannel(ToString(), grpc::InsecureChannelCredentials(), arguments));
  return channels->back();
}

std::string Explain(const grpc::Status& status, const ServerAddress& address) {
  const std::string code =
      absl::StatusCodeToString(static_cast<absl::StatusCode>(status.error_code()));
  if (status.error_code() == grpc::StatusCode::UNAVAILABLE) {
    return fmt::format("{}: {} ({}); is `quire serve` running there?", code, status.error_message(),
                       address.ToString());
  }
  return fmt::format("{}: {}", code, status.error_message());
}

}  // namespace quire
