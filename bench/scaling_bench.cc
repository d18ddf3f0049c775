// bench/scaling_bench.cc -- what more threads bring: workloads on one model with one thread, two
// ..., in turns.
//
//   scaling_bench <model> [--threads=1,2] [--workloads=W2,W1,W3] [--rounds=5] [--compute=auto]
//                 [--kv-cache-dtype=auto] [--attention=flash] [--json]
//
// Each number of threads has a model of its own in this process; while one works, the threads of
// the others are parked. The machine's topology is printed: threads that share a core, or a core
// that somebody else uses, can't bring what two cores would. Ratios are medians over rounds of a
// round's own ratio to the first number of threads; prompts are new in each round, and the same for
// all.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "bench/json_fields.h"
#include "bench/ops_run.h"
#include "bench/runtime_flags.h"
#include "bench/statistics.h"
#include "kernels/profile/machine_text.h"

namespace quire {
namespace {

struct Options {
  RuntimeOptions runtime;
  std::vector<int32_t> threads = {1, 2};
  std::vector<std::string> workloads = {"W2", "W1", "W3"};
  int32_t rounds = 5;
  bool json = false;
};

int Fail(const absl::Status& status, int code = 1) {
  std::fprintf(stderr, "%s\n", Message(status).c_str());
  return code;
}

// The figure that a workload is about: prompt tokens per second, those of one stream after its
// first, or all output tokens per second.
struct Figure {
  const char* what;
  double (*of)(const LatencySummary&);
};
Figure FigureOf(const std::string& workload) {
  if (workload == "W2") {
    return {"prompt tokens/s", [](const LatencySummary& s) {
              return static_cast<double>(s.prompt_tokens) / s.ttft_ms.p50 * 1e3;
            }};
  }
  if (workload == "W1") {
    return {"tokens/s after the first",
            [](const LatencySummary& s) { return s.decode_tokens_per_s; }};
  }
  return {"output tokens/s", [](const LatencySummary& s) { return s.output_tokens_per_s; }};
}

class Report {
 public:
  Report(const Options& o, const ModelRuntime& runtime) : json_(o.json) {
    const kernels::MachineInfo machine = kernels::ReadMachineInfo();
    w_.BeginObject();
    w_.Key("machine");
    WriteMachine(machine, w_);
    WriteTexts(w_, {{"model", o.runtime.model},
                    {"weights", runtime.weight_format()},
                    {"compute", runtime.compute()},
                    {"kv_cache_dtype", runtime.kv_cache_dtype()}});
    w_.Key("rows");
    w_.BeginArray();
    if (json_) return;
    std::printf("%s%s, %s, compute %s, cache %s, %d rounds\n", MachineText(machine).c_str(),
                o.runtime.model.c_str(), runtime.weight_format().c_str(), runtime.compute().c_str(),
                runtime.kv_cache_dtype().c_str(), o.rounds);
    std::printf("%-9s %-25s %8s %10s %22s %7s %18s\n", "workload", "figure", "threads", "median",
                "of rounds", "ratio", "of rounds");
    std::fflush(stdout);
  }

  // values, ratios: one for each round.
  void Add(const std::string& workload, const char* figure, int32_t threads,
           const std::vector<double>& values, const std::vector<double>& ratios) {
    const auto [low, high] = std::minmax_element(values.begin(), values.end());
    const auto [low_ratio, high_ratio] = std::minmax_element(ratios.begin(), ratios.end());
    if (!json_) {
      std::printf("%-9s %-25s %8d %10.1f (%8.1f to %8.1f) %7.2f (%5.2f to %5.2f)\n",
                  workload.c_str(), figure, threads, Median(values), *low, *high, Median(ratios),
                  *low_ratio, *high_ratio);
      std::fflush(stdout);
    }
    w_.BeginObject();
    WriteTexts(w_, {{"workload", workload}, {"figure", figure}});
    WriteNumbers(w_, {{"threads", threads},
                      {"median", Median(values)},
                      {"least", *low},
                      {"most", *high},
                      {"ratio", Median(ratios)},
                      {"least_ratio", *low_ratio},
                      {"most_ratio", *high_ratio}});
    w_.EndObject();
  }

  void End() {
    w_.EndArray();
    w_.EndObject();
    if (json_) std::printf("%s\n", w_.text().c_str());
  }

 private:
  bool json_;
  JsonWriter w_;
};

int Main(int argc, char** argv) {
  Options o;
  Flags flags;
  flags.Add("threads", &o.threads, 1, 1024, "the first is the one that others are compared with");
  flags.Add("workloads", &o.workloads,
            "W1 one stream, W2 prefill, W3 64 at once, W4 shared prefix");
  flags.Add("rounds", &o.rounds, 1, 1000, "after one that does not count");
  flags.Add("json", &o.json, "an object with unrounded figures instead of a table");
  AddRuntimeFlags(flags, o.runtime);
  const std::vector<std::string> rest =
      ParseOrExit(flags, "scaling_bench <model> [flags]", argc, argv, 1);
  if (rest.empty()) {
    std::fprintf(stderr, "scaling_bench needs a model: a .gguf file or a directory\n");
    return 2;
  }
  o.runtime.model = rest[0];
  o.runtime.memory.num_blocks = 1536;  // W3's 64 x 256 tokens, W4's 64 x 608 with what they share
  std::vector<std::unique_ptr<ModelRuntime>> runtimes;
  for (const int32_t threads : o.threads) {
    o.runtime.num_threads = threads;
    auto loaded = ModelRuntime::Load(o.runtime);
    if (!loaded.ok()) return Fail(loaded.status());
    runtimes.push_back(*std::move(loaded));
  }
  Report report(o, *runtimes[0]);
  for (const std::string& name : o.workloads) {
    const Figure figure = FigureOf(name);
    std::vector<std::vector<double>> values(runtimes.size()), ratios(runtimes.size());
    for (int32_t round = 0; round <= o.rounds; ++round) {
      const absl::StatusOr<Workload> workload =
          MakeWorkload(name, round, runtimes[0]->config().vocab_size, /*seed=*/1);
      if (!workload.ok()) return Fail(workload.status(), 2);
      std::vector<double> of_round(runtimes.size());
      for (size_t i = 0; i < runtimes.size(); ++i) {
        // Who is first in a round is last in the next one.
        const size_t at = round % 2 == 0 ? i : runtimes.size() - 1 - i;
        const absl::StatusOr<LatencySummary> done = RunOps(*workload, {}, *runtimes[at], nullptr);
        if (!done.ok()) return Fail(done.status());
        of_round[at] = figure.of(*done);
      }
      if (round == 0) continue;
      for (size_t i = 0; i < runtimes.size(); ++i) {
        values[i].push_back(of_round[i]);
        ratios[i].push_back(of_round[i] / of_round[0]);
      }
    }
    for (size_t i = 0; i < runtimes.size(); ++i) {
      report.Add(name, figure.what, o.threads[i], values[i], ratios[i]);
    }
  }
  report.End();
  return 0;
}

}  // namespace
}  // namespace quire

int main(int argc, char** argv) { return quire::Main(argc, argv); }
