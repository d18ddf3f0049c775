#include "server/http/cors.h"

namespace quire {

std::string AllowedOrigin(std::string_view allowed, std::string_view origin) {
  if (origin.empty()) return {};
  while (!allowed.empty()) {
    const size_t comma = allowed.find(',');
    std::string_view one = allowed.substr(0, comma);
    allowed = comma == std::string_view::npos ? std::string_view() : allowed.substr(comma + 1);
    while (!one.empty() && one.front() == ' ') one.remove_prefix(1);
    while (!one.empty() && one.back() == ' ') one.remove_suffix(1);
    if (one == "*") return "*";
    if (one == origin) return std::string(origin);
  }
  return {};
}

HttpReply Preflight(std::string_view methods, std::string_view asked_headers) {
  HttpReply reply{.status = 204, .content_type = {}};
  reply.headers.emplace_back("access-control-allow-methods", methods);
  // Header names only: what the browser sent is told back.
  bool is_plain = asked_headers.size() <= 1024;
  for (const char c : asked_headers) is_plain = is_plain && c >= ' ' && c <= '~';
  if (is_plain && !asked_headers.empty()) {
    reply.headers.emplace_back("access-control-allow-headers", asked_headers);
  }
  reply.headers.emplace_back("access-control-max-age", "600");
  return reply;
}

}  // namespace quire
