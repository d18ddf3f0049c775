// server/metrics/daemon_metrics.cc -- see daemon_metrics.h.
#include "server/metrics/daemon_metrics.h"

#include <sys/resource.h>
#include <sys/time.h>

#include <chrono>

#include "server/admin/process_info.h"
#include "server/version.h"

namespace quire {
namespace {

double SecondsOf(const timeval& time) {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
}

double WallStart() {
  const double now =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  return now - SecondsSinceStart();
}

void WriteProcess(Families& out) {
  static const double start = WallStart();
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  out.Counter("process_cpu_seconds_total", "CPU time of the process.",
              SecondsOf(usage.ru_utime) + SecondsOf(usage.ru_stime));
  out.Gauge("process_resident_memory_bytes", "Resident memory.",
            static_cast<double>(ResidentBytes()));
  out.Gauge("process_start_time_seconds", "Start of the process since the epoch.", start);
}

void WriteAccess(const AccessControl& access, const TlsFiles* tls, Families& out) {
  const AccessCounts counts = access.counts();
  constexpr const char* kFailures = "quire:auth_failures_total";
  constexpr const char* kFailuresHelp = "Calls turned away for their key, by why.";
  out.Counter(kFailures, kFailuresHelp, static_cast<double>(counts.unauthenticated),
              {{"reason", "unauthenticated"}});
  out.Counter(kFailures, kFailuresHelp, static_cast<double>(counts.denied), {{"reason", "denied"}});
  constexpr const char* kReload = "quire:reload_errors_total";
  constexpr const char* kReloadHelp = "Changed files that could not be used, by what they hold.";
  out.Counter(kReload, kReloadHelp, static_cast<double>(counts.reload_errors), {{"file", "keys"}});
  if (tls == nullptr) return;
  out.Counter(kReload, kReloadHelp, static_cast<double>(tls->reload_errors()),
              {{"file", "certificate"}});
  out.Gauge("quire:certificate_not_after_seconds", "End of the certificate, since the epoch.",
            static_cast<double>(tls->current()->not_after_s));
}

}  // namespace

void WriteDaemon(const ServerFacts& facts, const ServedModel& model, const Edge& edge,
                 const AccessControl& access, const TlsFiles* tls, const std::string& prefix,
                 Families& out) {
  const ServerOptions& o = facts.options;
  const auto flag = [](bool value) { return std::string(value ? "True" : "False"); };
  out.Gauge(prefix + "cache_config_info", "The cache's configuration, as labels.", 1,
            {{"block_size", std::to_string(o.block_size)},
             {"num_gpu_blocks", std::to_string(facts.memory.num_blocks)},
             {"cache_dtype", facts.kv_cache_dtype},
             {"gpu_memory_utilization", fmt::format("{}", o.memory_utilization)},
             {"enable_prefix_caching", flag(o.enable_prefix_caching)},
             {"prefix_caching_hash_algo", o.prefix_hash_algorithm},
             {"engine", "0"}});
  out.Gauge("quire:build_info", "What runs here, as labels.", 1,
            {{"version", Version()},
             {"model_name", model.name},
             {"attention", facts.attention},
             {"weight_format", facts.weight_format}});
  const auto memory = [&](const char* part, int64_t bytes) {
    out.Gauge("quire:memory_profile_bytes", "What the memory is for.", static_cast<double>(bytes),
              {{"part", part}});
  };
  memory("weights", facts.memory.weights);
  memory("peak_activation", facts.memory.activation_peak);
  memory("kv_pool", facts.memory.kv_pool);
  memory("reserve", facts.memory.reserve);
  memory("host_cache", facts.memory.host_cache);

  const RequestCounts counts = edge.counts();
  const auto outcome = [&](const char* name, uint64_t count) {
    out.Counter("quire:requests_total", "Requests that have ended or were refused, by outcome.",
                static_cast<double>(count), {{"outcome", name}});
  };
  outcome("ok", counts.ok);
  outcome("cancelled", counts.cancelled);
  outcome("deadline", counts.deadline);
  outcome("failed", counts.failed);
  outcome("refused", counts.refused);
  out.Counter("quire:requests_started_total", "Requests that were let in.",
              static_cast<double>(counts.started));
  out.Gauge("quire:draining", "1 while nothing new is let in.", edge.draining() ? 1 : 0);
  WriteAccess(access, tls, out);
  WriteProcess(out);
}

}  // namespace quire
