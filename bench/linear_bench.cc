// bench/linear_bench.cc -- RunLinear on SmolLM2-135M's shapes beside the machine's own float32 FMA
// rate, measured in the same run.
//
//   linear_bench [isa] [max threads] [compute]
//
// Columns: GFLOP/s and GB/s of packed weights by the median wall time; GFLOP/s per core by CPU
// time; then GFLOP/s, GB/s and share of the FMA peak of the best call, which is what the kernel
// does when no neighbour takes its core or its cache. Several copies of a matrix are cycled, so
// that a decode step's weights come from where they would in a model of 32 MiB or more: last-level
// cache or memory, not L2.
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/cpu_isa.h"
#include "kernels/linear.h"

namespace quire::kernels {
namespace {

double Seconds(clockid_t clock) {
  timespec t{};
  clock_gettime(clock, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

// GFLOP/s of one core on the registers of the ISA in use; 0 where there is no such probe.
double FmaPeak() {
#if defined(__x86_64__)
  constexpr int64_t kRounds = 4'000'000;
  const bool wide = ActiveIsa() >= CpuIsa::kAvx512;
  if (ActiveIsa() == CpuIsa::kPortable) return 0;
  double best = 0;
  for (int repeat = 0; repeat < 5; ++repeat) {
    const double start = Seconds(CLOCK_THREAD_CPUTIME_ID);
    // Twelve independent chains on zeroed registers cover two units of latency four.
    if (wide) {
      asm volatile("vzeroall" ::: "memory");
      for (int64_t i = 0; i < kRounds; ++i) {
        asm volatile(
            "vfmadd231ps %%zmm0,%%zmm1,%%zmm2\n vfmadd231ps %%zmm0,%%zmm1,%%zmm3\n"
            "vfmadd231ps %%zmm0,%%zmm1,%%zmm4\n vfmadd231ps %%zmm0,%%zmm1,%%zmm5\n"
            "vfmadd231ps %%zmm0,%%zmm1,%%zmm6\n vfmadd231ps %%zmm0,%%zmm1,%%zmm7\n"
            "vfmadd231ps %%zmm0,%%zmm1,%%zmm8\n vfmadd231ps %%zmm0,%%zmm1,%%zmm9\n"
            "vfmadd231ps %%zmm0,%%zmm1,%%zmm10\n vfmadd231ps %%zmm0,%%zmm1,%%zmm11\n"
            "vfmadd231ps %%zmm0,%%zmm1,%%zmm12\n vfmadd231ps %%zmm0,%%zmm1,%%zmm13\n" ::
                : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9",
                  "xmm10", "xmm11", "xmm12", "xmm13");
      }
    } else {
      asm volatile("vzeroall" ::: "memory");
      for (int64_t i = 0; i < kRounds; ++i) {
        asm volatile(
            "vfmadd231ps %%ymm0,%%ymm1,%%ymm2\n vfmadd231ps %%ymm0,%%ymm1,%%ymm3\n"
            "vfmadd231ps %%ymm0,%%ymm1,%%ymm4\n vfmadd231ps %%ymm0,%%ymm1,%%ymm5\n"
            "vfmadd231ps %%ymm0,%%ymm1,%%ymm6\n vfmadd231ps %%ymm0,%%ymm1,%%ymm7\n"
            "vfmadd231ps %%ymm0,%%ymm1,%%ymm8\n vfmadd231ps %%ymm0,%%ymm1,%%ymm9\n"
            "vfmadd231ps %%ymm0,%%ymm1,%%ymm10\n vfmadd231ps %%ymm0,%%ymm1,%%ymm11\n"
            "vfmadd231ps %%ymm0,%%ymm1,%%ymm12\n vfmadd231ps %%ymm0,%%ymm1,%%ymm13\n" ::
                : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9",
                  "xmm10", "xmm11", "xmm12", "xmm13");
      }
    }
    asm volatile("vzeroupper" ::: "memory");
    const double flop = 2.0 * 12 * (wide ? 16 : 8) * static_cast<double>(kRounds);
    best = std::max(best, flop / (Seconds(CLOCK_THREAD_CPUTIME_ID) - start) * 1e-9);
  }
  return best;
#else
  return 0;
#endif
}

struct Shape {
  DType type;
  int64_t n, k;
};

void Measure(const Shape& s, int64_t m, ComputeType compute, ThreadPool& pool, double peak) {
  std::mt19937 rng(1);
  std::vector<std::byte> file(BytesFor(s.type, static_cast<size_t>(s.n * s.k)));
  if (InfoOf(s.type).block_size > 1) {
    for (std::byte& b : file) b = static_cast<std::byte>(rng() & 0x3b);  // scales stay finite
  } else {
    // The upper half of a float32 is a bfloat16; as float16 these are normal numbers as well.
    for (size_t i = 0; i < file.size(); i += 2) {
      const auto v = static_cast<uint16_t>(0x3c00 + rng() % 0x300);
      std::memcpy(file.data() + i, &v, sizeof(v));
    }
  }
  const size_t copies = std::clamp<size_t>((size_t{32} << 20) / file.size(), 1, 64);
  std::vector<PackedWeight> w;
  for (size_t i = 0; i < copies; ++i) {
    auto packed = PackedWeight::Pack({file.data(), s.type, 2, {s.n, s.k}}, pool, compute);
    if (!packed.ok()) std::abort();
    w.push_back(*std::move(packed));
  }
  std::vector<float> x(static_cast<size_t>(m * s.k), 0.5f), y(static_cast<size_t>(m * s.n));
  std::vector<float> scratch(LinearScratchBytes(m, s.k) / sizeof(float) + 16);
  void* at = scratch.data();
  size_t left = scratch.size() * sizeof(float);
  std::align(64, LinearScratchBytes(m, s.k), at, left);
  const double flop = 2.0 * static_cast<double>(m * s.n) * static_cast<double>(s.k);
  // About 0.15 s a row, at least 7 calls.
  const int calls = std::clamp(static_cast<int>(6e9 / (flop + 2e5)), 7, 4000);
  std::vector<double> wall;
  const double cpu_start = Seconds(CLOCK_PROCESS_CPUTIME_ID);
  for (int i = 0; i < calls; ++i) {
    const LinearJob job{.w = &w[static_cast<size_t>(i) % copies],
                        .x = x.data(),
                        .ldx = s.k,
                        .y = y.data(),
                        .ldy = s.n};
    const double start = Seconds(CLOCK_MONOTONIC);
    RunLinear({&job, 1}, m, pool, {static_cast<std::byte*>(at), left});
    wall.push_back(Seconds(CLOCK_MONOTONIC) - start);
  }
  const double cpu = Seconds(CLOCK_PROCESS_CPUTIME_ID) - cpu_start;
  std::sort(wall.begin(), wall.end());
  const double median = wall[static_cast<size_t>(calls) / 2];
  const double best = wall[0];
  const auto bytes = static_cast<double>(w[0].bytes());
  std::printf("%-5s %6ld %5ld %4ld %3d %9.1f %8.2f %9.1f %9.1f %8.2f %5.0f%%\n",
              std::string(NameOf(s.type)).c_str(), s.n, s.k, m, pool.num_threads(),
              flop / median * 1e-9, bytes / median * 1e-9, flop * calls / cpu * 1e-9,
              flop / best * 1e-9, bytes / best * 1e-9,
              peak > 0 ? 100e-9 * flop / best / (peak * pool.num_threads()) : 0.0);
  std::fflush(stdout);
}

int Main(int argc, char** argv) {
  const absl::Status status = SelectIsa(argc > 1 ? argv[1] : "auto");
  if (!status.ok()) {
    std::fprintf(stderr, "%s\n", Message(status).c_str());
    return 1;
  }
  const absl::StatusOr<ComputeType> compute = FindCompute(argc > 3 ? argv[3] : "auto");
  if (!compute.ok()) {
    std::fprintf(stderr, "%s\n", Message(compute.status()).c_str());
    return 1;
  }
  const int max_threads = argc > 2 ? std::atoi(argv[2]) : NumPhysicalCores();
  const double peak = FmaPeak();
  std::printf("%s\nfloat32 FMA peak of one core, by CPU time: %.0f GFLOP/s\n\n",
              DescribeCpu().c_str(), peak);
  std::printf(
      "type       n     k    m thr   GFLOP/s     GB/s  GF/s/cpu best GF/s     GB/s   peak\n");
  std::vector<Shape> shapes = {{DType::kQ4_1, 576, 576},
                               {DType::kQ4_1, 192, 576},
                               {DType::kQ4_1, 1536, 576},
                               {DType::kQ4_1, 576, 1536},
                               {DType::kQ8_0, 49152, 576}};
  if (argc > 4) shapes.resize(static_cast<size_t>(std::atoi(argv[4])));
  for (const DType type : {DType::kBF16, DType::kF32, DType::kF16, DType::kQ4_0, DType::kQ5_0,
                           DType::kQ5_1, DType::kQ8_0, DType::kQ4_K, DType::kQ5_K, DType::kQ6_K}) {
    shapes.push_back({type, 1536, 1536});
  }
  for (int threads = argc > 5 ? max_threads : 1; threads <= max_threads; ++threads) {
    ThreadPool pool(threads);
    for (const Shape& s : shapes) {
      for (const int64_t m : {1, 4, 8, 16, 64, 512}) {
        if (s.n > 40000 && m > 64) continue;
        Measure(s, m, *compute, pool, peak);
      }
    }
  }
  return 0;
}

}  // namespace
}  // namespace quire::kernels

int main(int argc, char** argv) { return quire::kernels::Main(argc, argv); }
