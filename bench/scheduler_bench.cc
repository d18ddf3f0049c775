// bench/scheduler_bench.cc -- what planning a step and taking it in costs, whatever is queued.
//
//   scheduler_bench [running] [context] [steps]
//
// Thread CPU time of Schedule and Commit, and calls of `new` in them, with the real scheduler and
// cache; see scheduler_load.h for what is served and what the waiting ones wait for. Target: less
// than 200 us a step with 256 running and 10,000 waiting, and nothing that grows with the queue.
// `submit` is what taking in one request costs; `most` is the most calls of `new` in a step. The
// last lines are steps that admit two prompts of which nothing is cached, whose tokens must be
// hashed and given pages; they are apart from the target.
#include <malloc.h>
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <vector>

#include "bench/scheduler_load.h"

namespace {
// Counted by operator new, which has no other place for it.
int64_t g_allocations = 0;  // NOLINT(cppcoreguidelines-avoid-non-const-global-variables)
}  // namespace

[[gnu::noinline]] void* operator new(std::size_t size) {
  ++g_allocations;
  if (void* p = std::malloc(size != 0 ? size : 1)) return p;
  std::abort();
}
[[gnu::noinline]] void* operator new[](std::size_t size) { return ::operator new(size); }
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete[](void* p) noexcept { ::operator delete(p); }
[[gnu::noinline]] void operator delete(void* p, std::size_t) noexcept { ::operator delete(p); }
[[gnu::noinline]] void operator delete[](void* p, std::size_t) noexcept { ::operator delete(p); }

namespace quire {
namespace {

constexpr double kTargetUs = 200;

double ThreadUs() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) * 1e6 + static_cast<double>(t.tv_nsec) * 1e-3;
}

double Quantile(std::vector<double> v, double q) {
  std::sort(v.begin(), v.end());
  return v[static_cast<size_t>(q * static_cast<double>(v.size() - 1))];
}

const char* NameOf(WaitFor w) {
  return w == WaitFor::kPlaces ? "places" : w == WaitFor::kPages ? "pages" : "turn";
}

// Returns the median.
double Measure(SchedulerLoadOptions options) {
  options.clock = Clock::now;
  SchedulerLoad load(options);
  std::vector<double> schedule, commit, both, allocations, submit;
  const int32_t warm = options.steps / 8;
  for (int32_t i = 0; i < options.steps; ++i) {
    const int32_t missing = options.waiting - load.scheduler().stats().queued_requests;
    const double t = ThreadUs();
    load.Refill();
    const double t0 = ThreadUs();
    const int64_t a0 = g_allocations;
    load.Schedule();
    const int64_t a1 = g_allocations;
    const double t1 = ThreadUs();
    load.Fill();
    const double t2 = ThreadUs();
    const int64_t a2 = g_allocations;
    load.Commit();
    const int64_t a3 = g_allocations;
    const double t3 = ThreadUs();
    if (i < warm) continue;
    schedule.push_back(t1 - t0);
    commit.push_back(t3 - t2);
    both.push_back(t1 - t0 + t3 - t2);
    allocations.push_back(static_cast<double>(a1 - a0 + a3 - a2));
    if (missing > 0) submit.push_back((t0 - t) / missing);
  }
  const double median = Quantile(both, 0.5);
  std::printf("%-14s %-7s %8d %9.1f %9.1f %9.1f %9.1f %8.0f %8.0f %8.1f%s\n", Name(options.policy),
              options.cold ? "cold" : NameOf(options.wait_for), options.waiting,
              Quantile(schedule, 0.5), Quantile(commit, 0.5), median, Quantile(both, 0.99),
              Quantile(allocations, 0.5), Quantile(allocations, 1),
              submit.empty() ? 0.0 : Quantile(submit, 0.5),
              median < kTargetUs || options.cold ? "" : "  OVER");
  std::fflush(stdout);
  return median;
}

}  // namespace

int Main(int argc, char** argv) {
  SchedulerLoadOptions options;
  if (argc > 1) options.running = std::atoi(argv[1]);
  if (argc > 2) options.context = std::atoi(argv[2]);
  if (argc > 3) options.steps = std::atoi(argv[3]);
  if (options.running < 8 || options.context < 64 || options.steps < 16) {
    std::fprintf(stderr, "scheduler_bench [running >= 8] [context >= 64] [steps >= 16]\n");
    return 2;
  }
  std::printf("%d running at a context of %d; us of one core, %d steps\n", options.running,
              options.context, options.steps);
  std::printf(
      "policy         waits for waiting  schedule    commit    median       p99   allocs  "
      "  most   submit\n");
  double worst = 0;
  for (const SchedulingPolicy policy :
       {SchedulingPolicy::kFcfs, SchedulingPolicy::kPriority, SchedulingPolicy::kShortestFirst,
        SchedulingPolicy::kFair, SchedulingPolicy::kPrefixAware}) {
    options.policy = policy;
    for (const WaitFor wait_for : {WaitFor::kPlaces, WaitFor::kPages, WaitFor::kTurn}) {
      options.wait_for = wait_for;
      for (const int32_t waiting : {10, 1000, 10'000, 100'000}) {
        options.waiting = waiting;
        worst = std::max(worst, Measure(options));
      }
    }
  }
  options.wait_for = WaitFor::kTurn;
  options.cold = true;
  options.waiting = 1000;
  for (const SchedulingPolicy policy : {SchedulingPolicy::kFcfs, SchedulingPolicy::kPrefixAware}) {
    options.policy = policy;
    Measure(options);
  }
  std::printf("largest median but of cold prompts: %.1f us, target %.0f\n", worst, kTargetUs);
  return 0;
}

}  // namespace quire

int main(int argc, char** argv) { return quire::Main(argc, argv); }
