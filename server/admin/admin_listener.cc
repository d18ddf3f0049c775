// server/admin/admin_listener.cc -- see admin_listener.h.
#include "server/admin/admin_listener.h"

#include <grpcpp/health_check_service_interface.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "server/grpc/call_interceptor.h"
#include "server/grpc/guarded_credentials.h"
#include "server/guards.h"

namespace quire {
namespace {

constexpr const char* kService = "quire.v1.Admin";

absl::Status Unusable(const std::string& path, std::string_view why) {
  return Error(absl::StatusCode::kUnavailable,
               "admin_socket={} can't be used: {}; choose another path, or none", path, why);
}

// The folder must be ours and nobody else's: whoever can enter it is an operator.
absl::Status PrepareFolder(const std::string& path) {
  const std::string folder = path.substr(0, path.rfind('/'));
  if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
    return Unusable(path, std::strerror(errno));
  }
  struct stat info {};
  if (::lstat(folder.c_str(), &info) != 0) return Unusable(path, std::strerror(errno));
  if (!S_ISDIR(info.st_mode) || info.st_uid != ::geteuid() || (info.st_mode & 077) != 0) {
    return Unusable(path, "its folder must belong to this user with mode 0700");
  }
  return absl::OkStatus();
}

// A file that nobody listens on any more is left from a daemon that was killed.
absl::Status PrepareSocket(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.front() != '/') return Unusable(path, "it is not an absolute path");
  if (path.size() >= sizeof(address.sun_path)) {
    return Unusable(path, fmt::format("it has {} bytes, at most {} are possible", path.size(),
                                      sizeof(address.sun_path) - 1));
  }
  RETURN_IF_ERROR(PrepareFolder(path));
  std::memcpy(address.sun_path, path.c_str(), path.size());
  const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return Unusable(path, std::strerror(errno));
  const bool answers =
      ::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
  ::close(fd);
  if (answers) return Unusable(path, "another daemon listens there");
  struct stat info {};
  if (::lstat(path.c_str(), &info) == 0 && !S_ISSOCK(info.st_mode)) {
    return Unusable(path, "it is a file");
  }
  ::unlink(path.c_str());
  return absl::OkStatus();
}

std::string HostPort(const std::string& host, int32_t port) {
  const bool is_ipv6 = host.find(':') != std::string::npos && host.front() != '[';
  return is_ipv6 ? fmt::format("[{}]:{}", host, port) : fmt::format("{}:{}", host, port);
}

}  // namespace

AdminListener::AdminListener()
    : reflection_({kService, "grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection",
                   "grpc.reflection.v1alpha.ServerReflection"}) {}

AdminListener::~AdminListener() { Shutdown(std::chrono::milliseconds(0)); }

absl::StatusOr<std::unique_ptr<AdminListener>> AdminListener::Start(const Options& options,
                                                                    AdminService& admin) {
  std::unique_ptr<AdminListener> self(new AdminListener);
  if (options.socket.empty() && options.port < 0) return self;
  grpc::ServerBuilder builder;
  if (!options.socket.empty()) {
    RETURN_IF_ERROR(PrepareSocket(options.socket));
    self->socket_credentials_ = GuardedCredentials(nullptr, nullptr);
    builder.AddListeningPort("unix:" + options.socket, self->socket_credentials_);
  }
  if (options.port >= 0) {
    self->host_ = options.host;
    self->port_credentials_ = GuardedCredentials(
        options.guards->tls(), CheckOf(options.guards->access(), /*admin_only=*/true));
    builder.AddListeningPort(HostPort(options.host, options.port), self->port_credentials_,
                             &self->port_);
  }
  builder.RegisterService(&admin);
  builder.RegisterService(&self->reflection_);
  builder.SetMaxReceiveMessageSize(static_cast<int>(options.max_message_bytes));
  builder.SetMaxSendMessageSize(static_cast<int>(options.max_message_bytes));
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.experimental().SetInterceptorCreators(
      CallInterceptors(options.guards->metrics().calls()));
  self->server_ = builder.BuildAndStart();
  if (self->server_ == nullptr) {
    return Error(absl::StatusCode::kUnavailable,
                 "admin_socket={} or admin_port={} on admin_host={} can't be listened on; choose "
                 "others, or none and -1",
                 options.socket, options.port, options.host);
  }
  self->socket_ = options.socket;
  self->SetServing(true);
  return self;
}

std::vector<std::string> AdminListener::addresses() const {
  std::vector<std::string> all;
  if (!socket_.empty()) all.push_back("unix:" + socket_);
  if (port_ > 0) all.push_back(HostPort(host_, port_));
  return all;
}

void AdminListener::SetServing(bool serving) {
  if (server_ == nullptr) return;
  grpc::HealthCheckServiceInterface* const health = server_->GetHealthCheckService();
  health->SetServingStatus(kService, serving);
  health->SetServingStatus(serving);  // all known names, "" included
}

void AdminListener::Shutdown(std::chrono::milliseconds grace) {
  if (server_ == nullptr) return;
  server_->Shutdown(std::chrono::system_clock::now() + grace);
  server_->Wait();
  server_.reset();
  if (!socket_.empty()) ::unlink(socket_.c_str());
}

}  // namespace quire
