// server/daemon.cc -- see daemon.h.
#include "server/daemon.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "sampling/grammar_vocabulary.h"
#include "server/access/security_options.h"
#include "server/admin/cache_actions.h"
#include "server/events/kv_event_hub.h"
#include "server/events/kv_event_publisher.h"
#include "server/http/http_guards.h"
#include "server/http/openai_api.h"
#include "server/metrics/daemon_metrics.h"
#include "server/scheduling.h"

namespace quire {
namespace {

// Calls that neither the drain nor its deadline ended: watchers of the health service.
constexpr std::chrono::milliseconds kGrace{100};
// Of subscribers of KV events, to read that the server is shutting down.
constexpr std::chrono::milliseconds kPatience{1000};

}  // namespace

absl::StatusOr<std::unique_ptr<Daemon>> Daemon::Start(Parts parts) {
  const ServerOptions& o = parts.facts.options;
  SchedulerOptions scheduling = ToSchedulerOptions(o);
  scheduling.max_model_len = parts.model.max_model_len;
  scheduling.fingerprint = parts.fingerprint;
  scheduling.rope_regime = parts.rope_regime;
  RETURN_IF_ERROR(Validate(scheduling));
  parts.model.salt_by_tenant = o.cache_salt_per_tenant;
  ASSIGN_OR_RETURN(std::unique_ptr<Guards> guards, Guards::Open(o, parts.model));
  std::unique_ptr<Daemon> self(
      new Daemon(std::move(parts), std::move(scheduling), std::move(guards)));
  RETURN_IF_ERROR(self->StartKvEvents());
  self->edge_.Start(self->engine_);
  self->engine_.Start();
  // The first snapshot, so that who asks before the first request sees the pool.
  CHECK(self->engine_.PostAdminCall({[](Scheduler&) {}}));
  while (self->engine_.snapshot().pools.empty()) {
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  RETURN_IF_ERROR(self->StartGrpc());
  RETURN_IF_ERROR(self->StartHttp());
  self->guards_->StartWatching();
  return self;
}

absl::Status Daemon::StartGrpc() {
  const ServerOptions& o = parts_.facts.options;
  ASSIGN_OR_RETURN(server_, GrpcServer::Start({.host = o.host,
                                               .port = o.port,
                                               .max_message_bytes = o.max_message_bytes,
                                               .guards = guards_.get(),
                                               .connections = ConnectionLimitsOf(o)},
                                              generation_, others_));
  ASSIGN_OR_RETURN(
      admin_listener_,
      AdminListener::Start({.socket = o.admin_socket == "auto"   ? DefaultAdminSocket(port())
                                      : o.admin_socket == "none" ? std::string()
                                                                 : o.admin_socket,
                            .host = o.admin_host,
                            .port = o.admin_port,
                            .max_message_bytes = o.max_message_bytes,
                            .guards = guards_.get()},
                           admin_));
  return absl::OkStatus();
}

absl::Status Daemon::StartHttp() {
  const ServerOptions& o = parts_.facts.options;
  if (o.http_port < 0) return absl::OkStatus();
  ApiSources sources;
  sources.metrics = [this] { return metrics().Text(); };
  sources.server_load = [this] { return int64_t{engine_.snapshot().scheduler.live_requests}; };
  if (o.http_dev_mode) {
    sources.reset_prefix_cache = [this](std::function<void()> done) {
      return engine_.PostAdminCall({[this, done = std::move(done)](Scheduler& s) {
        s.blocks().SetTime(s.now_ms());
        FlushPrefixes(s, std::nullopt);
        engine_.UpdateSnapshot();
        done();
      }});
    };
  }
  const auto ms = [](double seconds) { return static_cast<int64_t>(seconds * 1e3); };
  ASSIGN_OR_RETURN(http_,
                   HttpServer::Start({.host = o.http_host.empty() ? o.host : o.http_host,
                                      .port = o.http_port,
                                      .max_body_bytes = static_cast<size_t>(o.max_message_bytes),
                                      .max_connections = o.http_max_connections,
                                      .keepalive_ms = ms(o.http_keepalive_s),
                                      .request_timeout_ms = ms(o.http_request_timeout_s),
                                      .sse_keepalive_ms = ms(o.sse_keepalive_s),
                                      .allowed_origins = o.http_allowed_origins,
                                      .hooks = MakeHttpHooks(*guards_)},
                                     MakeOpenAiRouter(door_, http_ids_, std::move(sources))));
  return absl::OkStatus();
}

Daemon::Daemon(Parts parts, SchedulerOptions options, std::unique_ptr<Guards> guards)
    : parts_(std::move(parts)),
      guards_(std::move(guards)),
      suffix_({.max_tokens = parts_.facts.options.suffix_cache_tokens}),
      scheduler_(std::move(options), *parts_.blocks),
      kv_event_streams_(parts_.facts.options.kv_events_max_subscribers),
      edge_(*parts_.model.tokenizer,
            static_cast<size_t>(parts_.facts.options.max_stream_buffer_bytes)),
      engine_(
          scheduler_, *parts_.executor,
          [this](std::span<const TokenEvent> events) {
            edge_.Publish({events.begin(), events.end()});
          },
          [this](const absl::Status& fatal) {
            // After the events of all the requests that it failed.
            edge_.Post([this, fatal] { SetDone(fatal); });
          }),
      grammars_([this] {
        const ServedModel& model = parts_.model;
        return GrammarCompiler::Make(
            MakeGrammarVocabulary(*model.tokenizer, model.vocab_size, model.eos_token_ids));
      }),
      door_(parts_.model, edge_, guards_->access(), parts_.facts.options.log_prompts),
      generation_(door_),
      admin_(parts_.facts, parts_.model, parts_.blocks->layout(), parts_.cache, engine_, edge_),
      others_({.door = door_,
               .engine = engine_,
               .facts = parts_.facts,
               .layout = parts_.blocks->layout(),
               .paused = [this] { return admin_.paused(); },
               .token_rate = token_rate_,
               .kv_events = kv_event_streams_,
               .publisher = [this] { return kv_event_publisher(); }}) {
  edge_.UseGrammars(grammars_);
  edge_.Observe(metrics().requests());
  edge_.Observe(token_rate_);
  metrics().UseEngine([this] { return engine_.snapshot(); },
                      [this] { return edge_.num_deferred(); });
  metrics().AddSource([this](Families& out) {
    WriteDaemon(parts_.facts, parts_.model, edge_, guards_->access(), guards_->tls(),
                MetricPrefix(parts_.facts.options), out);
  });
  // A request may ask for any of these by itself.
  scheduler_.SetProposer(SpeculationMethod::kNgram, &ngram_);
  scheduler_.SetProposer(SpeculationMethod::kSuffix, &suffix_);
  scheduler_.SetProposer(SpeculationMethod::kDraft, parts_.draft);
  scheduler_.SetDefaultSpeculation(DefaultSpeculation(parts_.facts.options));
  // What grammars force is guessed without any of them. Special tokens are control, not text.
  const Tokenizer* const tokenizer = parts_.model.tokenizer.get();
  scheduler_.SetTokenText({.encode =
                               [tokenizer](std::string_view text) {
                                 return tokenizer->Encode(text, /*add_special_tokens=*/false)
                                     .value_or(std::vector<TokenId>());
                               },
                           .bytes = [tokenizer](TokenId id) { return tokenizer->TokenBytes(id); }});
  parts_.model.has_draft_model = parts_.draft != nullptr;
}

Daemon::~Daemon() { Stop(); }

absl::Status Daemon::StartKvEvents() {
  const ServerOptions& o = parts_.facts.options;
  if (!o.kv_events) return absl::OkStatus();
  BlockManager& blocks = *parts_.blocks;
  const CacheLayout& layout = blocks.layout();
  if (std::none_of(layout.groups.begin(), layout.groups.end(),
                   [&](const GroupLayout& g) { return HasEvents(g.group, layout.block_size); })) {
    return InvalidArgument(
        "kv_events=true is not for this model: none of its caches holds keys and values by token; "
        "set kv_events=false");
  }
  kv_events_ = std::make_unique<KvEventHub>(
      KvEventHub::Options{.buffer_batches = static_cast<size_t>(o.kv_events_buffer_steps),
                          .max_batch_bytes = o.max_message_bytes},
      MakeKvEventFacts(layout));
  kv_events_->UseSnapshots([this](std::function<void(CacheEvents)> done) {
    return engine_.PostAdminCall({[this, done = std::move(done)](Scheduler& scheduler) {
      CacheEvents before = scheduler.blocks().TakeEvents();
      if (!before.empty()) kv_events_->Publish(std::move(before));
      done(scheduler.blocks().SnapshotEvents());
    }});
  });
  if (!o.kv_events_endpoint.empty()) {
    ASSIGN_OR_RETURN(
        kv_event_publisher_,
        KvEventPublisher::Start(*kv_events_, {.endpoint = o.kv_events_endpoint,
                                              .replay_endpoint = o.kv_events_replay_endpoint,
                                              .topic = o.kv_events_topic,
                                              .hwm = o.kv_events_hwm,
                                              .max_queue_size = o.kv_events_max_queue_size,
                                              .replay_hwm = o.kv_events_buffer_steps + 1,
                                              .format = {.encoding = o.kv_events_encoding == "array"
                                                                         ? KvEventEncoding::kArray
                                                                         : KvEventEncoding::kMap,
                                                         .int_hashes = o.kv_events_int_hashes}}));
    spdlog::info("KV events at {}, replays at {}",
                 kv_event_publisher_->bound_endpoint().empty()
                     ? o.kv_events_endpoint
                     : kv_event_publisher_->bound_endpoint(),
                 kv_event_publisher_->bound_replay_endpoint().empty()
                     ? std::string("none")
                     : kv_event_publisher_->bound_replay_endpoint());
  }
  kv_event_streams_.Start(*kv_events_);
  blocks.EnableEvents();
  engine_.set_on_cache_events(
      [this](CacheEvents events) { kv_events_->Publish(std::move(events)); });
  return absl::OkStatus();
}

void Daemon::Drain(std::chrono::milliseconds timeout) {
  server_->SetServing(false);
  admin_listener_->SetServing(false);
  edge_.Drain(Clock::now() + timeout, [this] { SetDone(absl::OkStatus()); });
}

void Daemon::SetDone(absl::Status status) {
  {
    const std::lock_guard lock(mutex_);
    if (!done_) status_ = std::move(status);
    done_ = true;
  }
  changed_.notify_all();
}

absl::Status Daemon::Wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return done_; });
  return status_;
}

void Daemon::Stop() {
  if (std::exchange(stopped_, true)) return;
  guards_->StopWatching();
  kv_event_streams_.End(kPatience);
  if (admin_listener_ != nullptr) admin_listener_->Shutdown(kGrace);
  if (server_ != nullptr) server_->Shutdown(kGrace);  // needs edge and engine
  kv_event_streams_.Stop();
  if (http_ != nullptr) http_->Shutdown();
  engine_.Drain(Clock::time_point::min());
  engine_.Join();
  if (kv_events_ != nullptr) kv_events_->Close();
  edge_.Stop();  // after the engine's last events and the last reactor's end
}

}  // namespace quire
