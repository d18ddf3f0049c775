#include "kernels/profile/op_table.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <vector>

namespace quire::kernels {
namespace {

struct Row {
  Op op;
  OpTotals totals;
  Bound bound;
};

std::vector<Row> RowsOf(const OpProfile& profile, StepKind kind, const MachinePeaks& peaks) {
  std::vector<Row> rows;
  for (size_t i = 0; i < kNumOps; ++i) {
    const auto op = static_cast<Op>(i);
    const OpTotals& t = profile.totals(kind, op);
    if (t.calls == 0) continue;
    rows.push_back({op, t, BoundOf(t.cost, static_cast<double>(t.calls), peaks)});
  }
  std::stable_sort(rows.begin(), rows.end(),
                   [](const Row& a, const Row& b) { return a.totals.ns > b.totals.ns; });
  return rows;
}

std::string_view NameOf(StepKind kind) { return kind == StepKind::kDecode ? "decode" : "prefill"; }

std::string Percent(double part, double whole) {
  return whole > 0 ? fmt::format("{:.1f}%", 100 * part / whole) : std::string("-");
}

}  // namespace

std::string PeaksText(const MachinePeaks& p) {
  std::string text = fmt::format(
      "{} threads; reads of {:.1f} MiB {:.1f} GB/s, of {:.1f} MiB each (cache) {:.1f} GB/s; ",
      p.num_threads, static_cast<double>(p.memory_bytes) / (1 << 20), p.memory_gb_s,
      static_cast<double>(p.cache_bytes) / (1 << 20), p.cache_gb_s);
  for (size_t i = 0; i < kNumMathTypes; ++i) {
    const auto type = static_cast<MathType>(i);
    const double best = p.gops(type);
    std::string_view unit = "none";
    for (const MathPeak& peak : p.math) {
      if (peak.type == type && peak.gops_per_thread * p.num_threads == best && best > 0) {
        unit = peak.unit;
      }
    }
    text += fmt::format("{}{} {:.0f} GFLOP/s ({})", i == 0 ? "" : ", ", kernels::NameOf(type), best,
                        unit);
  }
  return text;
}

std::string OpTable(const OpProfile& profile, StepKind kind, const MachinePeaks& peaks) {
  const StepTotals& steps = profile.steps(kind);
  if (steps.steps == 0) return "";
  const auto n = static_cast<double>(steps.steps);
  std::string text = fmt::format(
      "{} steps: {}, {:.1f} tokens each, {:.3f} ms each, the shortest {:.3f} ms\n"
      "{:<12}{:>7}{:>10}{:>7}{:>10}{:>7}{:>8}{:>9}{:>7}{:>10}{:>7}{:>10}{:>8}\n",
      NameOf(kind), steps.steps, static_cast<double>(steps.tokens) / n,
      static_cast<double>(steps.ns) / n * 1e-6, static_cast<double>(steps.best_ns) * 1e-6, "op",
      "calls", "ms", "share", "us/call", "busy", "GB/s", "GFLOP/s", "bound", "bound us", "of it",
      "best us", "of it");
  const std::vector<Row> rows = RowsOf(profile, kind, peaks);
  const auto threads = static_cast<double>(profile.num_threads());
  double all_ns = 0, all_busy = 0, all_bound = 0, all_best = 0;
  for (const Row& r : rows) {
    all_ns += static_cast<double>(r.totals.ns);
    all_busy += static_cast<double>(r.totals.busy_ns);
  }
  for (const Row& r : rows) {
    const auto calls = static_cast<double>(r.totals.calls);
    const auto ns = static_cast<double>(r.totals.ns);
    const auto best_ns = static_cast<double>(r.totals.best_ns);
    const bool bounded = r.bound.us > 0;
    all_bound += r.bound.us;
    all_best += best_ns * calls;
    const std::string_view by = !bounded                              ? "-"
                                : r.bound.math_us > r.bound.memory_us ? "math"
                                                                      : "bytes";
    text += fmt::format(
        "{:<12}{:>7}{:>10.2f}{:>7}{:>10.2f}{:>7}{:>8.1f}{:>9.1f}{:>7}{:>10.2f}{:>7}{:>10.2f}{:>8}"
        "\n",
        kernels::NameOf(r.op), r.totals.calls, ns * 1e-6, Percent(ns, all_ns), ns * 1e-3 / calls,
        Percent(static_cast<double>(r.totals.busy_ns), threads * ns), r.totals.cost.bytes() / ns,
        r.totals.cost.operations() / ns, by, r.bound.us / calls,
        Percent(r.bound.us * 1e3, bounded ? ns : 0), best_ns * 1e-3,
        Percent(BoundOf(r.totals.best_cost, 1, peaks).us * 1e3, bounded ? best_ns : 0));
  }
  text += fmt::format(
      "{:<12}{:>7}{:>10.2f}{:>7}{:>10.2f}{:>7}{:>8}{:>9}{:>7}{:>10.2f}{:>7}{:>10.2f}{:>8}\n", "all",
      steps.steps, all_ns * 1e-6, "100.0%", all_ns * 1e-3 / n, Percent(all_busy, threads * all_ns),
      "", "", "", all_bound / n, Percent(all_bound * 1e3, all_ns), all_best * 1e-3 / n,
      Percent(all_bound * 1e3, all_best));
  return text;
}

void WritePeaks(const MachinePeaks& p, JsonWriter& w) {
  const auto number = [&w](const char* key, double value) {
    w.Key(key);
    w.Double(value);
  };
  w.BeginObject();
  w.Key("threads");
  w.Int(p.num_threads);
  number("memory_bytes", static_cast<double>(p.memory_bytes));
  number("memory_gb_s", p.memory_gb_s);
  number("cache_bytes", static_cast<double>(p.cache_bytes));
  number("cache_gb_s", p.cache_gb_s);
  for (const MathPeak& peak : p.math) {
    number(std::string(peak.unit).c_str(), peak.gops_per_thread * p.num_threads);
  }
  w.EndObject();
}

void WriteOps(const OpProfile& profile, StepKind kind, const MachinePeaks& peaks, JsonWriter& w) {
  const StepTotals& steps = profile.steps(kind);
  w.BeginObject();
  w.Key("kind");
  w.String(std::string(NameOf(kind)));
  for (const auto& [key, value] : {std::pair<const char*, int64_t>{"steps", steps.steps},
                                   {"tokens", steps.tokens},
                                   {"sequences", steps.sequences},
                                   {"ns", steps.ns},
                                   {"best_ns", steps.best_ns}}) {
    w.Key(key);
    w.Int(value);
  }
  w.Key("ops");
  w.BeginArray();
  for (const Row& r : RowsOf(profile, kind, peaks)) {
    w.BeginObject();
    w.Key("op");
    w.String(std::string(kernels::NameOf(r.op)));
    w.Key("calls");
    w.Int(r.totals.calls);
    w.Key("ns");
    w.Int(r.totals.ns);
    w.Key("best_ns");
    w.Int(r.totals.best_ns);
    w.Key("busy_ns");
    w.Int(r.totals.busy_ns);
    for (const auto& [key, value] :
         {std::pair<const char*, double>{"weight_bytes", r.totals.cost.weight_bytes},
          {"kv_bytes", r.totals.cost.kv_bytes},
          {"activation_bytes", r.totals.cost.activation_bytes},
          {"operations", r.totals.cost.operations()},
          {"bound_us", r.bound.us},
          {"bound_memory_us", r.bound.memory_us},
          {"bound_math_us", r.bound.math_us},
          {"best_bound_us", BoundOf(r.totals.best_cost, 1, peaks).us}}) {
      w.Key(key);
      w.Double(value);
    }
    w.EndObject();
  }
  w.EndArray();
  w.EndObject();
}

std::string ChromeTrace(const OpProfile& profile) {
  const auto us = [](int64_t ns) { return fmt::format("{}.{:03}", ns / 1000, ns % 1000); };
  std::string text =
      "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n"
      "{\"ph\":\"M\",\"pid\":1,\"name\":\"process_name\",\"args\":{\"name\":\"quire\"}},\n"
      "{\"ph\":\"M\",\"pid\":1,\"tid\":1,\"name\":\"thread_name\",\"args\":{\"name\":\"engine\"}}";
  for (int32_t worker = 1; worker < profile.num_threads(); ++worker) {
    text += fmt::format(
        ",\n{{\"ph\":\"M\",\"pid\":1,\"tid\":{},\"name\":\"thread_name\",\"args\":{{\"name\":"
        "\"worker {}\"}}}}",
        worker + 1, worker);
  }
  for (const StepSpan& s : profile.step_spans()) {
    text += fmt::format(
        ",\n{{\"ph\":\"X\",\"pid\":1,\"tid\":1,\"cat\":\"step\",\"name\":\"{}\",\"ts\":{},"
        "\"dur\":{},\"args\":{{\"tokens\":{},\"sequences\":{}}}}}",
        s.tokens == s.sequences ? "decode step" : "prefill step", us(s.start_ns), us(s.ns),
        s.tokens, s.sequences);
  }
  for (const OpSpan& s : profile.op_spans()) {
    text += fmt::format(
        ",\n{{\"ph\":\"X\",\"pid\":1,\"tid\":1,\"cat\":\"op\",\"name\":\"{}\",\"ts\":{},"
        "\"dur\":{},\"args\":{{\"bytes\":{:.0f},\"operations\":{:.0f}}}}}",
        kernels::NameOf(s.op), us(s.start_ns), us(s.ns), s.bytes, s.operations);
  }
  // Inside their operation on the engine's track, and beside it on the others'.
  for (const TaskSpan& s : profile.task_spans()) {
    text += fmt::format(
        ",\n{{\"ph\":\"X\",\"pid\":1,\"tid\":{},\"cat\":\"tasks\",\"name\":\"{}\",\"ts\":{},"
        "\"dur\":{}}}",
        s.worker + 1, kernels::NameOf(s.op), us(s.start_ns), us(s.ns));
  }
  return text + "\n]}\n";
}

absl::Status WriteTrace(const OpProfile& profile, const std::string& path) {
  std::ofstream file(path, std::ios::binary);
  file << ChromeTrace(profile);
  file.flush();
  if (!file)
    return InvalidArgument("trace_file={} can't be written: {}", path, std::strerror(errno));
  return absl::OkStatus();
}

}  // namespace quire::kernels
