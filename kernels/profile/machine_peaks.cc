// Measures by the wall clock between a common start and the last thread's end, the best of several
// runs for reads; for registers each thread by its own CPU time, so that a neighbour on the core
// does not count.
#include "kernels/profile/machine_peaks.h"

#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <thread>

#include "base/status.h"
#include "kernels/profile/peak_loops.h"

namespace quire::kernels {
namespace {

double Seconds(clockid_t clock) {
  timespec t{};
  clock_gettime(clock, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

// fn(thread) on num_threads threads at once, which start together; seconds until all are done.
double Together(int32_t num_threads, const std::function<void(int32_t)>& fn) {
  std::atomic<int32_t> ready{0};
  std::vector<std::thread> threads;
  const auto start_together = [&] {
    ready.fetch_add(1);
    while (ready.load() < num_threads) std::this_thread::yield();
  };
  double start = 0;
  for (int32_t t = 1; t < num_threads; ++t) {
    threads.emplace_back([&, t] {
      start_together();
      fn(t);
    });
  }
  start_together();
  start = Seconds(CLOCK_MONOTONIC);
  fn(0);
  for (std::thread& t : threads) t.join();
  return Seconds(CLOCK_MONOTONIC) - start;
}

// Memory of a measurement, on huge pages where there are any.
class Buffer {
 public:
  explicit Buffer(size_t bytes) : bytes_(bytes) {
    void* const p =
        ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(p != MAP_FAILED, "{} bytes for a measurement", bytes);
    (void)::madvise(p, bytes, MADV_HUGEPAGE);
    data_ = static_cast<std::byte*>(p);
  }
  ~Buffer() { (void)::munmap(data_, bytes_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  std::byte* data() const { return data_; }

 private:
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

size_t CacheSize(int name) {
  const long bytes = ::sysconf(name);
  return bytes > 0 ? static_cast<size_t>(bytes) : 0;
}

}  // namespace

std::vector<MathPeak> MeasureMath(int32_t num_threads, double seconds) {
  std::vector<MathPeak> peaks;
  for (const PeakLoop& loop : PeakLoops()) {
    MathPeak& peak =
        peaks.emplace_back(MathPeak{.type = loop.type, .unit = loop.unit, .isa = loop.isa});
    peak.available = loop.supported();
    if (!peak.available) continue;
    std::vector<double> best(static_cast<size_t>(num_threads), 0);
    Together(num_threads, [&](int32_t thread) {
      double& rate = best[static_cast<size_t>(thread)];
      int64_t rounds = 2000;
      for (double spent = 0; spent < seconds;) {
        const double start = Seconds(CLOCK_THREAD_CPUTIME_ID);
        loop.run(rounds);
        const double took = Seconds(CLOCK_THREAD_CPUTIME_ID) - start;
        spent += took;
        if (took < 5e-4) {  // too short for the clock
          rounds *= 4;
          continue;
        }
        rate =
            std::max(rate, loop.operations_per_round * static_cast<double>(rounds) / took * 1e-9);
      }
    });
    for (const double rate : best) peak.gops_per_thread += rate / num_threads;
  }
  return peaks;
}

double BestGops(const std::vector<MathPeak>& peaks, MathType type, int32_t num_threads) {
  double best = 0;
  for (const MathPeak& peak : peaks) {
    if (peak.type == type) best = std::max(best, peak.gops_per_thread * num_threads);
  }
  return best;
}

const MathPeak* UnitInUse(const std::vector<MathPeak>& peaks, MathType type, CpuIsa isa) {
  for (const MathType wanted : {type, MathType::kF32}) {
    const MathPeak* best = nullptr;
    for (const MathPeak& peak : peaks) {
      if (peak.type != wanted || !peak.available || peak.isa > isa) continue;
      if (best == nullptr || peak.gops_per_thread > best->gops_per_thread) best = &peak;
    }
    if (best != nullptr) return best;
  }
  return nullptr;
}

double MeasureRead(size_t bytes, int32_t num_threads, double seconds) {
  constexpr size_t kLine = 4096;
  const size_t share = std::max(kLine, bytes / static_cast<size_t>(num_threads) / kLine * kLine);
  const Buffer buffer(share * static_cast<size_t>(num_threads));
  const ReadFn read = ActiveReadLoop();
  // Each run reads so much that starting threads does not show.
  const auto all = static_cast<double>(share) * num_threads;
  const auto turns = static_cast<int64_t>(std::max(1.0, 64e6 / all));
  double best = 0, spent = 0;
  for (int run = 0; run < 3 || (spent < seconds && run < 200); ++run) {
    std::vector<double> took(static_cast<size_t>(num_threads));
    Together(num_threads, [&](int32_t thread) {
      std::byte* const mine = buffer.data() + share * static_cast<size_t>(thread);
      if (run == 0) {
        // First touch by who reads; not zeros, which some machines compress.
        for (size_t i = 0; i < share; i += 8) mine[i] = static_cast<std::byte>(i * 31);
      }
      const double start = Seconds(CLOCK_MONOTONIC);
      for (int64_t i = 0; i < turns; ++i) read(mine, share);
      took[static_cast<size_t>(thread)] = Seconds(CLOCK_MONOTONIC) - start;
    });
    const double slowest = *std::max_element(took.begin(), took.end());
    spent += slowest;
    if (run > 0) best = std::max(best, all * static_cast<double>(turns) / slowest * 1e-9);
  }
  return best;
}

CacheSizes ReadCacheSizes() {
  return {.l1 = CacheSize(_SC_LEVEL1_DCACHE_SIZE),
          .l2 = CacheSize(_SC_LEVEL2_CACHE_SIZE),
          .l3 = CacheSize(_SC_LEVEL3_CACHE_SIZE)};
}

MachinePeaks MeasurePeaks(int32_t num_threads, size_t working_set_bytes) {
  MachinePeaks peaks{.num_threads = num_threads};
  peaks.math = MeasureMath(num_threads);
  const size_t l2 = ReadCacheSizes().l2;
  peaks.cache_bytes = l2 > 0 ? l2 / 2 : size_t{256} << 10;
  peaks.cache_gb_s = MeasureRead(peaks.cache_bytes * static_cast<size_t>(num_threads), num_threads);
  peaks.memory_bytes = working_set_bytes;
  peaks.memory_gb_s = MeasureRead(working_set_bytes, num_threads, 0.3);
  return peaks;
}

Bound BoundOf(const OpCost& cost, double calls, const MachinePeaks& peaks) {
  const double cache = static_cast<double>(peaks.cache_bytes) * peaks.num_threads;
  const double activation_gb_s =
      cost.activation_bytes <= calls * cache ? peaks.cache_gb_s : peaks.memory_gb_s;
  Bound bound;
  bound.memory_us = (cost.weight_bytes + cost.kv_bytes) / peaks.memory_gb_s * 1e-3 +
                    cost.activation_bytes / activation_gb_s * 1e-3;
  for (size_t i = 0; i < kNumMathTypes; ++i) {
    if (cost.math[i] > 0) {
      bound.math_us += cost.math[i] / peaks.gops(static_cast<MathType>(i)) * 1e-3;
    }
  }
  bound.us = std::max(bound.memory_us, bound.math_us);
  return bound;
}

}  // namespace quire::kernels
