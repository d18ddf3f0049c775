// The real scheduler on a virtual clock: what queueing theory, a set of prefixes and plain counting
// say of it, it must say, too.
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bench/simulation/simulator.h"
#include "bench/simulation/trace_generator.h"

namespace quire {
namespace {

SimulationReport Simulated(const SimulationConfig& config, const StepCostModel& cost,
                           TraceSource& source) {
  auto report = Simulate(config, cost, source);
  EXPECT_TRUE(report.ok()) << report.status();
  return *std::move(report);
}
SimulationReport Simulated(const SimulationConfig& config, const StepCostModel& cost,
                           const TraceSpec& spec) {
  auto source = GenerateTrace(spec);
  EXPECT_TRUE(source.ok()) << source.status();
  return Simulated(config, cost, **source);
}

std::vector<TraceRequest> All(const TraceSpec& spec) {
  auto source = GenerateTrace(spec);
  std::vector<TraceRequest> requests;
  for (TraceRequest r; *(*source)->Next(r);) requests.push_back(r);
  return requests;
}

// A trace that is there already.
class Listed final : public TraceSource {
 public:
  explicit Listed(std::vector<TraceRequest> requests) : requests_(std::move(requests)) {}
  absl::StatusOr<bool> Next(TraceRequest& request) override {
    if (next_ == requests_.size()) return false;
    request = requests_[next_++];
    return true;
  }

 private:
  const std::vector<TraceRequest> requests_;
  size_t next_ = 0;
};

std::string JsonOf(const SimulationConfig& config, const SimulationReport& report) {
  JsonWriter w;
  WriteReport(config, report, w);
  return w.text();
}

// One place, requests of one token: a queue with one server. Pollaczek and Khinchine: the mean wait
// is rate E[S^2] / (2 (1 - rate E[S])).
TEST(Simulation, WaitsAreThoseOfAQueueWithFixedService) {
  SimulationConfig config;
  config.scheduler.max_num_seqs = 1;
  config.scheduler.max_queued_requests = 1 << 20;
  for (const double load : {0.3, 0.7, 0.85}) {
    const TraceSpec spec{.requests = load > 0.8 ? 1'000'000 : 200'000,
                         .seed = 5,
                         .rate = load * 1000,
                         .prompt_min = 8,
                         .prompt_max = 8,
                         .output_min = 1,
                         .output_max = 1};
    const SimulationReport r = Simulated(config, {.fixed = 1000}, spec);
    EXPECT_EQ(r.all.finished, spec.requests);
    const double want_us = load * 1000 / (2 * (1 - load));
    EXPECT_NEAR(r.all.queue_us.mean(), want_us, 0.03 * want_us) << "load " << load;
    EXPECT_NEAR(r.all.ttft_us.mean(), want_us + 1000, 0.03 * (want_us + 1000));
    EXPECT_NEAR(r.busy_s / r.duration_s, load, 0.01);
  }
}

TEST(Simulation, WaitsAreThoseOfAQueueWithShortAndLongService) {
  SimulationConfig config;
  config.scheduler.max_num_seqs = 1;
  config.scheduler.max_queued_requests = 1 << 20;
  // 200 + 20 x 10 us, or in a fifth of the cases 200 + 480 x 10 us.
  const StepCostModel cost{.fixed = 200, .prefill_token = 10};
  const double s1 = 400, s2 = 5000, p2 = 0.2;
  const double mean = (1 - p2) * s1 + p2 * s2, square = (1 - p2) * s1 * s1 + p2 * s2 * s2;
  const double load = 0.6, rate = load / mean;
  const TraceSpec spec{.requests = 300'000,
                       .seed = 6,
                       .rate = rate * 1e6,
                       .prompt_min = 20,
                       .prompt_max = 20,
                       .output_min = 1,
                       .output_max = 1,
                       .long_share = p2,
                       .long_prompt_min = 480,
                       .long_prompt_max = 480,
                       .long_output_min = 1,
                       .long_output_max = 1};
  const SimulationReport r = Simulated(config, cost, spec);
  const double want_us = rate * square / (2 * (1 - load));
  EXPECT_NEAR(r.all.queue_us.mean(), want_us, 0.03 * want_us);
}

// Alone, a request takes what can be added up by hand.
TEST(Simulation, OneRequestTakesItsSteps) {
  SimulationConfig config;
  config.scheduler.max_num_batched_tokens = 64;
  const StepCostModel cost{.fixed = 1000, .prefill_token = 10, .row = 100, .decode_key = 1};
  Listed one({{.arrival_us = 500, .prompt = {{1, 100}}, .answer = 2, .output_tokens = 3}});
  const SimulationReport r = Simulated(config, cost, one);
  // Chunks of 64 and 36, then one token each after 100 and 101.
  EXPECT_EQ(r.steps, 4);
  EXPECT_EQ(r.all.ttft_us.mean(), (1000 + 640) + (1000 + 360 + 100));
  EXPECT_EQ(r.all.itl_us.mean(), 1100 + (101 + 102) / 2.0);
  EXPECT_NEAR(r.duration_s, (1640 + 1460 + 1201 + 1202) / 1e6, 1e-12);
  EXPECT_EQ(r.computed_tokens, 102);
  EXPECT_EQ(r.recomputed_tokens(), 0);
}

TEST(Simulation, SameSeedSameReport) {
  SimulationConfig config;
  config.num_blocks = 300;
  config.replicas = 2;
  config.routing = "prefix_affinity";
  TraceSpec spec = *NamedTrace("chat");
  spec.requests = 3000;
  spec.tenants = 3;
  spec.priorities = 2;
  const StepCostModel cost = BuiltInStepCost();
  const SimulationReport once = Simulated(config, cost, spec);
  EXPECT_EQ(JsonOf(config, once), JsonOf(config, Simulated(config, cost, spec)));
  EXPECT_EQ(once.tenants.size(), 3u);
  EXPECT_EQ(once.priorities.size(), 2u);
  spec.seed = 2;
  EXPECT_NE(JsonOf(config, once), JsonOf(config, Simulated(config, cost, spec)));
}

void ExpectConserved(const SimulationReport& r, const std::vector<TraceRequest>& trace) {
  int64_t prompt = 0, output = 0;
  for (const TraceRequest& t : trace) {
    prompt += NumPromptTokens(t);
    output += t.output_tokens;
  }
  const auto n = static_cast<int64_t>(trace.size());
  EXPECT_EQ(r.all.finished, n);
  EXPECT_EQ(r.all.refused, 0);
  EXPECT_EQ(r.all.prompt_tokens, prompt);
  EXPECT_EQ(r.all.output_tokens, output);
  EXPECT_EQ(r.all.ttft_us.count(), n);
  EXPECT_EQ(r.all.queue_us.count(), n);
  EXPECT_EQ(r.all.e2e_us.count(), n);
  EXPECT_EQ(r.all.itl_us.count(), output - n);
  // All but the last token of each request is computed, or found.
  EXPECT_EQ(r.needed_tokens, prompt + output - n - r.all.cached_tokens);
  int64_t kinds = 0;
  for (const auto& [priority, figures] : r.priorities) kinds += figures.output_tokens;
  EXPECT_EQ(kinds, output);
  if (!trace[0].tenant.empty()) {
    for (const auto& [tenant, figures] : r.tenants) kinds -= figures.output_tokens;
    EXPECT_EQ(kinds, 0);
  }
}

TEST(Simulation, EveryRequestEndsOnceAndTokensAddUp) {
  for (const char* mode : {"recompute", "swap"}) {
    TraceSpec spec = *NamedTrace("bursty");
    spec.requests = 2000;
    spec.rate = 20;
    spec.tenants = 5;
    SimulationConfig config;
    config.scheduler.max_queued_requests = 1 << 20;
    config.scheduler.enable_prefix_caching = false;
    config.preemption_mode = mode;
    config.num_blocks = 60;  // some ten requests
    config.host_blocks = config.preemption_mode == "swap" ? 500 : 0;
    const StepCostModel cost{.fixed = 500, .token = 1, .copy = 1};
    const SimulationReport tight = Simulated(config, cost, spec);
    ExpectConserved(tight, All(spec));
    EXPECT_GT(tight.preemptions, 10);
    EXPECT_EQ(tight.all.preemptions, tight.preemptions);
    if (config.preemption_mode == "swap") {
      EXPECT_GT(tight.copies, 0);
    } else {
      EXPECT_GT(tight.recomputed_tokens(), 0);
    }
    EXPECT_GT(tight.pool_used, 0.3);
    EXPECT_LE(tight.pool_used + tight.pool_cached, 1);
    config.num_blocks = 4096;
    const SimulationReport roomy = Simulated(config, cost, spec);
    ExpectConserved(roomy, All(spec));
    EXPECT_EQ(roomy.preemptions, 0);
    EXPECT_EQ(roomy.recomputed_tokens(), 0);
    EXPECT_EQ(roomy.all.cached_tokens, 0);
  }
}

TEST(Simulation, AFullQueueRefusesAndWhatNeverFitsToo) {
  SimulationConfig config;
  config.scheduler.max_num_seqs = 1;
  config.scheduler.max_queued_requests = 2;
  config.num_blocks = 20;
  std::vector<TraceRequest> requests;
  for (uint64_t i = 0; i < 10; ++i) {
    requests.push_back({.arrival_us = 10, .prompt = {{i, 16}}, .answer = 100 + i});
  }
  requests.push_back({.arrival_us = 1'000'000, .prompt = {{50, 400}}, .answer = 200});
  Listed source(requests);
  const SimulationReport r = Simulated(config, {.fixed = 1000}, source);
  // One runs at once, two wait.
  EXPECT_EQ(r.all.finished, 3);
  EXPECT_EQ(r.all.refused, 8);
  EXPECT_EQ(r.all.good, 3);
}

TEST(Simulation, StepsOfYearsEndInAnError) {
  const auto report = Simulate({}, {.fixed = 1e12, .token = 1e12}, **GenerateTrace({}));
  ASSERT_FALSE(report.ok());
  EXPECT_EQ(report.status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(Simulation, GoodRequestsMeetBothGoals) {
  SimulationConfig config;
  config.scheduler.max_num_seqs = 1;
  config.ttft_slo_ms = 2.5;
  config.itl_slo_ms = 1;
  std::vector<TraceRequest> requests;
  for (uint64_t i = 0; i < 4; ++i) {
    requests.push_back({.arrival_us = 0, .prompt = {{i, 16}}, .answer = 100 + i});
  }
  requests.push_back({.arrival_us = 100'000, .prompt = {{9, 16}}, .answer = 9, .output_tokens = 5});
  Listed source(requests);
  // First tokens after 1, 2, 3, 4 ms; then 1 ms between tokens.
  EXPECT_EQ(Simulated(config, {.fixed = 1000}, source).all.good, 3);
  config.itl_slo_ms = 0.9;
  Listed again(requests);
  EXPECT_EQ(Simulated(config, {.fixed = 1000}, again).all.good, 2);
}

// All blocks that were ever complete, as paths from the root.
class KnownBlocks {
 public:
  explicit KnownBlocks(size_t block_size) : block_size_(block_size) {}
  int64_t Hit(const std::vector<TokenId>& prompt) const {
    int64_t hit = 0;
    int node = 0;
    for (size_t at = 0; at + block_size_ < prompt.size(); at += block_size_) {
      const auto it = next_.find({node, Block(prompt, at)});
      if (it == next_.end()) break;
      node = it->second;
      hit += static_cast<int64_t>(block_size_);
    }
    return hit;
  }
  void Add(const std::vector<TokenId>& computed) {
    int node = 0;
    for (size_t at = 0; at + block_size_ <= computed.size(); at += block_size_) {
      node = next_.try_emplace({node, Block(computed, at)}, static_cast<int>(next_.size()) + 1)
                 .first->second;
    }
  }

 private:
  std::vector<TokenId> Block(const std::vector<TokenId>& tokens, size_t at) const {
    const auto from = tokens.begin() + static_cast<std::ptrdiff_t>(at);
    return {from, from + static_cast<std::ptrdiff_t>(block_size_)};
  }
  const size_t block_size_;
  std::map<std::pair<int, std::vector<TokenId>>, int> next_;
};

int64_t HitsOfAnUnlimitedPool(const std::vector<TraceRequest>& trace) {
  KnownBlocks known(16);
  int64_t hits = 0;
  for (const TraceRequest& r : trace) {
    std::vector<TokenId> tokens = PromptTokens(r);
    hits += known.Hit(tokens);
    for (int32_t i = 0; i + 1 < r.output_tokens; ++i) tokens.push_back(TokenOf(r.answer, i));
    known.Add(tokens);
  }
  return hits;
}

TEST(Simulation, HitsAreThoseOfASetOfPrefixes) {
  SimulationConfig config;
  config.num_blocks = 200'000;
  for (const char* name : {"tree", "chat"}) {
    TraceSpec spec = *NamedTrace(name);
    spec.requests = 1500;
    // One after the other.
    spec.rate = 0.01;
    spec.think_s = 1000;
    const SimulationReport r = Simulated(config, {.fixed = 100}, spec);
    const std::vector<TraceRequest> trace = All(spec);
    EXPECT_EQ(r.all.cached_tokens, HitsOfAnUnlimitedPool(trace)) << name;
    EXPECT_GT(r.all.cached_tokens, r.all.prompt_tokens / 2) << name;
    ExpectConserved(r, trace);
  }
  // All at once: who comes later in a step shares what the step computes.
  TraceSpec spec = *NamedTrace("tree");
  spec.requests = 1500;
  spec.rate = 1e6;
  config.scheduler.max_num_batched_tokens = 1 << 20;
  config.scheduler.max_num_seqs = 4096;
  config.scheduler.max_queued_requests = 1 << 20;
  const SimulationReport r = Simulated(config, {.fixed = 1e6}, spec);
  EXPECT_EQ(r.all.cached_tokens, HitsOfAnUnlimitedPool(All(spec)));
  EXPECT_LT(r.steps, 200);
}

// Servers behind a router that goes round are as many servers alone, each with its share.
TEST(Simulation, RoundRobinIsSoManyServersAlone) {
  SimulationConfig config;
  config.num_blocks = 200;
  config.replicas = 3;
  TraceSpec spec = *NamedTrace("tree");
  spec.requests = 999;
  spec.rate = 12;
  const StepCostModel cost = BuiltInStepCost();
  const SimulationReport together = Simulated(config, cost, spec);
  EXPECT_EQ(together.requests_of_replica, (std::vector<int64_t>{333, 333, 333}));
  const std::vector<TraceRequest> trace = All(spec);
  config.replicas = 1;
  int64_t steps = 0, cached = 0;
  double ttft = 0, busy = 0;
  for (size_t i = 0; i < 3; ++i) {
    std::vector<TraceRequest> part;
    for (size_t k = i; k < trace.size(); k += 3) part.push_back(trace[k]);
    Listed source(part);
    const SimulationReport r = Simulated(config, cost, source);
    steps += r.steps;
    cached += r.all.cached_tokens;
    ttft += r.all.ttft_us.mean() / 3;
    busy += r.busy_s;
  }
  EXPECT_EQ(together.steps, steps);
  EXPECT_EQ(together.all.cached_tokens, cached);
  EXPECT_NEAR(together.all.ttft_us.mean(), ttft, 1e-6 * ttft);
  EXPECT_NEAR(together.busy_s, busy, 1e-9 * busy);
}

TEST(Simulation, AffinityFindsMoreAndLoadIsBounded) {
  SimulationConfig config;
  config.num_blocks = 600;
  config.replicas = 4;
  TraceSpec spec = *NamedTrace("tree");
  spec.requests = 4000;
  spec.rate = 16;
  spec.num_systems = 24;
  std::map<std::string, SimulationReport> by_routing;
  for (const char* routing : {"round_robin", "least_loaded", "prefix_affinity"}) {
    config.routing = routing;
    by_routing[routing] = Simulated(config, BuiltInStepCost(), spec);
    ExpectConserved(by_routing[routing], All(spec));
  }
  const auto hits = [&](const char* routing) { return by_routing[routing].all.cached_tokens; };
  EXPECT_GT(hits("prefix_affinity"), hits("round_robin") * 11 / 10);
  EXPECT_GT(hits("prefix_affinity"), hits("least_loaded") * 11 / 10);
  for (const int64_t requests : by_routing["prefix_affinity"].requests_of_replica) {
    EXPECT_GT(requests, 400);
    EXPECT_LT(requests, 2000);
  }
}

TEST(Simulation, ConfigurationsAreCheckedAndOverridden) {
  const SimulationConfig base;
  const auto changed = Override(base, "max_num_seqs=32,routing=least_loaded,watermark=0.05");
  ASSERT_TRUE(changed.ok()) << changed.status();
  EXPECT_EQ(changed->scheduler.max_num_seqs, 32);
  EXPECT_EQ(changed->routing, "least_loaded");
  EXPECT_EQ(changed->scheduler.watermark, 0.05);
  EXPECT_EQ(changed->name, "max_num_seqs=32,routing=least_loaded,watermark=0.05");
  for (const char* wrong : {"max_num_seqs", "max_num_seqs=0", "max_num_seqs=x", "no_option=1",
                            "routing=best", "enable_prefix_caching=1", "watermark=nan"}) {
    EXPECT_EQ(Override(base, wrong).status().code(), absl::StatusCode::kInvalidArgument) << wrong;
  }
  SimulationConfig odd;
  odd.block_size = 12;
  EXPECT_FALSE(SchedulingOf(odd).ok());
  odd = {};
  odd.scheduler.max_num_batched_tokens = 10;  // below max_num_seqs
  EXPECT_FALSE(SchedulingOf(odd).ok());
}

TEST(Histogram, PercentilesAreWithinOnePercent) {
  Random random(11);
  Histogram histogram;
  std::vector<double> ms;
  for (int i = 0; i < 50'000; ++i) {
    const auto us = static_cast<int64_t>(random.Exponential(i % 3 == 0 ? 40.0 : 9e6));
    histogram.Add(us);
    ms.push_back(static_cast<double>(us) / 1e3);
  }
  const Percentiles got = histogram.Ms(), want = Summarize(ms);
  EXPECT_NEAR(got.p50, want.p50, 0.01 * want.p50);
  EXPECT_NEAR(got.p90, want.p90, 0.01 * want.p90);
  EXPECT_NEAR(got.p99, want.p99, 0.01 * want.p99);
  EXPECT_NEAR(got.mean, want.mean, 1e-9 * want.mean);
  EXPECT_EQ(got.max, want.max);
  EXPECT_EQ(Histogram().Ms().p99, 0);
}

}  // namespace
}  // namespace quire
