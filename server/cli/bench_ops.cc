// server/cli/bench_ops.cc -- `quire bench ops`: where the time of a step goes. Loads the model as
// `quire serve` would, runs workloads in this process, and prints a table of operations.
#include "server/cli/bench_ops.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "base/cpu_topology.h"
#include "base/json.h"
#include "bench/ops_run.h"
#include "kernels/cpu_isa.h"
#include "kernels/profile/machine_text.h"
#include "kernels/profile/op_table.h"
#include "server/cli/commands.h"
#include "server/load_model.h"

namespace quire {
namespace {

constexpr kernels::StepKind kKinds[] = {kernels::StepKind::kPrefill, kernels::StepKind::kDecode};

void PrintRun(const std::string& name, const LatencySummary& s, const kernels::OpProfile& profile,
              const kernels::MachinePeaks& peaks) {
  fmt::print(
      "\n{}: {} prompt + {} output tokens in {:.3f} s; first token after {:.1f} ms, one stream "
      "{:.1f} tokens/s, all {:.1f} tokens/s\n",
      name, s.prompt_tokens, s.output_tokens, s.duration_s, s.ttft_ms.p50, s.decode_tokens_per_s,
      s.output_tokens_per_s);
  for (const kernels::StepKind kind : kKinds) {
    fmt::print("{}", kernels::OpTable(profile, kind, peaks));
  }
  std::fflush(stdout);
}

void WriteRun(const std::string& name, const LatencySummary& s, const kernels::OpProfile& profile,
              const kernels::MachinePeaks& peaks, JsonWriter& w) {
  w.BeginObject();
  w.Key("workload");
  w.String(name);
  for (const auto& [key, value] : {std::pair<const char*, double>{"duration_s", s.duration_s},
                                   {"ttft_ms", s.ttft_ms.p50},
                                   {"decode_tokens_per_s", s.decode_tokens_per_s},
                                   {"output_tokens_per_s", s.output_tokens_per_s}}) {
    w.Key(key);
    w.Double(value);
  }
  w.Key("steps");
  w.BeginArray();
  for (const kernels::StepKind kind : kKinds) kernels::WriteOps(profile, kind, peaks, w);
  w.EndArray();
  w.EndObject();
}

}  // namespace

void BenchOps::AddOptions(CLI::App& app) {
  app.add_option("--workload", workloads_,
                 "W1 one stream, W2 prefill, W3 64 at once, W4 64 with a shared prefix")
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--runs", runs_, "of each workload, with fresh prompts, in one table")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("--seed", seed_, "of the prompts")->capture_default_str();
  app.add_flag("--json", json_, "print a JSON object instead of tables");
  flags_.Add(app, {"--workload", "--runs", "--seed", "--json"});
}

int BenchOps::Run() const {
  const absl::StatusOr<ServerOptions> options = flags_.Load();
  if (!options.ok()) return Fail(kExitUsage, Message(options.status()).c_str());
  const absl::StatusOr<std::unique_ptr<ModelRuntime>> loaded =
      ModelRuntime::Load(ToRuntimeOptions(*options));
  if (!loaded.ok()) return Fail(kExitFailed, Message(loaded.status()).c_str());
  ModelRuntime& runtime = **loaded;
  runtime.WaitForPrefault();
  const kernels::MachinePeaks peaks =
      kernels::MeasurePeaks(runtime.num_threads(), static_cast<size_t>(runtime.memory().weights));
  kernels::OpProfile profile(runtime.num_threads(),
                             options->trace_file.empty() ? 0 : size_t{1} << 20);
  JsonWriter json;
  json.BeginObject();
  const kernels::MachineInfo machine = kernels::ReadMachineInfo();
  if (json_) {
    json.Key("machine");
    kernels::WriteMachine(machine, json);
    json.Key("peaks");
    kernels::WritePeaks(peaks, json);
    json.Key("runs");
    json.BeginArray();
  } else {
    fmt::print("{}{}\n", kernels::MachineText(machine),
               DescribePool(ReadCpuTopology(AllowedCpus()), runtime.num_threads()));
    fmt::print("{}, {}, attention {}, cache {}, ISA {}\n{}\n", options->model,
               runtime.weight_format(), runtime.attention_name(), runtime.kv_cache_dtype(),
               kernels::NameOf(kernels::ActiveIsa()), kernels::PeaksText(peaks));
  }
  for (const std::string& name : workloads_) {
    profile.Reset();
    LatencySummary summary;
    for (int32_t run = 0; run < runs_; ++run) {
      const absl::StatusOr<Workload> workload =
          MakeWorkload(name, run, runtime.config().vocab_size, seed_);
      if (!workload.ok()) return Fail(kExitUsage, Message(workload.status()).c_str());
      const absl::StatusOr<LatencySummary> done =
          RunOps(*workload,
                 {.max_num_seqs = options->max_num_seqs,
                  .max_num_batched_tokens = options->max_num_batched_tokens},
                 runtime, &profile);
      if (!done.ok()) return Fail(kExitFailed, Message(done.status()).c_str());
      if (run == 0 || done->duration_s < summary.duration_s) summary = *done;
    }
    if (json_) {
      WriteRun(name, summary, profile, peaks, json);
    } else {
      PrintRun(name, summary, profile, peaks);
    }
  }
  if (json_) {
    json.EndArray();
    json.EndObject();
    fmt::print("{}\n", json.text());
  }
  if (options->trace_file.empty()) return 0;
  const absl::Status written = kernels::WriteTrace(profile, options->trace_file);
  return written.ok() ? 0 : Fail(kExitFailed, Message(written).c_str());
}

}  // namespace quire
