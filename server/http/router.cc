#include "server/http/router.h"

namespace quire {
namespace {

bool Matches(std::string_view pattern, std::string_view path) {
  if (pattern.empty() || pattern.back() != '*') return pattern == path;
  pattern.remove_suffix(1);
  return path.size() > pattern.size() && path.substr(0, pattern.size()) == pattern;
}

}  // namespace

Router::Match Router::Find(std::string_view method, std::string_view path) const {
  if (method == "HEAD") method = "GET";
  Match match;
  for (const HttpRoute& route : routes_) {
    if (!Matches(route.path, path)) continue;
    if (route.method == method) return {&route, {}};
    if (!match.allowed.empty()) match.allowed += ", ";
    match.allowed += route.method;
  }
  return match;
}

}  // namespace quire
