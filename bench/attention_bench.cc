// bench/attention_bench.cc -- decode bandwidth and prefill rate of each attention kernel, beside
// this machine's own limits, measured in the same run.
//
//   attention_bench [--short] [--json] [--isa=auto] [--threads=2] [--kernels=flash]
//                   [--types=F32,BF16] [--dot=BF16] [--filter=decode] [--heads=9] [--kv-heads=3]
//                   [--head-dim=64] [--page-size=16] [--footprint-mib=0] [--seconds=0.5]
//
// A decode run reads one of many layers' caches, in turn, so that nothing is found where the last
// run left it: together they have the footprint, by default twice the last-level cache that the
// system names, at most a gibibyte. A virtual machine may be told the whole host's cache, of which
// it gets a share: bandwidth is measured by reading just as many bytes again and again, on huge
// pages, sequentially, and "of reads" compares with that, whatever level the bytes come from.
//
// Figures by the median of the runs and by the best one, which is what the kernel does when no
// neighbour takes its core. Bytes are keys and values that must be read once, shared ones once for
// all; operations are 2 per multiply-add of the visible pairs, softmax not counted, and the peak is
// that of the fastest unit for the products' type which the ISA in use has.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "base/arena.h"
#include "base/huge_pages.h"
#include "base/memory_info.h"
#include "bench/flags.h"
#include "bench/json_fields.h"
#include "bench/statistics.h"
#include "kernels/attention.h"
#include "kernels/cpu_isa.h"
#include "kernels/profile/machine_peaks.h"
#include "kernels/profile/machine_text.h"

namespace quire::kernels {
namespace {

struct Options {
  bool is_short = false, json = false;
  std::string isa = "auto", filter, dot;
  std::vector<int32_t> threads;
  std::vector<std::string> kernels, types;
  int32_t heads = 9, kv_heads = 3, head_dim = 64, page_size = 16, footprint_mib = 0;
  double seconds = 0.5;
};

// A step: sequences of `len` keys, `num_q` of them new; all begin with the same `shared` keys.
struct Load {
  const char* name;
  int32_t num_seqs, num_q, len, shared;
  bool in_short;
  bool is_decode() const { return num_q == 1; }
};
constexpr Load kLoads[] = {
    {"decode 1 x 2048", 1, 1, 2048, 0, false},         {"decode 1 x 8192", 1, 1, 8192, 0, true},
    {"decode 8 x 8192", 8, 1, 8192, 0, true},          {"decode 32 x 512", 32, 1, 512, 0, false},
    {"decode 64 x 192", 64, 1, 192, 0, false},         {"decode 64 x 576", 64, 1, 576, 0, false},
    {"decode 64 x (512s+64)", 64, 1, 576, 512, false}, {"prefill 512", 1, 512, 512, 0, true},
    {"prefill 1024", 1, 1024, 1024, 0, false},         {"prefill 2048", 1, 2048, 2048, 0, true},
    {"prefill 512 at 1536", 1, 512, 2048, 0, false},
};

struct Types {
  DType cache, dot;
};
constexpr Types kTypes[] = {{DType::kF32, DType::kF32},
                            {DType::kBF16, DType::kF32},
                            {DType::kBF16, DType::kBF16},
                            {DType::kF16, DType::kF32},
                            {DType::kI8, DType::kF32}};

using Memory = std::vector<std::byte, HugePageAllocator<std::byte>>;

// Finite, normal numbers in whatever type they are read as.
void Fill(Memory& memory) {
  uint32_t state = 1;
  for (size_t i = 0; i + 1 < memory.size(); i += 2) {
    state = state * 1664525u + 1013904223u;
    const auto half = static_cast<uint16_t>(0x3c00 + (state >> 16) % 0x300);
    std::memcpy(&memory[i], &half, sizeof(half));
  }
}

size_t DefaultFootprint() {
  const size_t l3 = ReadCacheSizes().l3;
  const size_t wanted =
      l3 > 0 ? std::clamp<size_t>(2 * l3, size_t{128} << 20, size_t{1} << 30) : size_t{256} << 20;
  return std::min(wanted,
                  static_cast<size_t>(std::max<int64_t>(ReadMemoryInfo().available, 0)) / 4);
}

struct Figures {
  double median_s = 0, best_s = 0;
  double bytes = 0, flops = 0;
  double footprint = 0;  // bytes of all layers' caches
};

// One load's tables and rows; its caches are as many layers as `memory` has room for.
class Bench {
 public:
  Bench(const Options& o, Types types, const Load& load, Memory& memory) : memory_(memory) {
    shape_ = {.num_heads = o.heads,
              .num_kv_heads = o.kv_heads,
              .head_dim = o.head_dim,
              .head_dim_v = o.head_dim,
              .softmax_scale = 0.125f,
              .kv_dtype = types.cache,
              .dot = types.dot};
    const int32_t pages_per_seq = (load.len + o.page_size - 1) / o.page_size;
    k_bytes_ = KeyPageBytes(shape_, o.page_size);
    stride_ = k_bytes_ + ValuePageBytes(shape_, o.page_size);
    layer_bytes_ = stride_ * static_cast<size_t>(load.num_seqs * pages_per_seq + 1);
    if (memory_.size() < layer_bytes_) {
      memory_.resize(layer_bytes_);
      Fill(memory_);
    }
    // Whole layers; of a prefill, whose keys are read from the nearest cache in any case, two.
    layers_ = memory_.size() / layer_bytes_;
    if (!load.is_decode()) layers_ = std::min<size_t>(layers_, 2);
    std::mt19937 rng(1);
    table_.resize(static_cast<size_t>(load.num_seqs) * static_cast<size_t>(pages_per_seq));
    std::iota(table_.begin(), table_.end(), 1);
    std::shuffle(table_.begin(), table_.end(), rng);
    for (size_t i = static_cast<size_t>(pages_per_seq); i < table_.size(); ++i) {
      const size_t page = i % static_cast<size_t>(pages_per_seq);
      if (page < static_cast<size_t>(load.shared / o.page_size)) table_[i] = table_[page];
    }
    for (int32_t i = 0; i < load.num_seqs; ++i) {
      cu_.push_back(cu_.back() + load.num_q);
      lens_.push_back(load.len);
    }
    m_ = {.num_seqs = load.num_seqs,
          .num_tokens = cu_.back(),
          .page_size = o.page_size,
          .max_pages_per_seq = pages_per_seq,
          .cu_seqlens_q = cu_,
          .seqlens_k = lens_,
          .read_table = table_};
    std::normal_distribution<float> normal;
    q_.resize(static_cast<size_t>(cu_.back()) * static_cast<size_t>(o.heads * o.head_dim));
    for (float& q : q_) q = normal(rng);
    out_.resize(q_.size());
  }

  Figures Run(const AttentionBackend& backend, double seconds, ThreadPool& pool) {
    AttentionPlan plan;
    backend.plan(m_, shape_, pool.num_threads(), plan);
    Arena arena(plan.workspace_bytes + 64);
    std::byte* workspace = arena.Take<std::byte>(plan.workspace_bytes).data();
    std::vector<double> times;
    double total = 0;
    for (size_t i = 0; i < 4 || (total < seconds && i < 2000); ++i) {
      const std::byte* base = memory_.data() + i % layers_ * layer_bytes_;
      const auto start = std::chrono::steady_clock::now();
      backend.run(plan, m_, shape_,
                  {.q = q_.data(),
                   .k_base = base,
                   .v_base = base + k_bytes_,
                   .page_stride = static_cast<int64_t>(stride_),
                   .out = out_.data()},
                  workspace, pool);
      const double took =
          std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      total += took;
      if (i > 0) times.push_back(took);  // the first run touches its workspace
    }
    const OpCost cost = OpProfile(1).AttentionCost(m_, shape_);
    Figures f{.bytes = cost.kv_bytes,
              .flops = cost.operations(),
              .footprint = static_cast<double>(layers_ * layer_bytes_)};
    f.best_s = *std::min_element(times.begin(), times.end());
    f.median_s = Median(std::move(times));
    return f;
  }

  const AttentionShape& shape() const { return shape_; }

 private:
  Memory& memory_;
  size_t layers_ = 1, layer_bytes_ = 0, stride_ = 0, k_bytes_ = 0;
  AttentionShape shape_;
  AttentionMetadata m_;
  std::vector<int32_t> cu_{0}, lens_, table_;
  std::vector<float> q_, out_;
};

class Report {
 public:
  Report(const Options& o, size_t footprint) : o_(o), footprint_(footprint) {
    const MachineInfo machine = ReadMachineInfo();
    w_.BeginObject();
    w_.Key("machine");
    WriteMachine(machine, w_);
    WriteNumbers(w_, {{"heads", o.heads},
                      {"kv_heads", o.kv_heads},
                      {"head_dim", o.head_dim},
                      {"page_size", o.page_size},
                      {"footprint_bytes", static_cast<double>(footprint)},
                      {"l3_bytes", static_cast<double>(ReadCacheSizes().l3)}});
    w_.Key("rows");
    w_.BeginArray();
    if (o_.json) return;
    std::printf("%s%d heads, %d kv heads, head_dim %d, pages of %d tokens\n",
                MachineText(machine).c_str(), o.heads, o.kv_heads, o.head_dim, o.page_size);
  }

  void SetThreads(int32_t threads) {
    threads_ = threads;
    math_ = MeasureMath(threads);
    reads_.clear();
    if (o_.json) return;
    std::printf("\nthreads=%d:", threads);
    for (const MathPeak& peak : math_) {
      if (!peak.available || peak.type == MathType::kI8) continue;
      std::printf(" %s %.0f GFLOP/s,", std::string(peak.unit).c_str(),
                  peak.gops_per_thread * threads);
    }
    std::printf(" reading %zu MiB %.1f GB/s\n", footprint_ >> 20, Reads(footprint_));
    std::printf(
        "load                   cache dot  kernel      median us     GB/s  GFLOP/s   best us     "
        "GB/s of reads  GFLOP/s of peak\n");
  }

  void Add(const Load& load, Types types, std::string_view kernel, const Figures& f) {
    const MathType math = types.dot == DType::kBF16 ? MathType::kBF16 : MathType::kF32;
    const MathPeak& unit = *UnitInUse(math_, math, ActiveIsa());
    const double peak = unit.gops_per_thread * threads_;
    const double reads = load.is_decode() ? Reads(static_cast<size_t>(f.footprint)) : 0;
    const double best_gb = f.bytes / f.best_s * 1e-9, best_gf = f.flops / f.best_s * 1e-9;
    if (!o_.json) {
      std::string text = fmt::format(
          "{:<22} {:<5} {:<4} {:<9} {:>11.1f} {:>8.2f} {:>8.1f} {:>9.1f} {:>8.2f}", load.name,
          NameOf(types.cache), NameOf(types.dot), kernel, f.median_s * 1e6,
          f.bytes / f.median_s * 1e-9, f.flops / f.median_s * 1e-9, f.best_s * 1e6, best_gb);
      text += reads > 0 ? fmt::format(" {:>7.0f}%", 100 * best_gb / reads) : "        -";
      text += fmt::format(" {:>8.1f} {:>6.0f}% {}", best_gf, 100 * best_gf / peak, unit.unit);
      // What one without tiles would be measured by.
      for (const MathPeak& other : math_) {
        if (other.type == math && other.isa == CpuIsa::kAvx512 && other.available &&
            unit.isa > CpuIsa::kAvx512) {
          text += fmt::format(", {:.0f}% {}", 100 * best_gf / other.gops_per_thread / threads_,
                              other.unit);
        }
      }
      std::printf("%s\n", text.c_str());
      std::fflush(stdout);
    }
    w_.BeginObject();
    WriteTexts(w_, {{"load", load.name},
                    {"cache", NameOf(types.cache)},
                    {"dot", NameOf(types.dot)},
                    {"kernel", kernel},
                    {"unit", unit.unit}});
    WriteNumbers(w_, {{"threads", threads_},
                      {"median_us", f.median_s * 1e6},
                      {"best_us", f.best_s * 1e6},
                      {"kv_bytes", f.bytes},
                      {"operations", f.flops},
                      {"footprint_bytes", f.footprint},
                      {"best_gb_s", best_gb},
                      {"best_gflop_s", best_gf},
                      {"peak_gflop_s", peak},
                      {"best_share_of_peak", best_gf / peak}});
    if (reads > 0) {
      WriteNumbers(w_, {{"read_gb_s", reads}, {"best_share_of_reads", best_gb / reads}});
    }
    w_.EndObject();
  }

  void End() {
    w_.EndArray();
    w_.EndObject();
    if (o_.json) std::printf("%s\n", w_.text().c_str());
  }

 private:
  // Layers are whole, so footprints differ by less than one: one figure for all of about a size.
  double Reads(size_t bytes) {
    const auto [at, is_new] = reads_.try_emplace(bytes >> 26);
    if (is_new) at->second = MeasureRead(bytes, threads_, 0.5);
    return at->second;
  }

  const Options& o_;
  size_t footprint_;
  int32_t threads_ = 1;
  std::vector<MathPeak> math_;
  std::map<size_t, double> reads_;
  JsonWriter w_;
};

bool Wanted(const std::vector<std::string>& names, std::string_view name) {
  return names.empty() || std::find(names.begin(), names.end(), name) != names.end();
}

void Measure(const Options& o, const std::vector<int32_t>& threads, Report& report,
             Memory& memory) {
  for (const int32_t num_threads : threads) {
    ThreadPool pool(num_threads);
    report.SetThreads(num_threads);
    for (const Types& types : kTypes) {
      if (!Wanted(o.types, NameOf(types.cache))) continue;
      if (!o.dot.empty() && NameOf(types.dot) != o.dot) continue;
      for (const Load& load : kLoads) {
        if (std::string(load.name).find(o.filter) == std::string::npos) continue;
        if (o.is_short && !load.in_short) continue;
        Bench bench(o, types, load, memory);
        for (const AttentionBackend* backend : AttentionBackends()) {
          if (!Wanted(o.kernels, backend->name)) continue;
          if (!backend->supports(bench.shape(), o.page_size).ok()) continue;
          report.Add(load, types, backend->name, bench.Run(*backend, o.seconds, pool));
        }
      }
    }
  }
}

int Main(int argc, char** argv) {
  Options o;
  o.threads = {NumPhysicalCores()};
  Flags flags;
  flags.Add("short", &o.is_short, "kernel flash on bf16 caches, four loads");
  flags.Add("json", &o.json, "an object with unrounded figures instead of a table");
  flags.Add("isa", &o.isa, "auto, portable, avx2, avx512, amx");
  flags.Add("threads", &o.threads, 1, 1024, "default: physical cores");
  flags.Add("kernels", &o.kernels, "names; default: all that can");
  flags.Add("types", &o.types, "of the cache: F32,BF16,F16,I8; default: all");
  flags.Add("dot", &o.dot, "F32 or BF16 products only");
  flags.Add("filter", &o.filter, "loads whose name has this: decode, prefill, 2048 ...");
  flags.Add("heads", &o.heads, 1, 1024, "of queries");
  flags.Add("kv-heads", &o.kv_heads, 1, 1024, "of keys; divides heads");
  flags.Add("head-dim", &o.head_dim, 1, 1024, "");
  flags.Add("page-size", &o.page_size, 8, 128, "tokens");
  flags.Add("footprint-mib", &o.footprint_mib, 0, 1 << 20,
            "of decode's caches; 0: twice the last-level cache, at most 1024");
  flags.Add("seconds", &o.seconds, 0.001, 60, "of each figure");
  ParseOrExit(flags, "attention_bench [flags]", argc, argv);
  if (o.is_short) {
    o.types = {"BF16"};
    if (o.kernels.empty()) o.kernels = {"flash"};
    o.seconds = std::min(o.seconds, 0.3);
  }
  if (o.heads % o.kv_heads != 0) {
    std::fprintf(stderr, "kv-heads=%d must divide heads=%d\n", o.kv_heads, o.heads);
    return 2;
  }
  if (const absl::Status status = SelectIsa(o.isa); !status.ok()) {
    std::fprintf(stderr, "%s\n", Message(status).c_str());
    return 2;
  }
  const bool any_decode = std::any_of(std::begin(kLoads), std::end(kLoads), [&](const Load& load) {
    return load.is_decode() && std::string(load.name).find(o.filter) != std::string::npos;
  });
  size_t footprint = static_cast<size_t>(o.footprint_mib) << 20;
  if (footprint == 0) footprint = any_decode ? DefaultFootprint() : size_t{16} << 20;
  Memory memory(footprint);
  Fill(memory);
  Report report(o, footprint);
  Measure(o, o.threads, report, memory);
  report.End();
  return 0;
}

}  // namespace
}  // namespace quire::kernels

int main(int argc, char** argv) { return quire::kernels::Main(argc, argv); }
