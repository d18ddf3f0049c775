// server/cli/kernels.cc -- `quire kernels`: what this build and this CPU have, and how fast it is
// here.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <set>
#include <string>

#include "base/cpu_topology.h"
#include "kernels/attention.h"
#include "kernels/attention_features.h"
#include "kernels/attention_library.h"
#include "kernels/cpu_isa.h"
#include "kernels/profile/machine_text.h"
#include "kernels/profile/self_measure.h"
#include "server/cli/commands.h"

namespace quire {
namespace {

using kernels::AttentionBackend;
using kernels::ComputeType;

struct KernelsOptions {
  std::string library;
  int32_t num_threads = 0;
  bool no_bench = false;
};

constexpr DType kFormats[] = {DType::kF32,  DType::kF16,  DType::kBF16, DType::kQ8_0,
                              DType::kQ6_K, DType::kQ5_K, DType::kQ5_1, DType::kQ5_0,
                              DType::kQ4_K, DType::kQ4_1, DType::kQ4_0};

void PrintPeaks(const kernels::MachinePeaks& peaks) {
  const kernels::CacheSizes caches = kernels::ReadCacheSizes();
  fmt::print("peaks of {} threads\n", peaks.num_threads);
  for (const kernels::MathPeak& peak : peaks.math) {
    fmt::print("  {:<5}{:<18}{}\n", kernels::NameOf(peak.type), peak.unit,
               peak.available
                   ? fmt::format("{:>9.0f} GFLOP/s", peak.gops_per_thread * peaks.num_threads)
                   : "  not here");
  }
  // Half a level, so that the rest of the system does not push it out; then what no L2 holds.
  const size_t threads = static_cast<size_t>(peaks.num_threads);
  const std::pair<const char*, size_t> levels[] = {
      {"L1", caches.l1 / 2 * threads},
      {"L2", caches.l2 / 2 * threads},
      {"L3 or memory", std::max<size_t>(size_t{32} << 20, 4 * caches.l2 * threads)},
      {"memory", caches.l3 == 0 ? 0 : std::min<size_t>(2 * caches.l3, size_t{1} << 30)}};
  for (const auto& [level, bytes] : levels) {
    if (bytes == 0) continue;
    fmt::print("  read {:>9.2f} MiB ({}) {:>9.1f} GB/s\n", static_cast<double>(bytes) / (1 << 20),
               level, kernels::MeasureRead(bytes, peaks.num_threads));
  }
  std::fflush(stdout);
}

void PrintAttention(const AttentionBackend& backend, const kernels::MachinePeaks* peaks,
                    ThreadPool& pool) {
  const kernels::AttentionFeatures features = kernels::FeaturesOf(backend);
  fmt::print("  {:<10}{}; {}\n            {}\n", backend.name, backend.summary,
             backend.batch_invariant ? "batch invariant" : "not batch invariant",
             Describe(features));
  if (peaks == nullptr) return;
  for (const DType type : features.kv_dtypes) {
    if (!backend
             .supports({.num_heads = 8,
                        .num_kv_heads = 4,
                        .head_dim = 64,
                        .head_dim_v = 64,
                        .softmax_scale = 0.125f,
                        .kv_dtype = type},
                       16)
             .ok()) {
      continue;
    }
    const kernels::AttentionRates r = MeasureAttention(backend, type, *peaks, pool);
    fmt::print(
        "            {:<5} decode {:>7.1f} GB/s ({:.0f}% of reading), prefill {:>8.1f} GFLOP/s "
        "({:.0f}% of f32)\n",
        NameOf(type), r.decode_gb_s, 100 * r.decode_share, r.prefill_gflop_s,
        100 * r.prefill_share);
    std::fflush(stdout);
  }
}

// The ISA in use with every type that weights are packed as; another one with three formats, so
// that all takes some seconds.
void PrintLinear(const kernels::MachinePeaks* peaks, bool in_use, ThreadPool& pool) {
  for (const ComputeType compute : {ComputeType::kF32, ComputeType::kBF16, ComputeType::kI8}) {
    std::set<DType> seen;
    for (const DType format : kFormats) {
      const bool typical =
          format == DType::kBF16 || format == DType::kQ8_0 || format == DType::kQ4_1;
      if (!in_use && !typical) continue;
      const DType packed = kernels::PackedType(format, compute, pool);
      if (!seen.insert(packed).second) continue;
      if (peaks == nullptr) {
        fmt::print("  {:<9}{}\n", NameOf(compute), NameOf(packed));
        continue;
      }
      const kernels::LinearRates r = MeasureLinear(format, compute, *peaks, pool);
      fmt::print(
          "  {:<9}{:<9}{:<6} one row {:>7.1f} GB/s ({:>3.0f}% of reading), {} rows {:>8.1f} "
          "GFLOP/s ({:>2.0f}% of {})\n",
          kernels::NameOf(kernels::ActiveIsa()), NameOf(compute), NameOf(packed), r.decode_gb_s,
          100 * r.decode_share, r.prefill_rows, r.prefill_gflop_s, 100 * r.prefill_share,
          r.prefill_unit);
      std::fflush(stdout);
    }
  }
}

int RunKernels(const KernelsOptions& o) {
  if (!o.library.empty()) {
    const auto loaded = kernels::LoadAttentionLibrary(o.library);
    if (!loaded.ok()) return Fail(kExitUsage, Message(loaded.status()).c_str());
  }
  const CpuTopology topology = ReadCpuTopology(AllowedCpus());
  ThreadPool pool(o.num_threads > 0 ? o.num_threads : topology.usable_cores);
  kernels::MachinePeaks measured;
  const kernels::MachinePeaks* peaks = nullptr;
  fmt::print("{}{}\n", kernels::MachineText(kernels::ReadMachineInfo()),
             DescribePool(topology, pool.num_threads()));
  if (!o.no_bench) {
    measured = kernels::MeasurePeaks(pool.num_threads(), size_t{64} << 20);
    peaks = &measured;
    PrintPeaks(measured);
  }
  fmt::print("attention kernels (--attention; --attention full=<name>,sliding=<name>)\n");
  for (const AttentionBackend* backend : kernels::AttentionBackends()) {
    PrintAttention(*backend, peaks, pool);
  }
  fmt::print(
      "linear layers, by what products are computed in (--compute) and what weights are packed "
      "as\n");
  const std::string best(kernels::NameOf(kernels::ActiveIsa()));
  for (const std::string_view isa : kernels::IsaNames()) {
    if (!kernels::SelectIsa(isa).ok()) continue;
    if (peaks != nullptr || isa == best) PrintLinear(peaks, isa == best, pool);
  }
  CHECK(kernels::SelectIsa(best).ok());
  fmt::print("--cpu-isa (in use: {})\n{}\n", best, kernels::DescribeCpu());
  return 0;
}

}  // namespace

Subcommand MakeKernels(CLI::App& parent) {
  auto o = std::make_shared<KernelsOptions>();
  CLI::App* const app = parent.add_subcommand(
      "kernels", "list kernels and what they support, with their rates on this machine");
  app->add_option("--attention-library", o->library, "a kernel of your own to list as well")
      ->type_name("path");
  app->add_option("--num-threads", o->num_threads, "of the measurements; 0: physical cores")
      ->check(CLI::Range(0, 1024));
  app->add_flag("--no-bench", o->no_bench, "only list, measure nothing");
  return {app, [o] { return RunKernels(*o); }};
}

}  // namespace quire
