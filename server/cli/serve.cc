// server/cli/serve.cc -- `quire serve`: the daemon from its options to its exit.
#include <errno.h>
#include <fmt/format.h>
#include <malloc.h>
#include <signal.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <boost/asio/signal_set.hpp>
#include <chrono>
#include <memory>
#include <sstream>
#include <string>
#include <type_traits>
#include <vector>

#include "base/json.h"
#include "kernels/profile/op_table.h"
#include "models/draft_proposer.h"
#include "server/admin/process_info.h"
#include "server/cli/commands.h"
#include "server/cli/option_flags.h"
#include "server/daemon.h"
#include "server/heap_trimmer.h"
#include "server/load_model.h"
#include "server/log.h"
#include "server/version.h"

namespace quire {
namespace {

struct ServeOptions {
  OptionFlags flags;
  bool check_config = false;
};

void LogOptions(const ServerOptions& options) {
  const ServerOptions defaults;
  ServerOptions::VisitFields(options, [&](const OptionInfo& info, const auto& member) {
    const bool is_default = ValueOf(defaults, info.name) == fmt::format("{}", member);
    spdlog::log(is_default ? spdlog::level::debug : spdlog::level::info, "option {}={}{}",
                info.name, member, is_default ? " (default)" : "");
  });
}

void LogLines(std::string_view title, const std::string& text) {
  std::istringstream lines(text);
  std::string line;
  while (std::getline(lines, line)) {
    if (!line.empty()) spdlog::info("{}: {}", title, line);
  }
}

// Per request and for all together, apart (they are often mixed up).
void LogLimits(const ServerFacts& facts, const ServedModel& model) {
  const ServerOptions& o = facts.options;
  spdlog::info(
      "limits of one request: max_model_len={} tokens (prompt and new), {} new tokens "
      "unless it says otherwise",
      model.max_model_len,
      o.default_max_tokens > 0 ? std::to_string(o.default_max_tokens)
                               : std::string("what is left of it as"));
  spdlog::info(
      "limits of all requests: max_num_seqs={} running, max_queued_requests={} waiting, "
      "max_num_batched_tokens={} per step, pool of {} blocks * {} = {} tokens",
      o.max_num_seqs, o.max_queued_requests, o.max_num_batched_tokens, facts.memory.num_blocks,
      facts.memory.block_size, int64_t{facts.memory.num_blocks} * facts.memory.block_size);
  spdlog::info(
      "scheduling: policy {}, at most {} tokens of a prompt per step, inter-token goal {}, "
      "{} guesses per step by {} unless a request says otherwise{}",
      o.scheduling_policy,
      o.long_prefill_token_threshold > 0 ? o.long_prefill_token_threshold
                                         : o.max_num_batched_tokens,
      o.target_itl_ms > 0 ? fmt::format("{} ms", o.target_itl_ms) : std::string("none"),
      o.num_speculative_tokens, o.speculation,
      o.draft_model.empty() ? std::string() : fmt::format(", draft model {}", o.draft_model));
  spdlog::info("limits of one connection: max_message_bytes={}, max_stream_buffer_bytes={}",
               o.max_message_bytes, o.max_stream_buffer_bytes);
}

// Until the daemon handles signals itself: nothing is in flight, so leave at once.
void LeaveWhileLoading(int) {
  constexpr char kText[] = "quire: stopped while loading\n";
  const ssize_t ignored = ::write(STDERR_FILENO, kText, sizeof(kText) - 1);
  (void)ignored;
  ::_exit(0);
}

// First signal: drain. Second: now. Third: not even that.
class SignalHandler {
 public:
  SignalHandler(Daemon& daemon, double drain_timeout_s)
      : daemon_(daemon),
        timeout_(static_cast<int64_t>(drain_timeout_s * 1e3)),
        signals_(daemon.edge().io(), SIGTERM, SIGINT) {
    Wait();
  }

 private:
  void Wait() {
    signals_.async_wait([this](const boost::system::error_code& error, int number) {
      if (error) return;
      ++count_;
      if (count_ == 1) {
        spdlog::info("signal {}: draining for at most {:.1f} s", number,
                     static_cast<double>(timeout_.count()) / 1e3);
        daemon_.Drain(timeout_);
      } else if (count_ == 2) {
        spdlog::warn("signal {}: stopping now", number);
        daemon_.Drain(std::chrono::milliseconds(0));
      } else {
        ::_exit(kExitFailed);
      }
      Wait();
    });
  }

  Daemon& daemon_;
  const std::chrono::milliseconds timeout_;
  boost::asio::signal_set signals_;
  int count_ = 0;  // edge thread
};

absl::StatusOr<std::unique_ptr<Daemon>> StartDaemon(const ServerOptions& options,
                                                    LoadedModel& loaded) {
  ModelRuntime& runtime = *loaded.runtime;
  for (const std::string& note : runtime.notes()) spdlog::warn("model: {}", note);
  Daemon::Parts parts;
  parts.facts = {.options = options,
                 .config = runtime.config(),
                 .memory = runtime.memory(),
                 .attention = runtime.attention_name(),
                 .compute = runtime.compute(),
                 .kv_cache_dtype = runtime.kv_cache_dtype(),
                 .weight_format = runtime.weight_format(),
                 .num_threads = runtime.num_threads(),
                 .start = std::chrono::steady_clock::now(),
                 .load_s = SecondsSinceStart()};
  parts.model = loaded.served;
  parts.fingerprint =
      fmt::format("{} {} {} {} {}", options.model, runtime.weight_format(),
                  runtime.attention_name(), runtime.compute(), runtime.kv_cache_dtype());
  parts.rope_regime = [&runtime](int32_t tokens) { return runtime.RopeRegimeOf(tokens); };
  parts.blocks = &runtime.block_manager();
  parts.executor = &runtime.executor();
  parts.draft = runtime.draft_model();
  parts.cache.set_num_blocks = [&runtime](Scheduler& scheduler, int32_t num_blocks) {
    return runtime.SetNumBlocks(scheduler, num_blocks);
  };
  parts.cache.save = [&runtime](const std::string& folder) { return runtime.SaveCache(folder); };
  parts.cache.load = [&runtime](const std::string& folder) { return runtime.LoadCache(folder); };
  if (const PageFileStore* const files = runtime.cache_files()) {
    parts.cache.files = [files] { return files->stats(); };
  }
  return Daemon::Start(std::move(parts));
}

void Announce(const Daemon& daemon, const ServedModel& model, const std::string& host) {
  const ServerFacts& facts = daemon.facts();
  spdlog::info("ready after {:.2f} s, resident memory {:.1f} MiB, listening on {} port {}",
               SecondsSinceStart(), static_cast<double>(ResidentBytes()) / (1 << 20), host,
               daemon.port());
  const std::string where = (host == "127.0.0.1" || host == "0.0.0.0" || host == "localhost")
                                ? ""
                                : fmt::format(" --host {}", host);
  std::string http;
  if (daemon.http_port() > 0) {
    const std::string& http_host = facts.options.http_host.empty() ? host : facts.options.http_host;
    http = fmt::format(", OpenAI's API at {}://{}:{}/v1",
                       facts.options.ssl_certfile.empty() ? "http" : "https",
                       http_host == "0.0.0.0" ? "127.0.0.1" : http_host, daemon.http_port());
  }
  for (const std::string& address : daemon.admin_addresses()) fmt::print("Admin: {}\n", address);
  fmt::print("{} is ready ({}, {}){}. Try:\n  {} generate{} --port {} {}\"Why is the sky blue?\"\n",
             model.name, facts.weight_format, facts.attention, http, program_invocation_name, where,
             daemon.port(), model.render_chat == nullptr ? "--raw " : "");
  std::fflush(stdout);
}

// Null: no option asks for one. 2^18 spans are some hundred steps of a small model, and 16 MiB.
std::unique_ptr<kernels::OpProfile> StartProfile(const ServerOptions& options,
                                                 ModelRuntime& runtime) {
  if (!options.profile_ops && options.trace_file.empty()) return nullptr;
  auto profile = std::make_unique<kernels::OpProfile>(
      runtime.num_threads(), options.trace_file.empty() ? 0 : size_t{1} << 18);
  runtime.set_profile(profile.get());
  return profile;
}

// After the engine's end: the table on standard output, the trace to its file.
absl::Status TellProfile(const ServerOptions& options, ModelRuntime& runtime,
                         const kernels::OpProfile& profile) {
  runtime.set_profile(nullptr);
  if (options.profile_ops) {
    const kernels::MachinePeaks peaks =
        kernels::MeasurePeaks(runtime.num_threads(), static_cast<size_t>(runtime.memory().weights));
    fmt::print("{}\n", kernels::PeaksText(peaks));
    for (const kernels::StepKind kind : {kernels::StepKind::kPrefill, kernels::StepKind::kDecode}) {
      fmt::print("{}", kernels::OpTable(profile, kind, peaks));
    }
    std::fflush(stdout);
  }
  if (options.trace_file.empty()) return absl::OkStatus();
  spdlog::info("trace of operations in {}, {} older spans not kept", options.trace_file,
               profile.spans_lost());
  return kernels::WriteTrace(profile, options.trace_file);
}

int Serve(const ServerOptions& options) {
  const auto failed = [](const absl::Status& status) {
    return Fail(kExitFailed, Message(status).c_str());
  };
  InitLog(options.log_level);
  ::signal(SIGTERM, LeaveWhileLoading);
  ::signal(SIGINT, LeaveWhileLoading);
  ::signal(SIGPIPE, SIG_IGN);
  spdlog::info("quire {} starts pid={}", Version(), ::getpid());
  LogOptions(options);
  if (const absl::Status port = CheckPort(options.host, options.port); !port.ok()) {
    return failed(port);
  }
  if (options.http_port >= 0) {
    const absl::Status port = HttpServer::CheckPort(
        options.http_host.empty() ? options.host : options.http_host, options.http_port);
    if (!port.ok()) return failed(port);
  }
  absl::StatusOr<LoadedModel> loaded = LoadModel(options);
  if (!loaded.ok()) return failed(loaded.status());
  LogLines("memory", loaded->runtime->memory().ToString());
  const std::unique_ptr<kernels::OpProfile> profile = StartProfile(options, *loaded->runtime);
  const absl::StatusOr<std::unique_ptr<Daemon>> daemon = StartDaemon(options, *loaded);
  if (!daemon.ok()) return failed(daemon.status());
  LogLimits((*daemon)->facts(), loaded->served);
  if (!loaded->served.no_chat.ok()) spdlog::warn("no chat: {}", Message(loaded->served.no_chat));
  {
    const SignalHandler signals(**daemon, options.drain_timeout_s);
    Announce(**daemon, loaded->served, options.host);
    const absl::Status end = (*daemon)->Wait();
    (*daemon)->Stop();
    if (!end.ok()) return failed(end);
  }
  if (profile != nullptr) {
    const absl::Status told = TellProfile(options, *loaded->runtime, *profile);
    if (!told.ok()) return failed(told);
  }
  const RequestCounts counts = (*daemon)->edge().counts();
  spdlog::info(
      "stopped: {} requests ok, {} cancelled, {} past their deadline, {} failed, {} refused",
      counts.ok, counts.cancelled, counts.deadline, counts.failed, counts.refused);
  return 0;
}

// What --config reads back as the same options.
void PrintAsYaml(const ServerOptions& options) {
  ServerOptions::VisitFields(options, [](const OptionInfo& info, const auto& member) {
    std::string value = fmt::format("{}", member);
    if constexpr (std::is_same_v<std::decay_t<decltype(member)>, std::string>) {
      const bool is_plain =
          value.find_first_not_of(
              "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./-") ==
          std::string::npos;
      if (value.empty() || !is_plain) {
        JsonWriter quoted;  // a JSON string is a YAML one
        quoted.String(value);
        value = quoted.text();
      }
    }
    fmt::print("{}: {}\n", info.name, value);
  });
}

// What a large message took goes back to the system when it is freed. By itself glibc would keep
// it: its limit for blocks of their own rises to the largest one freed, and each thread's heap
// stays as large as it ever was (mallopt(3), M_MMAP_THRESHOLD).
void KeepHeapsSmall() {
  ::mallopt(M_MMAP_THRESHOLD, 256 << 10);
  ::mallopt(M_TRIM_THRESHOLD, 4 << 20);
  ::mallopt(M_ARENA_MAX, 4);  // few heaps with holes, not one for each thread of gRPC
}

int RunServe(const ServeOptions& serve) {
  KeepHeapsSmall();
  const HeapTrimmer trimmer;
  const absl::StatusOr<ServerOptions> options = serve.flags.Load();
  if (!options.ok()) return Fail(kExitUsage, Message(options.status()).c_str());
  if (!serve.check_config) return Serve(*options);
  PrintAsYaml(*options);
  return 0;
}

}  // namespace

Subcommand MakeServe(CLI::App& parent) {
  auto serve = std::make_shared<ServeOptions>();
  CLI::App* const app =
      parent.add_subcommand("serve", "load a model and serve it over gRPC and HTTP");
  app->add_flag("--check-config", serve->check_config,
                "check all options, print them and leave; reads no model");
  serve->flags.Add(*app, {"--check-config"});
  return {app, [serve] { return RunServe(*serve); }};
}

}  // namespace quire
