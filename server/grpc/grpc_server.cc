// server/grpc/grpc_server.cc -- see grpc_server.h.
#include "server/grpc/grpc_server.h"

#include <grpc/support/log.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <spdlog/spdlog.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "grpc/health/v1/health.pb.h"
#include "server/grpc/call_interceptor.h"
#include "server/grpc/guarded_credentials.h"
#include "server/guards.h"

namespace quire {
namespace {

std::vector<std::string> ReflectedServices(std::vector<std::string> services) {
  // Names a symbol of health.proto, so that its descriptor is linked and can be told.
  (void)::grpc::health::v1::HealthCheckRequest::descriptor();
  for (const char* name : {"grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection",
                           "grpc.reflection.v1alpha.ServerReflection"}) {
    services.emplace_back(name);
  }
  return services;
}

int Ms(double seconds) { return static_cast<int>(std::min(seconds * 1e3, 2147483647.0)); }

void Apply(const ConnectionLimits& limits, grpc::ServerBuilder& builder) {
  if (limits.max_concurrent_streams > 0) {
    builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, limits.max_concurrent_streams);
  }
  // Clients may ping often and without calls: long prefills look idle to them.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                             Ms(limits.min_ping_interval_s));
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, limits.max_ping_strikes);
  // Finds clients that vanished without closing.
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, Ms(limits.keepalive_time_s));
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, Ms(limits.keepalive_timeout_s));
  if (limits.max_connection_idle_s > 0) {
    builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, Ms(limits.max_connection_idle_s));
  }
}

// gRPC's own log lines are for developers; what an operator must know, we say ourselves.
void LogOfGrpc(gpr_log_func_args* args) {
  spdlog::debug("grpc {}:{} {}", args->file, args->line, args->message);
}

std::string Address(const std::string& host, int32_t port) {
  const bool is_ipv6 = host.find(':') != std::string::npos && host.front() != '[';
  return is_ipv6 ? fmt::format("[{}]:{}", host, port) : fmt::format("{}:{}", host, port);
}

absl::Status CannotListen(const std::string& host, int32_t port, std::string_view reason) {
  return Error(absl::StatusCode::kUnavailable,
               "port={} on host={} can't be listened on: {}; choose another --port (0 = any)", port,
               host, reason);
}

}  // namespace

absl::Status CheckPort(const std::string& host, int32_t port) {
  ASSIGN_OR_RETURN(const AddressList found, Resolve(host, port));
  const int fd = ::socket(found->ai_family, found->ai_socktype | SOCK_CLOEXEC, 0);
  if (fd < 0) return CannotListen(host, port, std::strerror(errno));
  const int yes = 1;
  ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  const bool bound = ::bind(fd, found->ai_addr, found->ai_addrlen) == 0 && ::listen(fd, 1) == 0;
  const int error = errno;
  ::close(fd);
  return bound ? absl::OkStatus() : CannotListen(host, port, std::strerror(error));
}

ConnectionLimits ConnectionLimitsOf(const ServerOptions& o) {
  return {.max_connections = o.grpc_max_connections,
          .max_concurrent_streams = o.max_concurrent_streams,
          .keepalive_time_s = o.keepalive_time_s,
          .keepalive_timeout_s = o.keepalive_timeout_s,
          .min_ping_interval_s = o.min_ping_interval_s,
          .max_ping_strikes = o.max_ping_strikes,
          .max_connection_idle_s = o.max_connection_idle_s};
}

GrpcServer::GrpcServer(std::vector<std::string> services)
    : services_(std::move(services)), reflection_(ReflectedServices(services_)) {}
GrpcServer::~GrpcServer() = default;

absl::StatusOr<std::unique_ptr<GrpcServer>> GrpcServer::Start(const Options& options,
                                                              GenerationService& generation,
                                                              OtherServices& others) {
  gpr_set_log_function(LogOfGrpc);
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  std::vector<std::string> services = {"quire.v1.Generation"};
  for (const std::string& name : others.names()) services.push_back(name);
  std::unique_ptr<GrpcServer> self(new GrpcServer(std::move(services)));

  grpc::ServerBuilder builder;
  self->credentials_ =
      GuardedCredentials(options.guards->tls(), CheckOf(options.guards->access(), false));
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor;
  if (const int32_t limit = options.connections.max_connections; limit > 0) {
    ASSIGN_OR_RETURN(self->listener_, CountingListener::Listen(options.host, options.port, limit));
    self->port_ = self->listener_->port();
    acceptor = builder.experimental().AddExternalConnectionAcceptor(
        grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD,
        self->credentials_);
  } else {
    builder.AddListeningPort(Address(options.host, options.port), self->credentials_, &self->port_);
  }
  builder.RegisterService(&generation);
  others.Register(builder);
  builder.RegisterService(&self->reflection_);
  builder.SetMaxReceiveMessageSize(static_cast<int>(options.max_message_bytes));
  builder.SetMaxSendMessageSize(static_cast<int>(options.max_message_bytes));
  // A second daemon on the same port is a mistake, not a share.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.experimental().SetInterceptorCreators(
      CallInterceptors(options.guards->metrics().calls()));
  Apply(options.connections, builder);
  self->server_ = builder.BuildAndStart();
  if (self->server_ == nullptr || self->port_ == 0) {
    return CannotListen(options.host, options.port, "it is in use, or not an address of ours");
  }
  self->SetServing(true);
  if (self->listener_ != nullptr) self->listener_->Serve(std::move(acceptor));
  return self;
}

void GrpcServer::SetServing(bool serving) {
  grpc::HealthCheckServiceInterface* const health = server_->GetHealthCheckService();
  for (const std::string& name : services_) health->SetServingStatus(name, serving);
  health->SetServingStatus(serving);  // all known names, "" included
}

void GrpcServer::Shutdown(std::chrono::milliseconds grace) {
  if (server_ == nullptr) return;
  listener_.reset();
  server_->Shutdown(std::chrono::system_clock::now() + grace);
  server_->Wait();
}

}  // namespace quire
