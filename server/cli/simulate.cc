// server/cli/simulate.cc -- `quire simulate`: a load against the scheduler on a virtual clock; the
// fit of its cost model to this machine, and the check of both against real runs.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bench/simulation/config.h"
#include "bench/simulation/measure_steps.h"
#include "bench/simulation/real_run.h"
#include "bench/simulation/report.h"
#include "bench/simulation/simulator.h"
#include "bench/simulation/trace_file.h"
#include "bench/simulation/trace_generator.h"
#include "server/cli/commands.h"

namespace quire {
namespace {

struct SimulateArguments {
  std::string trace = "uniform";
  std::string cost;
  std::string write_trace;
  std::vector<std::string> compare;
  bool json = false;
  std::string fit;
  bool check = false;
  std::string model;
  int32_t num_threads = 0;
  int32_t repeats = 3;
  // Flags of the two tables that were given; empty = not.
  std::map<std::string, std::string> trace_fields, config_fields;
};

template <typename T>
absl::Status Apply(const std::map<std::string, std::string>& fields, T& object) {
  for (const auto& [name, value] : fields) {
    if (!value.empty()) RETURN_IF_ERROR(SetField(object, name, value));
  }
  return absl::OkStatus();
}

absl::StatusOr<SimulationConfig> ConfigOf(const SimulateArguments& a) {
  SimulationConfig config;
  RETURN_IF_ERROR(Apply(a.config_fields, config));
  return config;
}

bool IsTraceFile(const std::string& name) {
  return name.find('/') != std::string::npos || name.find(".jsonl") != std::string::npos;
}

absl::StatusOr<std::unique_ptr<TraceSource>> OpenSource(const SimulateArguments& a) {
  if (IsTraceFile(a.trace)) {
    for (const auto& [name, value] : a.trace_fields) {
      if (value.empty()) continue;
      return InvalidArgument("{}={} is of generated traces; {} says it itself", name, value,
                             a.trace);
    }
    return OpenTrace(a.trace);
  }
  ASSIGN_OR_RETURN(TraceSpec spec, NamedTrace(a.trace));
  RETURN_IF_ERROR(Apply(a.trace_fields, spec));
  return GenerateTrace(spec);
}

absl::Status RunSimulations(const SimulateArguments& a) {
  StepCostModel cost = BuiltInStepCost();
  if (!a.cost.empty()) {
    ASSIGN_OR_RETURN(cost, ReadStepCost(a.cost));
  }
  ASSIGN_OR_RETURN(const SimulationConfig base, ConfigOf(a));
  std::vector<SimulationConfig> configs = {base};
  for (const std::string& changes : a.compare) {
    ASSIGN_OR_RETURN(SimulationConfig config, Override(base, changes));
    configs.push_back(std::move(config));
  }
  std::vector<SimulationReport> reports;
  for (const SimulationConfig& config : configs) {
    ASSIGN_OR_RETURN(const std::unique_ptr<TraceSource> source, OpenSource(a));
    ASSIGN_OR_RETURN(SimulationReport report, Simulate(config, cost, *source));
    reports.push_back(std::move(report));
  }
  if (!a.json) {
    fmt::print("{}", ReportText(configs, reports));
    return absl::OkStatus();
  }
  JsonWriter w;
  w.BeginArray();
  for (size_t i = 0; i < configs.size(); ++i) WriteReport(configs[i], reports[i], w);
  w.EndArray();
  fmt::print("{}\n", w.text());
  return absl::OkStatus();
}

absl::Status WriteTrace(const SimulateArguments& a) {
  ASSIGN_OR_RETURN(const std::unique_ptr<TraceSource> source, OpenSource(a));
  std::ofstream out(a.write_trace, std::ios::binary);
  TraceRequest request;
  int64_t lines = 0;
  for (;; ++lines) {
    ASSIGN_OR_RETURN(const bool more, source->Next(request));
    if (!more) break;
    out << TraceLine(request);
  }
  out.close();
  if (!out) {
    return Error(absl::StatusCode::kInternal, "write_trace={} can't be written", a.write_trace);
  }
  fmt::print("{}: {} requests\n", a.write_trace, lines);
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<ModelRuntime>> LoadRuntime(const SimulateArguments& a,
                                                          const SimulationConfig& config) {
  RuntimeOptions options;
  options.model = a.model;
  options.num_threads = a.num_threads;
  options.block_size = config.block_size;
  options.max_num_seqs = config.scheduler.max_num_seqs;
  options.max_num_batched_tokens = config.scheduler.max_num_batched_tokens;
  options.memory.num_blocks = config.num_blocks;
  // All of the pool: a server that has been up for a while has had its memory, and what the first
  // write to it costs is in no step's cost.
  options.prefault_mib = std::numeric_limits<int32_t>::max();
  ASSIGN_OR_RETURN(std::unique_ptr<ModelRuntime> runtime, ModelRuntime::Load(options));
  runtime->WaitForPrefault();
  return runtime;
}

MeasureOptions MeasureOf(const SimulateArguments& a, const SimulationConfig& config) {
  return {.max_num_seqs = config.scheduler.max_num_seqs,
          .max_num_batched_tokens = config.scheduler.max_num_batched_tokens,
          .repeats = a.repeats};
}

void PrintFit(const std::vector<MeasuredStep>& steps, const StepFit& fit) {
  fmt::print("{:<52}{:>12}{:>12}{:>9}\n", "step (sequences x tokens after context)", "measured us",
             "model us", "off by");
  for (size_t i = 0; i < steps.size(); ++i) {
    fmt::print("{:<52}{:>12.0f}{:>12.0f}{:>8.1f}%\n", steps[i].name, steps[i].us,
               steps[i].us * (1 + fit.errors[i]), 100 * fit.errors[i]);
  }
  StepCostModel::VisitFields(fit.cost, [](const char* name, double value, const auto&) {
    fmt::print("{:<20}{:>12.3f}\n", name, value);
  });
  fmt::print("{} steps, off by {:.1f}% on average, {:.1f}% at most\n", steps.size(),
             100 * fit.mean_error, 100 * fit.max_error);
}

absl::Status Fit(const SimulateArguments& a) {
  ASSIGN_OR_RETURN(const SimulationConfig config, ConfigOf(a));
  ASSIGN_OR_RETURN(const std::unique_ptr<ModelRuntime> runtime, LoadRuntime(a, config));
  ASSIGN_OR_RETURN(const std::vector<MeasuredStep> steps,
                   MeasureSteps(*runtime, MeasureOf(a, config)));
  ASSIGN_OR_RETURN(const StepFit fit, FitStepCost(steps));
  PrintFit(steps, fit);
  std::ofstream out(a.fit, std::ios::binary);
  out << StepCostJson(fit.cost, a.model) << '\n';
  out.close();
  if (!out) return Error(absl::StatusCode::kInternal, "fit={} can't be written", a.fit);
  return absl::OkStatus();
}

struct Prediction {
  double output_tokens_per_s = 0, ttft_ms = 0, itl_ms = 0;  // means
};

absl::StatusOr<Prediction> Predict(const SimulationConfig& config, const TraceSpec& spec,
                                   const StepCostModel& cost) {
  ASSIGN_OR_RETURN(const std::unique_ptr<TraceSource> source, GenerateTrace(spec));
  ASSIGN_OR_RETURN(const SimulationReport r, Simulate(config, cost, *source));
  return Prediction{static_cast<double>(r.all.output_tokens) / r.duration_s,
                    r.all.ttft_us.Ms().mean, r.all.itl_us.Ms().mean};
}

// Steps are measured before and after the real runs, so that a machine whose speed changes slowly
// is met at its middle. A second model is fitted to the steps of the runs themselves: it leaves out
// what other programs did to one side only, and so tells a wrong simulation from a restless
// machine.
absl::Status Check(const SimulateArguments& a, bool& within) {
  ASSIGN_OR_RETURN(SimulationConfig config, ConfigOf(a));
  ASSIGN_OR_RETURN(const std::unique_ptr<ModelRuntime> runtime, LoadRuntime(a, config));
  config.scheduler.max_model_len =
      std::min(config.scheduler.max_model_len, runtime->max_model_len());
  std::vector<TraceSpec> specs;
  // A load that a small machine carries, one that piles up, and one that comes at once.
  for (const double rate : {1.0, 4.0, 1000.0}) {
    TraceSpec spec{.requests = 64,
                   .seed = specs.size() + 1,
                   .rate = rate,
                   .prompt_min = 100,
                   .prompt_max = 600,
                   .output_min = 32,
                   .output_max = 64};
    RETURN_IF_ERROR(Apply(a.trace_fields, spec));
    if (!specs.empty() && spec.rate == specs.back().rate) break;
    specs.push_back(spec);
  }
  ASSIGN_OR_RETURN(std::vector<MeasuredStep> steps, MeasureSteps(*runtime, MeasureOf(a, config)));
  std::vector<RealRun> runs;
  for (const TraceSpec& spec : specs) {
    ASSIGN_OR_RETURN(const std::unique_ptr<TraceSource> source, GenerateTrace(spec));
    ASSIGN_OR_RETURN(RealRun run, RunForReal(config, *runtime, *source));
    runs.push_back(std::move(run));
  }
  ASSIGN_OR_RETURN(const std::vector<MeasuredStep> after,
                   MeasureSteps(*runtime, MeasureOf(a, config)));
  steps.insert(steps.end(), after.begin(), after.end());
  ASSIGN_OR_RETURN(const StepFit fit, FitStepCost(steps));
  fmt::print("cost model: {} steps, off by {:.1f}% on average, {:.1f}% at most\n", steps.size(),
             100 * fit.mean_error, 100 * fit.max_error);
  fmt::print("{:>9}  {:<18}{:>12}{:>12}{:>8}{:>22}{:>8}\n", "rate /s", "", "real", "simulated",
             "ratio", "fit to the run itself", "ratio");
  within = true;
  for (size_t i = 0; i < specs.size(); ++i) {
    const LatencySummary real = Summarize(runs[i].traces);
    ASSIGN_OR_RETURN(const StepFit own_fit, FitStepCost(runs[i].steps));
    ASSIGN_OR_RETURN(const Prediction p, Predict(config, specs[i], fit.cost));
    ASSIGN_OR_RETURN(const Prediction own, Predict(config, specs[i], own_fit.cost));
    for (const auto& [what, was, is, own_is] :
         {std::tuple{"output tokens/s", real.output_tokens_per_s, p.output_tokens_per_s,
                     own.output_tokens_per_s},
          {"mean TTFT ms", real.ttft_ms.mean, p.ttft_ms, own.ttft_ms},
          {"mean ITL ms", real.itl_ms.mean, p.itl_ms, own.itl_ms}}) {
      const bool good = std::abs(is / was - 1) <= 0.15;
      within = within && good;
      fmt::print("{:>9}  {:<18}{:>12.2f}{:>12.2f}{:>8.3f}{:>22.2f}{:>8.3f}{}\n", specs[i].rate,
                 what, was, is, is / was, own_is, own_is / was, good ? "" : "  beyond 15%");
    }
  }
  return absl::OkStatus();
}

int RunSimulate(const SimulateArguments& a) {
  absl::Status status;
  bool within = true;
  if ((a.check || !a.fit.empty()) && a.model.empty()) {
    status = InvalidArgument("model is empty; --fit and --check measure one, name it by --model");
  } else if (a.check) {
    status = Check(a, within);
  } else if (!a.fit.empty()) {
    status = Fit(a);
  } else if (!a.write_trace.empty()) {
    status = WriteTrace(a);
  } else {
    status = RunSimulations(a);
  }
  if (!status.ok()) {
    return Fail(status.code() == absl::StatusCode::kInvalidArgument ? kExitUsage : kExitFailed,
                Message(status).c_str());
  }
  return within ? 0 : kExitFailed;
}

// A flag for each field of T's table, with the default in its help.
template <typename T>
void AddFields(CLI::App& app, const char* group, std::map<std::string, std::string>& fields) {
  const T defaults;
  T::VisitFields(defaults, [&](const FieldInfo& info, const auto& member) {
    std::string flag(info.name);
    std::replace(flag.begin(), flag.end(), '_', '-');
    std::string help(info.help);
    if (!info.choices.empty()) help += fmt::format(": {}", info.choices);
    help += fmt::format(" [{}]", FieldText(member));
    app.add_option("--" + flag, fields[std::string(info.name)], help)->group(group);
  });
}

}  // namespace

Subcommand MakeSimulate(CLI::App& parent) {
  auto a = std::make_shared<SimulateArguments>();
  CLI::App* const app = parent.add_subcommand(
      "simulate", "a load against the scheduler on a virtual clock: latencies, goodput, waste");
  app->add_option("--trace", a->trace,
                  "uniform, bursty, on_off, mix, tree, chat, or a .jsonl file (docs/formats.md)")
      ->capture_default_str();
  app->add_option("--cost", a->cost,
                  "what steps take, from --fit; default: SmolLM2-135M Q4_1 on two cores");
  app->add_option("--compare", a->compare,
                  "another configuration beside the given one: name=value,name=value; repeatable")
      ->expected(1)
      ->take_all()
      ->delimiter('\0');
  app->add_flag("--json", a->json, "print a JSON array");
  app->add_option("--write-trace", a->write_trace, "write the trace to a .jsonl file instead");
  app->add_option("--fit", a->fit, "measure steps of --model here and write their cost to a file");
  app->add_flag("--check", a->check,
                "run three loads through --model and through the simulation; fails beyond 15%");
  app->add_option("--model", a->model, "of --fit and --check: a .gguf file or a folder");
  app->add_option("--num-threads", a->num_threads, "kernel threads; 0: physical cores")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  app->add_option("--repeats", a->repeats, "of each measured step; the mean counts")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  AddFields<TraceSpec>(*app, "Trace", a->trace_fields);
  AddFields<SimulationConfig>(*app, "Server", a->config_fields);
  return {app, [a] { return RunSimulate(*a); }};
}

}  // namespace quire
