// server/http/cors.h -- which web pages may call: cross-origin resource sharing as the WHATWG's
// Fetch standard has it. Pure; any thread.
#pragma once

#include <string>
#include <string_view>

#include "server/http/exchange.h"

namespace quire {

// What access-control-allow-origin says to `origin`; empty: nothing, the browser keeps the answer
// from the page. allowed: "*", or origins separated by commas.
std::string AllowedOrigin(std::string_view allowed, std::string_view origin);

// The answer to a browser's OPTIONS request. methods: that the path knows.
HttpReply Preflight(std::string_view methods, std::string_view asked_headers);

}  // namespace quire
