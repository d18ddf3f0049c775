#include "bench/simulation/report.h"

#include <algorithm>
#include <functional>
#include <set>
#include <vector>

namespace quire {
namespace {

double Share(double part, double whole) { return whole > 0 ? part / whole : 0; }
double Share(int64_t part, int64_t whole) {
  return Share(static_cast<double>(part), static_cast<double>(whole));
}
double PerSecond(int64_t count, double seconds) {
  return Share(static_cast<double>(count), seconds);
}

// One line of the text and one member of the JSON object.
struct Figure {
  const char* label;
  const char* key;
  const char* format;  // of the text
  double value;
};

std::vector<Figure> Latencies(const RequestFigures& f) {
  const Percentiles ttft = f.ttft_us.Ms(), itl = f.itl_us.Ms(), queue = f.queue_us.Ms(),
                    e2e = f.e2e_us.Ms();
  return {{"time to first token ms, mean", "ttft_mean_ms", "{:.2f}", ttft.mean},
          {"  p50", "ttft_p50_ms", "{:.2f}", ttft.p50},
          {"  p90", "ttft_p90_ms", "{:.2f}", ttft.p90},
          {"  p99", "ttft_p99_ms", "{:.2f}", ttft.p99},
          {"between tokens ms, mean", "itl_mean_ms", "{:.2f}", itl.mean},
          {"  p50", "itl_p50_ms", "{:.2f}", itl.p50},
          {"  p90", "itl_p90_ms", "{:.2f}", itl.p90},
          {"  p99", "itl_p99_ms", "{:.2f}", itl.p99},
          {"in the queue ms, mean", "queue_mean_ms", "{:.2f}", queue.mean},
          {"  p50", "queue_p50_ms", "{:.2f}", queue.p50},
          {"  p90", "queue_p90_ms", "{:.2f}", queue.p90},
          {"  p99", "queue_p99_ms", "{:.2f}", queue.p99},
          {"whole request ms, mean", "e2e_mean_ms", "{:.2f}", e2e.mean},
          {"  p99", "e2e_p99_ms", "{:.2f}", e2e.p99}};
}

std::vector<Figure> Counts(const RequestFigures& f, double duration_s) {
  return {{"requests finished", "finished", "{:.0f}", static_cast<double>(f.finished)},
          {"  refused", "refused", "{:.0f}", static_cast<double>(f.refused)},
          {"  finished per second", "requests_per_s", "{:.3f}", PerSecond(f.finished, duration_s)},
          {"  good ones per second", "goodput_per_s", "{:.3f}", PerSecond(f.good, duration_s)},
          {"  good share", "good_share", "{:.2%}", Share(f.good, f.finished + f.refused)},
          {"output tokens per second", "output_tokens_per_s", "{:.1f}",
           PerSecond(f.output_tokens, duration_s)},
          {"  prompt too", "total_tokens_per_s", "{:.1f}",
           PerSecond(f.output_tokens + f.prompt_tokens, duration_s)},
          {"prompt tokens found cached", "hit_rate", "{:.2%}",
           Share(f.cached_tokens, f.prompt_tokens)}};
}

std::vector<Figure> Work(const SimulationReport& r, int32_t replicas) {
  const auto number = [](int64_t n) { return static_cast<double>(n); };
  const double most = static_cast<double>(
      *std::max_element(r.requests_of_replica.begin(), r.requests_of_replica.end()));
  return {
      {"seconds, first arrival to last token", "duration_s", "{:.1f}", r.duration_s},
      {"  of them in steps", "busy_share", "{:.2%}", Share(r.busy_s, r.duration_s * replicas)},
      {"steps", "steps", "{:.0f}", number(r.steps)},
      {"  sequences in one", "step_seqs", "{:.1f}", r.batch_seqs},
      {"  of max_num_batched_tokens", "batch_fill", "{:.2%}", r.batch_fill},
      {"tokens computed", "computed_tokens", "{:.0f}", number(r.computed_tokens)},
      {"  again, after preemption", "recomputed_tokens", "{:.0f}", number(r.recomputed_tokens())},
      {"  for drafts that failed", "rejected_drafts", "{:.0f}", number(r.rejected_drafts)},
      {"preemptions", "preemptions", "{:.0f}", number(r.preemptions)},
      {"pages copied, saved, loaded", "copies", "{:.0f}", number(r.copies)},
      {"pool in use", "pool_used", "{:.2%}", r.pool_used},
      {"  kept for hits", "pool_cached", "{:.2%}", r.pool_cached},
      {"  unused", "pool_unused", "{:.2%}", std::max(0.0, 1 - r.pool_used - r.pool_cached)},
      {"  padding of what is in use", "padding", "{:.2%}", r.padding},
      {"busiest server's requests / mean", "imbalance", "{:.3f}",
       Share(most * replicas, number(r.all.finished + r.all.refused))}};
}

std::string FormatValue(const Figure& f) {
  const std::string_view format = f.format;
  if (format == "{:.2%}") return fmt::format("{:.2f}%", f.value * 100);
  return fmt::format(fmt::runtime(format), f.value);
}

std::string Table(const std::vector<std::vector<Figure>>& columns) {
  std::string text;
  for (size_t row = 0; row < columns[0].size(); ++row) {
    text += fmt::format("{:<38}", columns[0][row].label);
    for (const std::vector<Figure>& column : columns) {
      text += fmt::format("{:>18}", FormatValue(column[row]));
    }
    text += '\n';
  }
  return text;
}

std::string KindLine(const std::string& kind, const RequestFigures& f, double duration_s) {
  const Percentiles ttft = f.ttft_us.Ms(), itl = f.itl_us.Ms();
  return fmt::format(
      "  {:<14}{:>10}{:>10}{:>11.2f}%{:>12.1f}{:>12.1f}{:>12.1f}{:>10.2f}{:>10.2f}\n", kind,
      f.finished, f.refused, 100 * Share(f.good, f.finished + f.refused),
      PerSecond(f.output_tokens, duration_s), ttft.p50, ttft.p99, itl.p50, itl.p99);
}

template <typename Kinds>
std::string KindTable(const char* title, const Kinds& kinds, double duration_s) {
  std::string text =
      fmt::format("  {:<14}{:>10}{:>10}{:>12}{:>12}{:>12}{:>12}{:>10}{:>10}\n", title, "finished",
                  "refused", "good", "tokens/s", "TTFT p50", "TTFT p99", "ITL p50", "ITL p99");
  for (const auto& [kind, figures] : kinds) {
    text += KindLine(fmt::format("{}", kind), figures, duration_s);
  }
  return text;
}

void WriteFigures(const std::vector<Figure>& figures, JsonWriter& w) {
  for (const Figure& f : figures) {
    w.Key(f.key);
    w.Double(f.value);
  }
}

template <typename Kinds>
void WriteKinds(const char* key, const Kinds& kinds, double duration_s, JsonWriter& w) {
  w.Key(key);
  w.BeginObject();
  for (const auto& [kind, figures] : kinds) {
    w.Key(fmt::format("{}", kind));
    w.BeginObject();
    WriteFigures(Counts(figures, duration_s), w);
    WriteFigures(Latencies(figures), w);
    w.EndObject();
  }
  w.EndObject();
}

std::string NameOf(const SimulationConfig& config) {
  return config.name.empty() ? "as given" : config.name;
}

}  // namespace

std::string ReportText(std::span<const SimulationConfig> configs,
                       std::span<const SimulationReport> reports) {
  std::string text;
  if (configs.size() > 1) {
    for (size_t i = 0; i < configs.size(); ++i) {
      text += fmt::format("[{}] {}\n", i + 1, NameOf(configs[i]));
    }
    text += fmt::format("{:<38}", "");
    for (size_t i = 0; i < configs.size(); ++i) {
      text += fmt::format("{:>18}", fmt::format("[{}]", i + 1));
    }
    text += '\n';
  }
  std::vector<std::vector<Figure>> columns;
  for (size_t i = 0; i < reports.size(); ++i) {
    const SimulationReport& r = reports[i];
    std::vector<Figure>& column = columns.emplace_back(Counts(r.all, r.duration_s));
    for (const std::vector<Figure>& part : {Latencies(r.all), Work(r, configs[i].replicas)}) {
      column.insert(column.end(), part.begin(), part.end());
    }
  }
  text += Table(columns);
  for (size_t i = 0; i < reports.size(); ++i) {
    const SimulationReport& r = reports[i];
    if (configs.size() > 1 && (r.tenants.size() > 1 || r.priorities.size() > 1)) {
      text += fmt::format("[{}] {}\n", i + 1, NameOf(configs[i]));
    }
    if (!r.tenants.empty()) text += KindTable("tenant", r.tenants, r.duration_s);
    if (r.priorities.size() > 1) text += KindTable("priority", r.priorities, r.duration_s);
  }
  for (size_t i = 0; i < reports.size(); ++i) {
    const SimulationReport& r = reports[i];
    text += fmt::format("simulated in {:.1f} s, {:.1f} s of it scheduling ({:.1f} us per step)\n",
                        r.wall_s, r.scheduler_s,
                        1e6 * Share(r.scheduler_s, static_cast<double>(r.steps)));
  }
  return text;
}

void WriteReport(const SimulationConfig& config, const SimulationReport& report, JsonWriter& w) {
  w.BeginObject();
  w.Key("config");
  w.BeginObject();
  SimulationConfig::VisitFields(config, [&](const FieldInfo& info, const auto& member) {
    w.Key(info.name);
    w.String(FieldText(member));
  });
  w.EndObject();
  WriteFigures(Counts(report.all, report.duration_s), w);
  WriteFigures(Latencies(report.all), w);
  WriteFigures(Work(report, config.replicas), w);
  if (!report.tenants.empty()) WriteKinds("tenants", report.tenants, report.duration_s, w);
  if (report.priorities.size() > 1) {
    WriteKinds("priorities", report.priorities, report.duration_s, w);
  }
  w.EndObject();
}

}  // namespace quire
