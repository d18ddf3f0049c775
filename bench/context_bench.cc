// bench/context_bench.cc -- time per token with the cache over the length of the context, beside
// computing everything again; as a table, JSON, and a plot.
//
//   context_bench <model> [--contexts=64,...,4096] [--recompute=512] [--rounds=10] [--steps=8]
//                 [--threads=2] [--compute=auto] [--kv-cache-dtype=auto] [--attention=flash]
//                 [--json] [--svg=FILE]
//
// The line through the medians has a slope: what one more token in the cache adds to a step. Keys
// and values of one token, divided by it, is the rate at which they come; beside it stands the rate
// of reading as many bytes as weights and the longest context have, again and again.
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "bench/context_cost.h"
#include "bench/json_fields.h"
#include "bench/runtime_flags.h"
#include "bench/svg_plot.h"
#include "kernels/profile/machine_peaks.h"
#include "kernels/profile/machine_text.h"

namespace quire {
namespace {

struct Options {
  ContextCostOptions costs;
  RuntimeOptions runtime;
  bool json = false;
  std::string svg;
};

struct Result {
  ContextCosts costs;
  ContextFit fit;
  double read_gb_s = 0;
  double recompute_us = 0;  // median
  double cached_us = 0;     // median at as many tokens; 0: that context was not measured
  double cached_tokens = 0;
  double expected_slope() const { return fit.kv_bytes_per_token / read_gb_s * 1e-3; }  // us
};

int Fail(const absl::Status& status) {
  std::fprintf(stderr, "%s\n", Message(status).c_str());
  return 1;
}

void PrintTable(const Options& o, const Result& r) {
  std::printf("%8s %12s %12s %14s %12s\n", "context", "median us", "best us", "attention us",
              "tokens/s");
  for (const ContextCost& c : r.costs.contexts) {
    const double us = Median(c.step_us);
    std::printf("%8d %12.1f %12.1f %14.1f %12.1f\n", c.context, us,
                *std::min_element(c.step_us.begin(), c.step_us.end()), Median(c.attention_us),
                1e6 / us);
  }
  std::printf(
      "one more token in the cache adds %.4f us to a step (standard error %.4f, r2 %.4f), %.4f of "
      "it in attention\nits keys and values are %.0f bytes: %.1f GB/s by the step, %.1f GB/s by "
      "attention; reading as many bytes as weights and the longest context have: %.1f GB/s, so "
      "%.4f us\n",
      r.fit.step_us.slope, r.fit.step_us.slope_error, r.fit.step_us.r2, r.fit.attention_us.slope,
      r.fit.kv_bytes_per_token, r.fit.slope_gb_s, r.fit.attention_gb_s, r.read_gb_s,
      r.expected_slope());
  if (r.cached_us > 0 && r.recompute_us > 0) {
    std::printf(
        "computing %d tokens again takes %.1f us, one more with them cached %.1f us: %.1fx\n",
        o.costs.recompute_tokens, r.recompute_us, r.cached_us, r.recompute_us / r.cached_us);
  }
}

void PrintJson(const Options& o, const ModelRuntime& runtime, const kernels::MachineInfo& machine,
               const Result& r) {
  JsonWriter w;
  w.BeginObject();
  w.Key("machine");
  WriteMachine(machine, w);
  WriteTexts(w, {{"model", o.runtime.model},
                 {"weights", runtime.weight_format()},
                 {"compute", runtime.compute()},
                 {"kv_cache_dtype", runtime.kv_cache_dtype()},
                 {"attention", runtime.attention_name()}});
  w.Key("contexts");
  w.BeginArray();
  for (const ContextCost& c : r.costs.contexts) {
    w.BeginObject();
    WriteNumbers(w, {{"context", c.context},
                     {"median_us", Median(c.step_us)},
                     {"best_us", *std::min_element(c.step_us.begin(), c.step_us.end())},
                     {"attention_us", Median(c.attention_us)},
                     {"kv_bytes", c.kv_bytes}});
    w.EndObject();
  }
  w.EndArray();
  WriteNumbers(w, {{"threads", runtime.num_threads()},
                   {"slope_us", r.fit.step_us.slope},
                   {"slope_error_us", r.fit.step_us.slope_error},
                   {"intercept_us", r.fit.step_us.intercept},
                   {"r2", r.fit.step_us.r2},
                   {"attention_slope_us", r.fit.attention_us.slope},
                   {"kv_bytes_per_token", r.fit.kv_bytes_per_token},
                   {"slope_gb_s", r.fit.slope_gb_s},
                   {"attention_gb_s", r.fit.attention_gb_s},
                   {"read_gb_s", r.read_gb_s},
                   {"expected_slope_us", r.expected_slope()},
                   {"recompute_tokens", o.costs.recompute_tokens},
                   {"recompute_us", r.recompute_us},
                   {"cached_us", r.cached_us}});
  if (r.cached_us > 0) WriteNumbers(w, {{"recompute_ratio", r.recompute_us / r.cached_us}});
  w.EndObject();
  std::printf("%s\n", w.text().c_str());
}

Plot MakePlot(const ModelRuntime& runtime, const kernels::MachineInfo& machine, const Result& r) {
  Plot plot;
  plot.title = "Time per token with the cache, one sequence";
  plot.notes.push_back(fmt::format("{}, products in {}, cache in {}, {} thread{}, {}",
                                   runtime.weight_format(), runtime.compute(),
                                   runtime.kv_cache_dtype(), runtime.num_threads(),
                                   runtime.num_threads() == 1 ? "" : "s", machine.isa));
  plot.notes.push_back(
      fmt::format("{}; {}; load {:.1f}", machine.cpu, machine.build, machine.load));
  plot.x_label = "tokens in the cache";
  plot.y_label = "microseconds";
  PlotSeries step{.name = fmt::format("a step: {:.4f} us for each token in the cache, r2 {:.4f}",
                                      r.fit.step_us.slope, r.fit.step_us.r2),
                  .color = "#1f4e9c",
                  .has_line = true,
                  .line = r.fit.step_us};
  PlotSeries attention{
      .name = fmt::format("its attention: {:.4f} us, {:.0f} bytes of keys and "
                          "values at {:.1f} GB/s",
                          r.fit.attention_us.slope, r.fit.kv_bytes_per_token, r.fit.attention_gb_s),
      .color = "#c4561b",
      .has_line = true,
      .line = r.fit.attention_us};
  PlotSeries reading{
      .name = fmt::format("reading these bytes at the measured {:.1f} GB/s: {:.4f} us", r.read_gb_s,
                          r.expected_slope()),
      .color = "#8a8a8a",
      .has_line = true,
      .line = {.slope = r.expected_slope()}};
  for (const ContextCost& c : r.costs.contexts) {
    step.points.push_back({static_cast<double>(c.context), Median(c.step_us)});
    attention.points.push_back({static_cast<double>(c.context), Median(c.attention_us)});
  }
  plot.series = {std::move(step), std::move(attention), std::move(reading)};
  if (r.cached_us > 0) {
    plot.series.push_back(
        {.name = fmt::format("computing {:.0f} tokens again: {:.0f} us, {:.1f} times "
                             "a step (not drawn)",
                             r.cached_tokens, r.recompute_us, r.recompute_us / r.cached_us),
         .color = "#ffffff"});
  }
  return plot;
}

int Main(int argc, char** argv) {
  Options o;
  o.costs.contexts = {64, 128, 256, 512, 1024, 1536, 2048, 3072, 4096};
  o.runtime.num_threads = NumPhysicalCores();
  Flags flags;
  flags.Add("contexts", &o.costs.contexts, 1, 1 << 20,
            "tokens in the cache; default: 64 to 4096, as far as the model goes");
  flags.Add("recompute", &o.costs.recompute_tokens, 0, 1 << 20, "tokens without a cache; 0: none");
  flags.Add("rounds", &o.costs.rounds, 1, 1000, "over all contexts");
  flags.Add("steps", &o.costs.steps, 1, 1000, "at each context in each round");
  flags.Add("threads", &o.runtime.num_threads, 1, 1024, "default: physical cores");
  flags.Add("json", &o.json, "an object with unrounded figures instead of a table");
  flags.Add("svg", &o.svg, "a file for the plot");
  AddRuntimeFlags(flags, o.runtime);
  const std::vector<std::string> rest =
      ParseOrExit(flags, "context_bench <model> [flags]", argc, argv, 1);
  if (rest.empty()) {
    std::fprintf(stderr, "context_bench needs a model: a .gguf file or a directory\n");
    return 2;
  }
  o.runtime.model = rest[0];
  int32_t tokens = o.costs.recompute_tokens;
  for (const int32_t context : o.costs.contexts) tokens += context + o.costs.steps + 64;
  o.runtime.memory.num_blocks = tokens / o.runtime.block_size + 64;
  const auto loaded = ModelRuntime::Load(o.runtime);
  if (!loaded.ok()) return Fail(loaded.status());
  ModelRuntime& runtime = **loaded;
  o.costs.max_batched_tokens = o.runtime.max_num_batched_tokens;
  std::erase_if(o.costs.contexts,
                [&](int32_t c) { return c + o.costs.steps > runtime.max_model_len(); });
  std::sort(o.costs.contexts.begin(), o.costs.contexts.end());
  if (o.costs.contexts.size() < 2) {
    return Fail(InvalidArgument("contexts must have two that fit max_model_len={}",
                                runtime.max_model_len()));
  }

  const kernels::MachineInfo machine = kernels::ReadMachineInfo();
  if (!o.json) {
    std::printf(
        "%s%s, %s, compute %s, attention %s, cache %s, %d threads\n", MachineText(machine).c_str(),
        o.runtime.model.c_str(), runtime.weight_format().c_str(), runtime.compute().c_str(),
        runtime.attention_name().c_str(), runtime.kv_cache_dtype().c_str(), runtime.num_threads());
    std::fflush(stdout);
  }
  absl::StatusOr<ContextCosts> costs = MeasureContexts(runtime, o.costs);
  if (!costs.ok()) return Fail(costs.status());
  Result r{.costs = *std::move(costs)};
  r.fit = FitContexts(r.costs);
  r.read_gb_s = kernels::MeasureRead(static_cast<size_t>(runtime.memory().weights) +
                                         static_cast<size_t>(r.costs.contexts.back().kv_bytes),
                                     runtime.num_threads(), 1.0);
  r.recompute_us = Median(r.costs.recompute_us);
  for (const ContextCost& c : r.costs.contexts) {
    if (c.context != o.costs.recompute_tokens) continue;
    r.cached_us = Median(c.step_us);
    r.cached_tokens = c.context;
  }
  if (o.json) {
    PrintJson(o, runtime, machine, r);
  } else {
    PrintTable(o, r);
  }
  if (o.svg.empty()) return 0;
  const absl::Status written = WriteSvg(MakePlot(runtime, machine, r), o.svg);
  return written.ok() ? 0 : Fail(written);
}

}  // namespace
}  // namespace quire

int main(int argc, char** argv) { return quire::Main(argc, argv); }
