// bench/linear_bench.cc -- RunLinear beside this machine's own peaks, measured in the same run.
//
//   linear_bench [--short] [--json] [--isa=auto] [--threads=1,2] [--types=BF16,Q4_1]
//                [--compute=float32,bf16,int8] [--shapes=4096x4096] [--rows=1,512] [--seconds=0.15]
//
// A shape is columns x depth of the weights; rows are those of the input. Without --shapes: a large
// square, and SmolLM2-135M's layers. Several copies of a matrix are cycled, so that a decode step's
// weights come from where they would in a model of 64 MiB or more: last-level cache or memory.
//
// GFLOP/s (2 operations per multiply-add) by the median and by the best call; the latter is what
// the kernel does when no neighbour takes its core. Shares: of the peak of the fastest unit for
// that kind of product which the ISA in use has, and of reading as many bytes as the copies have.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "bench/flags.h"
#include "bench/json_fields.h"
#include "bench/statistics.h"
#include "kernels/cpu_isa.h"
#include "kernels/linear.h"
#include "kernels/profile/machine_peaks.h"
#include "kernels/profile/machine_text.h"
#include "kernels/profile/self_measure.h"

namespace quire::kernels {
namespace {

constexpr DType kTypes[] = {DType::kF32,  DType::kF16,  DType::kBF16, DType::kQ8_0,
                            DType::kQ6_K, DType::kQ5_K, DType::kQ5_1, DType::kQ5_0,
                            DType::kQ4_K, DType::kQ4_1, DType::kQ4_0};

struct Shape {
  int64_t n = 0, k = 0;
};

struct Options {
  bool is_short = false, json = false;
  std::string isa = "auto";
  std::vector<int32_t> threads, rows = {1, 4, 16, 64, 512};
  std::vector<DType> types = {DType::kBF16, DType::kQ8_0, DType::kQ4_1};
  std::vector<ComputeType> computes = {ComputeType::kF32, ComputeType::kBF16, ComputeType::kI8};
  // A large square; then SmolLM2's query and output, key and value together with it, gate and up
  // together, down, head.
  std::vector<Shape> shapes = {{4096, 4096}, {576, 576},  {960, 576},
                               {3072, 576},  {576, 1536}, {49152, 576}};
  double seconds = 0.15;
};

// "4096x4096" is a shape. ERRORS: kInvalidArgument.
absl::Status ParseShapes(const std::string& text, std::vector<Shape>& shapes) {
  shapes.clear();
  for (const std::string& part : SplitCommas(text)) {
    const size_t x = part.find('x');
    if (x == std::string::npos) return InvalidArgument("shapes={} must be like 4096x576", part);
    ASSIGN_OR_RETURN(const int32_t n, ParseInt("shapes", part.substr(0, x), 1, 1 << 20));
    ASSIGN_OR_RETURN(const int32_t k, ParseInt("shapes", part.substr(x + 1), 1, 1 << 20));
    if (k % 32 != 0)
      return InvalidArgument("shapes={} must have a depth of whole blocks of 32", part);
    shapes.push_back({n, k});
  }
  return absl::OkStatus();
}

absl::Status ParseTypes(const std::string& text, std::vector<DType>& types) {
  types.clear();
  for (const std::string& part : SplitCommas(text)) {
    const auto* const type = std::find_if(std::begin(kTypes), std::end(kTypes),
                                          [&](DType t) { return NameOf(t) == part; });
    if (type == std::end(kTypes)) return InvalidArgument("types={} is no type of weights", part);
    types.push_back(*type);
  }
  return absl::OkStatus();
}

struct Measured {
  DType type = DType::kF32, packed = DType::kF32;
  ComputeType compute = ComputeType::kF32;
  Shape shape;
  int64_t rows = 0;
  int32_t threads = 0;
  double median_s = 0, best_s = 0;
  double bytes = 0;   // of one packed matrix
  double cycled = 0;  // of all copies
  double flop() const {
    return 2.0 * static_cast<double>(rows * shape.n) * static_cast<double>(shape.k);
  }
};

// Copies of one matrix, packed.
std::vector<PackedWeight> MakeWeights(DType type, ComputeType compute, Shape s, ThreadPool& pool) {
  std::mt19937 rng(1);
  std::vector<std::byte> file(BytesFor(type, static_cast<size_t>(s.n * s.k)));
  if (InfoOf(type).block_size > 1) {
    for (std::byte& b : file) b = static_cast<std::byte>(rng() & 0x3b);  // scales stay finite
  } else {
    // The upper half of a float32 is a bfloat16; as float16 these are normal numbers as well.
    for (size_t i = 0; i < file.size(); i += 2) {
      const auto v = static_cast<uint16_t>(0x3c00 + rng() % 0x300);
      std::memcpy(file.data() + i, &v, sizeof(v));
    }
  }
  const size_t copies = std::clamp<size_t>((size_t{64} << 20) / file.size(), 1, 64);
  std::vector<PackedWeight> weights;
  for (size_t i = 0; i < copies; ++i) {
    auto packed = PackedWeight::Pack({file.data(), type, 2, {s.n, s.k}}, pool, compute);
    CHECK(packed.ok(), "{}", Message(packed.status()));
    weights.push_back(*std::move(packed));
  }
  return weights;
}

Measured Measure(const std::vector<PackedWeight>& weights, Measured m, double seconds,
                 ThreadPool& pool) {
  const size_t values = static_cast<size_t>(m.rows * m.shape.k);
  std::mt19937 rng(2);
  std::vector<float> x(values), y(static_cast<size_t>(m.rows * m.shape.n));
  for (float& v : x) v = static_cast<float>(rng() % 2048) / 1024.0f - 1.0f;
  const size_t scratch_bytes = (LinearScratchBytes(m.rows, m.shape.k) + 63) / 64 * 64;
  const std::unique_ptr<std::byte, void (*)(void*)> scratch(
      static_cast<std::byte*>(std::aligned_alloc(64, scratch_bytes)), std::free);
  std::vector<double> times;
  double spent = 0;
  for (size_t i = 0; i < 6 || (spent < seconds && i < 20'000); ++i) {
    const LinearJob job{.w = &weights[i % weights.size()],
                        .x = x.data(),
                        .ldx = m.shape.k,
                        .y = y.data(),
                        .ldy = m.shape.n};
    const auto start = std::chrono::steady_clock::now();
    RunLinear({&job, 1}, m.rows, pool, {scratch.get(), scratch_bytes});
    const double took =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    spent += took;
    if (i > 0) times.push_back(took);  // the first call touches y and scratch
  }
  m.threads = pool.num_threads();
  m.packed = weights[0].dtype();
  m.bytes = static_cast<double>(weights[0].bytes());
  m.cycled = m.bytes * static_cast<double>(weights.size());
  m.best_s = *std::min_element(times.begin(), times.end());
  m.median_s = Median(std::move(times));
  return m;
}

class Report {
 public:
  explicit Report(const Options& o) : json_(o.json) {
    const MachineInfo machine = ReadMachineInfo();
    w_.BeginObject();
    w_.Key("machine");
    WriteMachine(machine, w_);
    w_.Key("rows");
    w_.BeginArray();
    if (!json_) std::printf("%s", MachineText(machine).c_str());
  }

  // A pool of other threads: peaks are measured again.
  void SetThreads(int32_t threads) {
    threads_ = threads;
    math_ = MeasureMath(threads);
    reads_.clear();
    if (json_) return;
    std::printf("\nthreads=%d", threads);
    for (const MathType type : {MathType::kF32, MathType::kBF16, MathType::kI8}) {
      const MathPeak& unit = *UnitInUse(math_, type, ActiveIsa());
      std::printf(", %s: %s %.0f GFLOP/s", std::string(NameOf(type)).c_str(),
                  std::string(unit.unit).c_str(), unit.gops_per_thread * threads);
    }
    std::printf(
        "\ncompute  type  packed  columns x depth  rows     best us  GFLOP/s of peak     GB/s of "
        "reads   median us  GFLOP/s of peak\n");
  }

  void Add(const Measured& m) {
    const MathPeak& unit = *UnitInUse(math_, MathOf(m.compute), ActiveIsa());
    const double peak = unit.gops_per_thread * threads_;
    const double reads = Reads(m.cycled);
    const double best = m.flop() / m.best_s * 1e-9, median = m.flop() / m.median_s * 1e-9;
    const double gb_s = m.bytes / m.best_s * 1e-9;
    if (!json_) {
      std::printf(
          "%-8s %-5s %-6s %8ld x %-5ld %5ld %11.1f %8.1f %6.0f%% %8.1f %6.0f%% %11.1f %8.1f "
          "%6.0f%%\n",
          std::string(NameOf(m.compute)).c_str(), std::string(NameOf(m.type)).c_str(),
          std::string(NameOf(m.packed)).c_str(), m.shape.n, m.shape.k, m.rows, m.best_s * 1e6, best,
          100 * best / peak, gb_s, 100 * gb_s / reads, m.median_s * 1e6, median,
          100 * median / peak);
      std::fflush(stdout);
    }
    w_.BeginObject();
    WriteTexts(w_, {{"compute", NameOf(m.compute)},
                    {"type", NameOf(m.type)},
                    {"packed", NameOf(m.packed)},
                    {"unit", unit.unit}});
    WriteNumbers(w_, {{"columns", static_cast<double>(m.shape.n)},
                      {"depth", static_cast<double>(m.shape.k)},
                      {"rows", static_cast<double>(m.rows)},
                      {"threads", m.threads},
                      {"best_us", m.best_s * 1e6},
                      {"median_us", m.median_s * 1e6},
                      {"best_gflop_s", best},
                      {"median_gflop_s", median},
                      {"peak_gflop_s", peak},
                      {"best_share_of_peak", best / peak},
                      {"median_share_of_peak", median / peak},
                      {"weight_bytes", m.bytes},
                      {"cycled_bytes", m.cycled},
                      {"best_gb_s", gb_s},
                      {"read_gb_s", reads},
                      {"best_share_of_reads", gb_s / reads}});
    w_.EndObject();
  }

  void End() {
    w_.EndArray();
    w_.EndObject();
    if (json_) std::printf("%s\n", w_.text().c_str());
  }

 private:
  // Reading `bytes` again and again; measured once for sizes that are about the same.
  double Reads(double bytes) {
    const auto mib = std::max<int64_t>(1, static_cast<int64_t>(bytes) >> 20);
    const auto [at, is_new] = reads_.try_emplace(mib);
    if (is_new) at->second = MeasureRead(static_cast<size_t>(bytes), threads_, 0.05);
    return at->second;
  }

  bool json_;
  int32_t threads_ = 1;
  std::vector<MathPeak> math_;
  std::map<int64_t, double> reads_;
  JsonWriter w_;
};

int Main(int argc, char** argv) {
  Options o;
  o.threads = {NumPhysicalCores()};
  Flags flags;
  flags.Add("short", &o.is_short, "BF16 and Q4_1 in bf16 and int8 only, 1 and 512 rows");
  flags.Add("json", &o.json, "an object with unrounded figures instead of a table");
  flags.Add("isa", &o.isa, "auto, portable, avx2, avx512, amx");
  flags.Add("threads", &o.threads, 1, 1024, "default: physical cores");
  flags.Add("rows", &o.rows, 1, 65536, "default: 1,4,16,64,512");
  flags.Add("seconds", &o.seconds, 0.001, 60, "of each figure");
  flags.Add(
      "types", [&](const std::string& t) { return ParseTypes(t, o.types); },
      "of the file; default: BF16,Q8_0,Q4_1");
  flags.Add(
      "compute",
      [&](const std::string& text) -> absl::Status {
        o.computes.clear();
        for (const std::string& part : SplitCommas(text)) {
          ASSIGN_OR_RETURN(const ComputeType compute, FindCompute(part));
          o.computes.push_back(compute);
        }
        return absl::OkStatus();
      },
      "default: float32,bf16,int8");
  flags.Add(
      "shapes", [&](const std::string& t) { return ParseShapes(t, o.shapes); },
      "columns x depth; default: 4096x4096 and SmolLM2-135M's");
  ParseOrExit(flags, "linear_bench [flags]", argc, argv);
  if (o.is_short) {
    o.types = {DType::kBF16, DType::kQ4_1};
    o.computes = {ComputeType::kBF16, ComputeType::kI8};
    o.rows = {1, 512};
    o.shapes = {{4096, 4096}, {3072, 576}};
    o.seconds = 0.1;
  }
  if (const absl::Status status = SelectIsa(o.isa); !status.ok()) {
    std::fprintf(stderr, "%s\n", Message(status).c_str());
    return 2;
  }
  Report report(o);
  for (const int32_t threads : o.threads) {
    ThreadPool pool(threads);
    report.SetThreads(threads);
    for (const Shape& shape : o.shapes) {
      for (const DType type : o.types) {
        if (shape.k % static_cast<int64_t>(InfoOf(type).block_size) != 0) continue;
        for (const ComputeType compute : o.computes) {
          const ComputeType resolved = ResolveCompute(compute, type);
          const std::vector<PackedWeight> weights = MakeWeights(type, resolved, shape, pool);
          for (const int32_t rows : o.rows) {
            // The head has a row for each sequence, not for each token.
            if (shape.n > 40'000 && rows > 64) continue;
            report.Add(Measure(weights,
                               {.type = type, .compute = resolved, .shape = shape, .rows = rows},
                               o.seconds, pool));
          }
        }
      }
    }
  }
  report.End();
  return 0;
}

}  // namespace
}  // namespace quire::kernels

int main(int argc, char** argv) { return quire::kernels::Main(argc, argv); }
