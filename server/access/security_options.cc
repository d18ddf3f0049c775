// server/access/security_options.cc -- see security_options.h.
#include "server/access/security_options.h"

#include <unistd.h>

namespace quire {
namespace {

ClientCertificates Wanted(const std::string& cert_reqs) {
  if (cert_reqs == "optional" || cert_reqs == "1") return ClientCertificates::kOptional;
  if (cert_reqs == "required" || cert_reqs == "2") return ClientCertificates::kRequired;
  return ClientCertificates::kNone;
}

bool IsLoopback(const std::string& host) {
  return host == "localhost" || host == "::1" || host == "[::1]" || host.substr(0, 4) == "127.";
}

}  // namespace

absl::StatusOr<std::unique_ptr<AccessControl>> OpenAccess(const ServerOptions& o) {
  return AccessControl::Open(
      {.api_key_file = o.api_key_file, .open_reflection = o.open_reflection});
}

absl::StatusOr<std::unique_ptr<TlsFiles>> OpenTls(const ServerOptions& o) {
  if (o.ssl_certfile.empty()) return nullptr;
  return TlsFiles::Open({.certfile = o.ssl_certfile,
                         .keyfile = o.ssl_keyfile,
                         .ca_certs = o.ssl_ca_certs,
                         .client_certificates = Wanted(o.ssl_cert_reqs)});
}

absl::Status CheckSecurity(const ServerOptions& o) {
  if (o.ssl_certfile.empty() != o.ssl_keyfile.empty()) {
    return InvalidArgument("ssl_certfile={} and ssl_keyfile={} belong together; give both or none",
                           o.ssl_certfile, o.ssl_keyfile);
  }
  const bool wants_certificates = Wanted(o.ssl_cert_reqs) != ClientCertificates::kNone;
  if (wants_certificates && (o.ssl_ca_certs.empty() || o.ssl_certfile.empty())) {
    return InvalidArgument(
        "ssl_cert_reqs={} needs ssl_certfile, ssl_keyfile and ssl_ca_certs; give them",
        o.ssl_cert_reqs);
  }
  if (!wants_certificates && !o.ssl_ca_certs.empty()) {
    return InvalidArgument(
        "ssl_ca_certs={} would never be read; set ssl_cert_reqs to optional or required",
        o.ssl_ca_certs);
  }
  if (o.admin_socket.empty()) {
    return InvalidArgument("admin_socket= is empty; give a path, auto or none");
  }
  if (o.admin_port >= 0 && !IsLoopback(o.admin_host) && o.api_key_file.empty()) {
    return InvalidArgument(
        "admin_host={} would open Admin to the network without keys; set api_key_file, or "
        "admin_host=127.0.0.1",
        o.admin_host);
  }
  RETURN_IF_ERROR(OpenAccess(o).status());
  return OpenTls(o).status();
}

std::string DefaultAdminSocket(int32_t port) {
  return fmt::format("/tmp/quire-{}/admin-{}.sock", ::geteuid(), port);
}

}  // namespace quire
