#include "bench/workloads.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <utility>

namespace quire {
namespace {

struct Shape {
  std::string_view name;
  int32_t requests, shared_len, own_len, max_tokens;
};

constexpr Shape kShapes[] = {
    {"W1", 1, 0, 32, 128},
    {"W2", 1, 0, 1024, 1},
    {"W3", 64, 0, 128, 128},
    {"W4", 64, 512, 32, 64},
};

// SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).
class Random {
 public:
  explicit Random(uint64_t state) : state_(state) {}
  uint64_t Next() {
    uint64_t z = state_ += 0x9E3779B97F4A7C15;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
    return z ^ (z >> 31);
  }

 private:
  uint64_t state_;
};

double ToMs(int64_t us) { return static_cast<double>(us) / 1e3; }

double PerSecond(int64_t count, int64_t us) {
  return us > 0 ? static_cast<double>(count) * 1e6 / static_cast<double>(us) : 0;
}

}  // namespace

absl::StatusOr<Workload> MakeWorkload(std::string_view name, int repeat, int32_t vocab_size,
                                      uint64_t seed) {
  const auto* shape = std::find_if(std::begin(kShapes), std::end(kShapes),
                                   [&](const Shape& s) { return s.name == name; });
  if (shape == std::end(kShapes)) {
    return InvalidArgument("workload={} is unknown; choose W1, W2, W3 or W4", name);
  }
  if (repeat < 0) return InvalidArgument("repeat={} must be at least 0", repeat);
  if (vocab_size < 16) return InvalidArgument("vocab_size={} must be at least 16", vocab_size);

  // Mixed through the generator, so that neighbouring seeds and repeats share nothing.
  uint64_t state = Random(seed).Next() ^ static_cast<uint64_t>(repeat);
  state = Random(state).Next() ^ static_cast<uint64_t>(shape - std::begin(kShapes));
  Random random(Random(state).Next());
  const int32_t first = std::min(300, vocab_size / 4);
  const int32_t count = vocab_size - vocab_size / 5 - first;
  const auto append = [&](std::vector<TokenId>& tokens, int32_t n) {
    for (int32_t i = 0; i < n; ++i) {
      const uint64_t high = random.Next() >> 32;
      tokens.push_back(first + static_cast<TokenId>(high * static_cast<uint64_t>(count) >> 32));
    }
  };

  Workload workload{
      .name = std::string(name), .max_tokens = shape->max_tokens, .concurrency = shape->requests};
  std::vector<TokenId> shared;
  append(shared, shape->shared_len);
  for (int32_t i = 0; i < shape->requests; ++i) {
    workload.prompts.push_back(shared);
    append(workload.prompts.back(), shape->own_len);
  }
  return workload;
}

Percentiles Summarize(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  const auto n = static_cast<double>(values.size());
  // percent * n is exact, unlike 0.9 * n, whose rounding could raise the rank by one.
  const auto rank = [&](int percent) {
    const double at = std::ceil(percent * n / 100);
    return values[static_cast<size_t>(std::max(1.0, at)) - 1];
  };
  double sum = 0;
  for (double v : values) sum += v;
  return {.p50 = rank(50), .p90 = rank(90), .p99 = rank(99), .mean = sum / n, .max = values.back()};
}

LatencySummary Summarize(std::span<const RequestTrace> traces) {
  LatencySummary summary;
  std::vector<double> ttft, itl, e2e, decode;
  int64_t begin = INT64_MAX, end = 0;
  for (const RequestTrace& trace : traces) {
    if (trace.token_us.empty()) {
      ++summary.empty;
      continue;
    }
    const std::vector<int64_t>& at = trace.token_us;
    ++summary.requests;
    summary.prompt_tokens += trace.prompt_tokens;
    summary.output_tokens += static_cast<int64_t>(at.size());
    begin = std::min(begin, trace.sent_us);
    end = std::max(end, at.back());
    ttft.push_back(ToMs(at.front() - trace.sent_us));
    e2e.push_back(ToMs(at.back() - trace.sent_us));
    for (size_t i = 1; i < at.size(); ++i) itl.push_back(ToMs(at[i] - at[i - 1]));
    if (at.back() > at.front()) {
      decode.push_back(PerSecond(static_cast<int64_t>(at.size()) - 1, at.back() - at.front()));
    }
  }
  if (summary.requests == 0) return summary;
  summary.duration_s = static_cast<double>(end - begin) / 1e6;
  summary.output_tokens_per_s = PerSecond(summary.output_tokens, end - begin);
  summary.total_tokens_per_s =
      PerSecond(summary.prompt_tokens + summary.output_tokens, end - begin);
  summary.decode_tokens_per_s = Summarize(std::move(decode)).p50;
  summary.ttft_ms = Summarize(std::move(ttft));
  summary.itl_ms = Summarize(std::move(itl));
  summary.e2e_ms = Summarize(std::move(e2e));
  return summary;
}

}  // namespace quire
