// server/http/router.h -- which handler answers a method and a path. Built at start; any thread.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "server/http/exchange.h"

namespace quire {

using HttpHandler = std::function<void(ExchangePtr)>;

struct HttpRoute {
  std::string method;  // HEAD is answered by GET's
  std::string path;    // a last character '*' stands for one or more characters
  HttpHandler handler;
  // Probes and metrics: answered without authorization, and on the connection's own thread.
  bool is_open = false;
};

class Router {
 public:
  void Add(HttpRoute route) { routes_.push_back(std::move(route)); }

  struct Match {
    const HttpRoute* route = nullptr;
    std::string allowed;  // without a route: the methods that the path knows, "GET, POST"; or empty
  };
  Match Find(std::string_view method, std::string_view path) const;

 private:
  std::vector<HttpRoute> routes_;
};

}  // namespace quire
