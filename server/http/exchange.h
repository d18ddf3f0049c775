// server/http/exchange.h -- one HTTP request and its answer, as a handler sees them: no sockets.
//
// A handler gets a shared Exchange and either replies once, or opens a stream and writes to it. The
// connection takes the next request when the answer is complete. Functions may be called on any
// thread; what they do happens on the connection's strand, in the order of the calls.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace quire {

class Account;  // access/account.h

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

// Who asks, as the operator's rules have it; what HttpHooks::authorize found.
struct HttpCaller {
  std::string tenant;                // of the policy `fair`; empty: x-tenant-id decides
  std::string priority;              // as x-priority; empty: the request decides
  std::string cache_salt;            // of requests that name none
  std::shared_ptr<Account> account;  // whose key it is; null: nobody needs one
  std::shared_ptr<const void> hold;  // released when the answer is complete
};

struct HttpRequest {
  std::string method;
  std::string path;     // without the query
  std::string query;    // behind '?'
  HttpHeaders headers;  // names in lower case
  std::string body;
  std::string id;  // x-request-id of the answer: the client's, or made here
  bool has_client_id = false;
  HttpCaller caller;

  // The first header of that name; "" if there is none.
  std::string_view Header(std::string_view name) const {
    for (const auto& [key, value] : headers) {
      if (key == name) return value;
    }
    return {};
  }
};

struct HttpReply {
  int status = 200;
  std::string body;
  std::string content_type = "application/json";
  HttpHeaders headers = {};
};

class Exchange {
 public:
  virtual ~Exchange() = default;
  virtual const HttpRequest& request() const = 0;

  // The whole answer.
  virtual void Reply(HttpReply reply) = 0;

  // An answer of server-sent events. Announce says that there will be one: if nothing is written
  // for long, it is opened anyway and kept alive by comments. Write opens it, too.
  virtual void AnnounceStream(HttpHeaders headers) = 0;
  virtual void Write(std::string events) = 0;
  virtual void End() = 0;
  // Cuts the connection: what was written so far must not look complete.
  virtual void Abort() = 0;

  // Bytes that were written and that the client has yet to take.
  virtual size_t unsent_bytes() const = 0;
  // Runs on the strand if the client leaves before the answer is complete, at once if it has.
  virtual void WhenGone(std::function<void()> gone) = 0;
  // Released when the answer is complete or the client has left.
  virtual void Hold(std::shared_ptr<const void> held) = 0;
  // Runs `work` on the strand.
  virtual void Post(std::function<void()> work) = 0;
};
using ExchangePtr = std::shared_ptr<Exchange>;

}  // namespace quire
