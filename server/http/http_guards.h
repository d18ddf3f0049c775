// server/http/http_guards.h -- what the daemon's guards put in front of HTTP: keys, TLS, metrics.
#pragma once

#include "server/guards.h"
#include "server/http/http_server.h"

namespace quire {

// guards: outlives the server.
HttpHooks MakeHttpHooks(Guards& guards);

}  // namespace quire
