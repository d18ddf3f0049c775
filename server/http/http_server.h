// server/http/http_server.h -- the listening HTTP/1.1 server.
//
// Sockets live on a few I/O threads, each connection on a strand of its own; handlers that check
// and tokenize run on worker threads, so that no stream waits for somebody's long prompt. Start and
// Shutdown are called from one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"
#include "server/http/exchange.h"
#include "server/http/router.h"

namespace boost::asio::ssl {
class context;
}

namespace quire {

// What an authorizer sees of a request, before its body is read.
struct HttpCredentials {
  std::string_view method;
  std::string_view path;
  std::string_view authorization;  // header Authorization; empty: not given
  std::string_view api_key;        // header X-API-Key
};

// What became of a request.
struct HttpAnswered {
  std::string method = "other";   // if a route has it
  std::string handler = "other";  // the route's path as it was registered
  int status = 0;
  double seconds = 0;  // from its head to its last byte
};

// What operators put in front of the routes; null: nothing.
struct HttpHooks {
  // Any thread; must not block. ERRORS: kUnauthenticated, kPermissionDenied, kResourceExhausted.
  std::function<absl::StatusOr<HttpCaller>(const HttpCredentials&)> authorize;
  // Of an answer that is complete or was cut. Any thread; must not block.
  std::function<void(const HttpAnswered&)> answered;
  // The header endpoint-load-metrics of an answer, in the format that the request asked for; empty:
  // there is none. Any thread; must not block.
  std::function<std::string(std::string_view format)> load;
  // For a new connection; a fresh context after certificates were reloaded. Null: no TLS.
  std::function<std::shared_ptr<boost::asio::ssl::context>()> tls;
};

class HttpServer {
 public:
  struct Options {
    std::string host;
    int32_t port = 0;  // 0 = any
    size_t max_body_bytes = 16 << 20;
    size_t max_all_bodies_bytes = 256 << 20;  // of all requests that are being read
    int32_t max_connections = 8192;
    int64_t keepalive_ms = 75'000;        // an idle connection
    int64_t request_timeout_ms = 30'000;  // a head, and again a body
    int64_t write_timeout_ms = 60'000;    // a client that takes nothing
    int64_t sse_keepalive_ms = 15'000;    // 0 = no comments
    std::string allowed_origins;          // of CORS: "*", or a list with commas
    HttpHooks hooks;
  };

  // ERRORS: kUnavailable naming host and port; kInvalidArgument for a host that is none.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(Options options, Router router);
  ~HttpServer();
  // Whether that port can be listened on, before the model is loaded. ERRORS: as Start.
  static absl::Status CheckPort(const std::string& host, int32_t port);

  int32_t port() const;
  int32_t num_connections() const;
  // Closes everything; the clients of open streams see them cut. Returns when no handler runs.
  void Shutdown();

 private:
  class Impl;
  explicit HttpServer(std::shared_ptr<Impl> impl);
  std::shared_ptr<Impl> impl_;
};

}  // namespace quire
