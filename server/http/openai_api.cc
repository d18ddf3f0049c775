// server/http/openai_api.cc -- see openai_api.h.
#include "server/http/openai_api.h"

#include <ctime>
#include <utility>

#include "server/openai/errors.h"
#include "server/openai/token_routes.h"
#include "server/version.h"

namespace quire {
namespace {

HttpHandler Generate(FrontDoor& door, IdsInUse& ids, CallReader reader) {
  return [&door, &ids, reader](ExchangePtr exchange) {
    GenerationCall::Start(door, ids, reader, std::move(exchange));
  };
}

// Liveness for load balancers: not while draining.
HttpHandler Health(FrontDoor& door) {
  return [&door](ExchangePtr exchange) {
    if (door.edge().draining()) {
      return exchange->Reply(ErrorReply(503, "the server is shutting down"));
    }
    exchange->Reply({.body = {}, .content_type = {}});
  };
}

using BodyReader = absl::StatusOr<std::string> (*)(std::string_view body, const ServedModel& model);

HttpHandler Answer(FrontDoor& door, BodyReader reader) {
  return [&door, reader](ExchangePtr exchange) {
    exchange->Hold(exchange->request().caller.hold);
    absl::StatusOr<std::string> body = reader(exchange->request().body, door.model());
    exchange->Reply(body.ok() ? HttpReply{.body = *std::move(body)} : ErrorReply(body.status()));
  };
}

HttpHandler Models(FrontDoor& door, int64_t created) {
  return [&door, created](ExchangePtr exchange) {
    exchange->Reply({.body = ModelList(door.model(), created)});
  };
}

HttpHandler OneModel(FrontDoor& door, int64_t created) {
  return [&door, created](ExchangePtr exchange) {
    constexpr std::string_view kPrefix = "/v1/models/";
    const std::string id = PercentDecoded(exchange->request().path.substr(kPrefix.size()));
    if (id == door.model().name) {
      return exchange->Reply({.body = ModelCard(door.model(), created)});
    }
    exchange->Reply(ErrorReply(Error(absl::StatusCode::kNotFound,
                                     "model={} is not served here; {} is", id, door.model().name)));
  };
}

// Empty and 200, as vLLM answers in its development mode. What runs keeps what it holds.
HttpHandler ResetPrefixCache(std::function<bool(std::function<void()>)> reset) {
  return [reset = std::move(reset)](ExchangePtr exchange) {
    exchange->Hold(exchange->request().caller.hold);
    const auto done = [exchange] {
      exchange->Post([exchange] { exchange->Reply({.body = {}, .content_type = {}}); });
    };
    if (!reset(done)) exchange->Reply(ErrorReply(503, "the server is shutting down"));
  };
}

std::string VersionBody() {
  JsonWriter w;
  w.BeginObject();
  w.Key("version");
  w.String(Version());
  w.EndObject();
  return w.text();
}

}  // namespace

Router MakeOpenAiRouter(FrontDoor& door, IdsInUse& ids, ApiSources sources) {
  Router router;
  const auto open = [&](const char* method, const char* path, HttpHandler handler) {
    router.Add({method, path, std::move(handler), /*is_open=*/true});
  };
  const auto guarded = [&](const char* method, const char* path, HttpHandler handler) {
    router.Add({method, path, std::move(handler), /*is_open=*/false});
  };
  for (const char* path : {"/health", "/ready", "/ping"}) open("GET", path, Health(door));
  open("POST", "/ping", Health(door));
  open("GET", "/version", [](ExchangePtr exchange) { exchange->Reply({.body = VersionBody()}); });
  if (sources.server_load != nullptr) {
    open("GET", "/load", [load = sources.server_load](ExchangePtr exchange) {
      exchange->Reply({.body = fmt::format("{{\"server_load\":{}}}", load())});
    });
  }
  if (sources.metrics != nullptr) {
    open("GET", "/metrics", [metrics = sources.metrics](ExchangePtr exchange) {
      exchange->Reply(
          {.body = metrics(), .content_type = "text/plain; version=0.0.4; charset=utf-8"});
    });
  }
  if (sources.reset_prefix_cache != nullptr) {
    guarded("POST", "/reset_prefix_cache", ResetPrefixCache(std::move(sources.reset_prefix_cache)));
  }
  const int64_t created = std::time(nullptr);
  guarded("GET", "/v1/models", Models(door, created));
  guarded("GET", "/v1/models/*", OneModel(door, created));
  guarded("POST", "/v1/completions", Generate(door, ids, ReadCompletion));
  guarded("POST", "/v1/chat/completions", Generate(door, ids, ReadChat));
  guarded("POST", "/v1/responses", Generate(door, ids, ReadResponse));
  guarded("POST", "/tokenize", Answer(door, TokenizeBody));
  guarded("POST", "/detokenize", Answer(door, DetokenizeBody));
  return router;
}

}  // namespace quire
