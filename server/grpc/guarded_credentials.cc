// server/grpc/guarded_credentials.cc -- see guarded_credentials.h.
#include "server/grpc/guarded_credentials.h"

#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <grpc/slice.h>

#include <string>
#include <utility>

namespace quire {
namespace {

std::string_view View(const grpc_slice& slice) {
  return {reinterpret_cast<const char*>(GRPC_SLICE_START_PTR(slice)), GRPC_SLICE_LENGTH(slice)};
}

void Take(const grpc_slice& value, std::string& out, bool& repeated) {
  if (!out.empty()) repeated = true;
  out = std::string(View(value));
}

void Process(void* state, grpc_auth_context*, const grpc_metadata* metadata, size_t size,
             grpc_process_auth_metadata_done_cb done, void* user_data) {
  std::string_view path;
  Credentials credentials;
  for (size_t i = 0; i < size; ++i) {
    const std::string_view key = View(metadata[i].key);
    if (key == ":path") path = View(metadata[i].value);
    if (key == "authorization") {
      Take(metadata[i].value, credentials.authorization, credentials.repeated);
    }
    if (key == "x-api-key") {
      Take(metadata[i].value, credentials.x_api_key, credentials.repeated);
    }
  }
  const absl::Status status = (*static_cast<CallCheck*>(state))(path, credentials);
  done(user_data, nullptr, 0, nullptr, 0, static_cast<grpc_status_code>(status.code()),
       status.ok() ? nullptr : Message(status).c_str());
}

void DestroyCheck(void* state) { delete static_cast<CallCheck*>(state); }

// What gRPC asks before each handshake. It keeps a factory of handshakes per configuration, and the
// old one if a new one can't be made.
struct Fetcher {
  const TlsFiles* tls;
  uint64_t version = 0;  // gRPC calls under a lock of its own
};

grpc_ssl_certificate_config_reload_status Fetch(void* user_data,
                                                grpc_ssl_server_certificate_config** config) {
  Fetcher& fetcher = *static_cast<Fetcher*>(user_data);
  const std::shared_ptr<const TlsMaterial> now = fetcher.tls->current();
  if (now->version == fetcher.version) return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
  fetcher.version = now->version;
  // gRPC 1.51 wants CAs here in any case; without, no client is asked for a certificate, so it
  // doesn't matter which.
  const std::string& roots = now->ca_pem.empty() ? now->certificate_pem : now->ca_pem;
  const grpc_ssl_pem_key_cert_pair pair = {now->key_pem.c_str(), now->certificate_pem.c_str()};
  *config = grpc_ssl_server_certificate_config_create(roots.c_str(), &pair, 1);
  return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW;
}

grpc_ssl_client_certificate_request_type RequestType(ClientCertificates wanted) {
  switch (wanted) {
    case ClientCertificates::kNone:
      return GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE;
    case ClientCertificates::kOptional:
      return GRPC_SSL_REQUEST_CLIENT_CERTIFICATE_AND_VERIFY;
    case ClientCertificates::kRequired:
      return GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY;
  }
  return GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE;
}

class Guarded final : public grpc::ServerCredentials {
 public:
  Guarded(const TlsFiles* tls, CallCheck check) : check_(std::move(check)) { fetcher_.tls = tls; }

  void SetAuthMetadataProcessor(const std::shared_ptr<grpc::AuthMetadataProcessor>&) override {
    CHECK(false, "the check is given at construction");
  }

 private:
  // One port per object: gRPC calls it once.
  int AddPortToServer(const std::string& address, grpc_server* server) override {
    grpc_server_credentials* const credentials = Make();
    if (check_) {
      grpc_server_credentials_set_auth_metadata_processor(
          credentials, {Process, DestroyCheck, new CallCheck(check_)});
    }
    const int port = grpc_server_add_http2_port(server, address.c_str(), credentials);
    grpc_server_credentials_release(credentials);
    return port;
  }

  grpc_server_credentials* Make() {
    if (fetcher_.tls == nullptr) return grpc_insecure_server_credentials_create();
    return grpc_ssl_server_credentials_create_with_options(
        grpc_ssl_server_credentials_create_options_using_config_fetcher(
            RequestType(fetcher_.tls->options().client_certificates), Fetch, &fetcher_));
  }

  Fetcher fetcher_;
  const CallCheck check_;
};

}  // namespace

CallCheck CheckOf(const AccessControl& access, bool admin_only) {
  if (!access.on()) return nullptr;
  return [&access, admin_only](std::string_view path, const Credentials& credentials) {
    return access.CheckCall(path, credentials, admin_only);
  };
}

std::shared_ptr<grpc::ServerCredentials> GuardedCredentials(const TlsFiles* tls, CallCheck check) {
  return std::make_shared<Guarded>(tls, std::move(check));
}

}  // namespace quire
