// server/http/openai_api.h -- the routes: what OpenAI's clients, probes and benchmarks call.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "server/front_door.h"
#include "server/http/generation_call.h"
#include "server/http/http_server.h"
#include "server/http/router.h"

namespace quire {

// What the routes need besides the front door. All functions: any thread, at once.
struct ApiSources {
  std::function<std::string()> metrics;  // null: no /metrics
  std::function<int64_t()> server_load;  // requests in flight
  // Forgets all cached prefixes, then calls `done`, once, on any thread; false: the engine has
  // ended, and `done` is not called. Null: there is no such route.
  std::function<bool(std::function<void()> done)> reset_prefix_cache;
};

// Routes that call `door`; both outlive the router.
Router MakeOpenAiRouter(FrontDoor& door, IdsInUse& ids, ApiSources sources);

}  // namespace quire
