#include "server/cli/client.h"

#include <fmt/format.h>
#include <glob.h>
#include <grpc/support/log.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <utility>
#include <vector>

#include "base/status.h"
#include "clients/cpp/generation_client.h"
#include "server/access/read_file.h"
#include "server/access/security_options.h"
#include "server/cli/commands.h"

namespace quire {
namespace {

std::string FileOrDie(const std::string& path) {
  if (path.empty()) return {};
  constexpr size_t kMaxPemBytes = 1 << 20;
  absl::StatusOr<std::string> text = ReadSmallFile(path, kMaxPemBytes);
  if (!text.ok()) std::exit(Fail(kExitUsage, Message(text.status()).c_str()));
  return *std::move(text);
}

std::shared_ptr<grpc::Channel> ConnectTo(const ServerAddress& a, const std::string& target) {
  gpr_set_log_function([](gpr_log_func_args*) {});  // the status says it
  ConnectOptions options{.address = target};
  if (const char* const key = std::getenv("QUIRE_API_KEY"); key != nullptr) options.api_key = key;
  const bool tls = a.tls || !a.ca_cert.empty() || !a.cert.empty();
  if (tls && target.rfind("unix:", 0) != 0) {
    options.tls = true;
    options.root_certificates = FileOrDie(a.ca_cert);
    options.client_certificate = FileOrDie(a.cert);
    options.client_key = FileOrDie(a.key);
  }
  absl::StatusOr<std::shared_ptr<grpc::Channel>> channel = Connect(options);
  if (!channel.ok()) std::exit(Fail(kExitUsage, Message(channel.status()).c_str()));
  // Kept until the process ends: taking the last channel down races with gRPC 1.51's own callback
  // thread, which then aborts (one `quire bench serve` in thirty).
  static auto* const channels = new std::vector<std::shared_ptr<grpc::Channel>>;
  channels->push_back(*std::move(channel));
  return channels->back();
}

std::string HostPort(const std::string& host, int32_t port) {
  return host.find(':') == std::string::npos ? fmt::format("{}:{}", host, port)
                                             : fmt::format("[{}]:{}", host, port);
}

// Root may look after the daemon of another user, such as that of its container.
std::string FindSocket(int32_t port) {
  std::string own = DefaultAdminSocket(port);
  if (::access(own.c_str(), F_OK) == 0 || ::geteuid() != 0) return own;
  glob_t found{};
  const std::string pattern = fmt::format("/tmp/quire-*/admin-{}.sock", port);
  if (::glob(pattern.c_str(), 0, nullptr, &found) == 0 && found.gl_pathc == 1) {
    own = found.gl_pathv[0];
  }
  ::globfree(&found);
  return own;
}

}  // namespace

int Fail(int code, const char* message) {
  std::fprintf(stderr, "quire: error: %s\n", message);
  return code;
}

void ServerAddress::AddOptions(CLI::App& app) {
  app.add_option("--host", host, "of the server")->capture_default_str();
  app.add_option("--port", port, "of the server")
      ->check(CLI::Range(1, 65535))
      ->capture_default_str();
  app.add_flag("--tls", tls, "the server speaks TLS");
  app.add_option("--ca-cert", ca_cert, "PEM file that the server's certificate is checked with")
      ->type_name("path");
  auto* const shown = app.add_option("--cert", cert, "PEM file of a client certificate");
  auto* const its_key = app.add_option("--key", key, "PEM file of its key");
  shown->type_name("path")->needs(its_key);
  its_key->type_name("path")->needs(shown);
  app.footer("A key is read from the environment variable QUIRE_API_KEY.");
}

void ServerAddress::AddAdminOptions(CLI::App& app) {
  AddOptions(app);
  app.add_option("--admin-socket", admin_socket,
                 "Unix socket of Admin [where a daemon on --port of this machine has it]")
      ->type_name("path");
  app.add_option("--admin-port", admin_port, "TCP port of Admin on --host, instead of the socket")
      ->check(CLI::Range(1, 65535));
}

std::string ServerAddress::ToString() const { return HostPort(host, port); }

std::shared_ptr<grpc::Channel> ServerAddress::Connect() const {
  return ConnectTo(*this, ToString());
}

std::string ServerAddress::AdminTarget() const {
  if (!admin_socket.empty()) return "unix:" + admin_socket;
  return admin_port > 0 ? HostPort(host, admin_port) : "unix:" + FindSocket(port);
}

std::shared_ptr<grpc::Channel> ServerAddress::ConnectAdmin() const {
  return ConnectTo(*this, AdminTarget());
}

std::string Explain(const absl::Status& status, const std::string& target) {
  const std::string code = absl::StatusCodeToString(status.code());
  if (absl::IsUnavailable(status)) {
    return fmt::format("{}: {} ({}); is `quire serve` running there?", code, Message(status),
                       target);
  }
  return fmt::format("{}: {}", code, Message(status));
}

std::string Explain(const absl::Status& status, const ServerAddress& address) {
  return Explain(status, address.ToString());
}

}  // namespace quire
