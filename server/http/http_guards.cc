// server/http/http_guards.cc -- see http_guards.h.
#include "server/http/http_guards.h"

#include <openssl/ssl.h>
#include <spdlog/spdlog.h>

#include <boost/asio/ssl/context.hpp>
#include <mutex>
#include <utility>

namespace quire {
namespace {

namespace ssl = boost::asio::ssl;

// In the form that ALPN has. OpenSSL keeps a pointer into it until it has answered.
constexpr unsigned char kHttp1[] = "\x08http/1.1";

// HTTP/1.1 is all that is spoken here; a client that offers others only is left to find out.
int ChooseProtocol(SSL*, const unsigned char** out, unsigned char* out_size,
                   const unsigned char* in, unsigned in_size, void*) {
  unsigned char* chosen = nullptr;
  if (SSL_select_next_proto(&chosen, out_size, kHttp1, sizeof(kHttp1) - 1, in, in_size) !=
      OPENSSL_NPN_NEGOTIATED) {
    return SSL_TLSEXT_ERR_NOACK;
  }
  *out = chosen;
  return SSL_TLSEXT_ERR_OK;
}

absl::StatusOr<std::shared_ptr<ssl::context>> MakeContext(const TlsMaterial& m,
                                                          ClientCertificates wanted) {
  auto context = std::make_shared<ssl::context>(ssl::context::tls_server);
  boost::system::error_code error;
  const auto buffer = [](const std::string& text) { return boost::asio::buffer(text); };
  context->use_certificate_chain(buffer(m.certificate_pem), error);
  if (!error) context->use_private_key(buffer(m.key_pem), ssl::context::pem, error);
  if (!error && wanted != ClientCertificates::kNone) {
    context->add_certificate_authority(buffer(m.ca_pem), error);
    const ssl::verify_mode required = wanted == ClientCertificates::kRequired
                                          ? ssl::verify_fail_if_no_peer_cert
                                          : ssl::verify_none;
    if (!error) context->set_verify_mode(ssl::verify_peer | required, error);
  }
  if (error) return InvalidArgument("ssl_certfile can't be used: {}", error.message());
  SSL_CTX* const native = context->native_handle();
  SSL_CTX_set_min_proto_version(native, TLS1_2_VERSION);
  SSL_CTX_set_options(native, SSL_OP_NO_RENEGOTIATION);
  // Sessions of clients with certificates need a name, or none of them can be resumed.
  constexpr unsigned char kSession[] = "quire";
  SSL_CTX_set_session_id_context(native, kSession, sizeof(kSession) - 1);
  SSL_CTX_set_alpn_select_cb(native, ChooseProtocol, nullptr);
  return context;
}

// The context for a new connection; made anew when the files have changed. Any thread.
class Contexts {
 public:
  explicit Contexts(const TlsFiles& tls) : tls_(tls) {}

  std::shared_ptr<ssl::context> Current() {
    const std::lock_guard lock(mutex_);
    const std::shared_ptr<const TlsMaterial> now = tls_.current();
    if (context_ != nullptr && now->version == version_) return context_;
    version_ = now->version;
    auto next = MakeContext(*now, tls_.options().client_certificates);
    if (next.ok()) {
      context_ = *std::move(next);
    } else {
      spdlog::error("HTTP keeps its certificate: {}", Message(next.status()));
    }
    return context_;
  }

 private:
  const TlsFiles& tls_;
  std::mutex mutex_;
  uint64_t version_ = 0;                   // guarded by mutex_
  std::shared_ptr<ssl::context> context_;  // guarded by mutex_
};

}  // namespace

HttpHooks MakeHttpHooks(Guards& guards) {
  HttpHooks hooks;
  AccessControl& access = guards.access();
  if (access.on()) {
    hooks.authorize = [&access](const HttpCredentials& c) -> absl::StatusOr<HttpCaller> {
      HttpCaller caller;
      ASSIGN_OR_RETURN(caller.account,
                       access.CheckHttp(c.path, {.authorization = std::string(c.authorization),
                                                 .x_api_key = std::string(c.api_key)}));
      return caller;
    };
  }
  if (guards.tls() != nullptr) {
    hooks.tls = [contexts = std::make_shared<Contexts>(*guards.tls())] {
      return contexts->Current();
    };
  }
  Metrics& metrics = guards.metrics();
  hooks.load = [&metrics](std::string_view format) { return metrics.Orca(format); };
  hooks.answered = [&metrics](const HttpAnswered& a) {
    metrics.calls().HttpHandled(a.method, a.handler, a.status, a.seconds);
  };
  return hooks;
}

}  // namespace quire
