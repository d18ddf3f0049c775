// tests/metamorphic_test.cc -- contract C1 on real models, through the real scheduler and executor:
// a sequence's tokens and logprobs are bit by bit what it gives alone, whatever happens around it.
//
// Each test asserts from counters that its event took place. The checkpoints are tiny ones with
// every feature of the Llama family, and SmolLM2 where it is to be had (not under the sanitizers).
#include <gtest/gtest.h>

#include <bit>
#include <cstdlib>
#include <map>
#include <random>

#include "models/rope_config.h"
#include "scheduler/scheduler.h"
#include "tests/support/model_harness.h"

namespace quire {
namespace {

struct BranchOutput {
  std::vector<TokenId> tokens;
  std::vector<uint32_t> logprob_bits;  // the sampled token's, then the top ones', in order
  FinishReason finish = FinishReason::kNone;
  friend bool operator==(const BranchOutput&, const BranchOutput&) = default;
};
using Outputs = std::map<std::pair<RequestId, int32_t>, BranchOutput>;

struct EngineSetup {
  HarnessOptions harness;
  int32_t max_num_seqs = 64;
  int32_t budget = 512;
  bool prefix_caching = false;
};

struct Outcome {
  Outputs outputs;
  SchedulerStats stats;
  int64_t cached_tokens = 0;
  int32_t used_at_end = 0;
};

// Runs `rounds` of requests, each round to its end before the next one starts.
Outcome RunRounds(const std::string& model, EngineSetup setup,
                  const std::vector<std::vector<std::shared_ptr<const Request>>>& rounds) {
  setup.harness.max_tokens_per_step = setup.budget;
  setup.harness.max_seqs = setup.max_num_seqs;
  auto opened = ModelHarness::Open(model, setup.harness);
  CHECK(opened.ok(), "{}", opened.status().ToString());
  ModelHarness& h = **opened;
  SchedulerOptions options;
  options.max_num_seqs = setup.max_num_seqs;
  options.max_num_batched_tokens = setup.budget;
  options.max_model_len = LongestSequence(h.config());
  options.enable_prefix_caching = setup.prefix_caching;
  options.rope_regime = [&h](int32_t n) { return RopeRegime(h.config(), n); };
  Scheduler scheduler(options, h.blocks());
  Outcome run;
  for (const auto& round : rounds) {
    std::vector<TokenEvent> events;
    for (const auto& request : round) scheduler.Apply(Submit{request}, events);
    while (!scheduler.idle()) {
      const ScheduledBatch batch = scheduler.Schedule(events);
      if (batch.empty()) break;
      const absl::StatusOr<StepOutput> out = h.executor().Run(batch);
      CHECK(out.ok(), "{}", out.status().ToString());
      scheduler.Commit(batch, *out, events);
      const absl::Status audit = scheduler.Audit();
      CHECK(audit.ok(), "{}", audit.ToString());
    }
    for (const TokenEvent& e : events) {
      CHECK(e.error.ok(), "{}", e.error.ToString());
      if (e.kind == TokenEvent::Kind::kAccepted) run.cached_tokens += e.stats.cached_tokens;
      if (e.kind != TokenEvent::Kind::kToken) continue;
      BranchOutput& out = run.outputs[{e.request, e.branch}];
      out.tokens.push_back(e.sampled.token);
      out.logprob_bits.push_back(std::bit_cast<uint32_t>(e.sampled.logprob));
      for (const TokenLogprob& t : e.sampled.top) {
        out.logprob_bits.push_back(static_cast<uint32_t>(t.token));
        out.logprob_bits.push_back(std::bit_cast<uint32_t>(t.logprob));
      }
      out.finish = e.finish;
    }
  }
  run.stats = scheduler.stats();
  for (const PagePool& pool : h.blocks().pools()) run.used_at_end += pool.num_active();
  return run;
}

class Metamorphic : public testing::TestWithParam<std::string> {
 protected:
  // Requests of many lengths; every third greedy, the others sampled, some with several branches.
  std::vector<std::shared_ptr<const Request>> Requests(size_t count, RequestId first_id = 1) const {
    std::mt19937 rng(7);
    std::vector<std::shared_ptr<const Request>> out;
    const int32_t vocab = big() ? 40000 : 200;
    std::vector<TokenId> shared;
    for (int i = 0; i < 40; ++i) shared.push_back(static_cast<TokenId>(3 + rng() % (vocab - 3)));
    for (size_t i = 0; i < count; ++i) {
      auto r = std::make_shared<Request>();
      r->id = first_id + i;
      const size_t length = 1 + rng() % 69;
      if (i % 2 == 0)
        r->prompt.assign(shared.begin(),
                         shared.begin() + static_cast<long>(std::min<size_t>(length, 40)));
      while (r->prompt.size() < length)
        r->prompt.push_back(static_cast<TokenId>(3 + rng() % (vocab - 3)));
      r->sampling.temperature = i % 3 == 0 ? 0.0f : 0.9f;
      r->sampling.top_p = i % 3 == 1 ? 0.9f : 1.0f;
      r->sampling.frequency_penalty = i % 4 == 1 ? 0.7f : 0.0f;
      r->sampling.num_logprobs = 2;
      r->sampling.n = i % 5 == 4 ? 3 : 1;
      r->seed = 1000 + i;
      r->stop.max_tokens = 8 + static_cast<int32_t>(rng() % 20);
      out.push_back(r);
    }
    return out;
  }
  bool big() const { return GetParam().find(".gguf") != std::string::npos; }
  size_t count() const { return big() ? 6 : 14; }
  // Small enough for at least three preemptions, large enough for the largest request alone: 69 +
  // 27 tokens in 3 branches, 4 shared pages and 3 x 3 own ones.
  int32_t tight_pool() const { return big() ? 14 : 15; }

  // Each request alone on a fresh engine, cache off, whole prefill, one thread.
  Outputs Solo(const std::vector<std::shared_ptr<const Request>>& requests) const {
    Outputs all;
    for (const auto& r : requests) {
      Outcome run = RunRounds(GetParam(), {}, {{r}});
      EXPECT_EQ(run.used_at_end, 0);
      all.merge(run.outputs);
    }
    return all;
  }
};

TEST_P(Metamorphic, BatchChunksThreadsAndPageSizesChangeNoBit) {
  const auto requests = Requests(count());
  const Outputs solo = Solo(requests);
  struct Case {
    const char* name;
    EngineSetup setup;
  };
  const Case cases[] = {
      {"all at once", {}},
      {"chunks of 1", {.max_num_seqs = 1, .budget = 1}},
      {"chunks of 7", {.max_num_seqs = 5, .budget = 7}},
      {"chunks of 64", {.budget = 64}},
      {"2 threads", {.harness = {.num_threads = 2}}},
      {"3 threads", {.harness = {.num_threads = 3}, .budget = 100}},
      {"pages of 8", {.harness = {.block_size = 8, .num_blocks = 200}}},
      {"pages of 32", {.harness = {.block_size = 32}}},
      {"pages of 128", {.harness = {.block_size = 128}}},
  };
  for (const Case& c : cases) {
    if (c.setup.budget == 1) {
      // n branches need n places; with one place only single branches can run.
      std::vector<std::shared_ptr<const Request>> single;
      for (const auto& r : requests) {
        if (r->sampling.n == 1) single.push_back(r);
      }
      const Outcome run = RunRounds(GetParam(), c.setup, {single});
      ASSERT_FALSE(run.outputs.empty());
      for (const auto& [key, out] : run.outputs) EXPECT_EQ(out, solo.at(key)) << c.name;
      EXPECT_GT(run.stats.steps, static_cast<int64_t>(single.size()) * 8);
      continue;
    }
    const Outcome run = RunRounds(GetParam(), c.setup, {requests});
    EXPECT_EQ(run.outputs, solo) << c.name;
    EXPECT_GT(run.stats.forks, 0) << c.name;
    EXPECT_EQ(run.used_at_end, 0) << c.name;
  }
}

TEST_P(Metamorphic, PrefixHitsChangeNoBit) {
  const auto requests = Requests(count());
  const Outputs solo = Solo(requests);
  const Outcome run =
      RunRounds(GetParam(), {.harness = {.num_blocks = 200}, .prefix_caching = true},
                {requests, Requests(count(), 1000)});
  EXPECT_GT(run.cached_tokens, 0);
  EXPECT_EQ(run.stats.prefix_hit_tokens, run.cached_tokens);
  ASSERT_EQ(run.outputs.size(), 2 * solo.size());
  for (const auto& [key, out] : run.outputs) {
    const auto id = key.first >= 1000 ? key.first - 999 : key.first;
    EXPECT_EQ(out, solo.at({id, key.second})) << "request " << key.first;
  }
}

TEST_P(Metamorphic, PreemptionChangesNoBit) {
  const auto requests = Requests(big() ? 12 : count());
  const Outputs solo = Solo(requests);
  for (const bool caching : {false, true}) {
    const Outcome run = RunRounds(
        GetParam(),
        {.harness = {.num_blocks = tight_pool()}, .budget = 64, .prefix_caching = caching},
        {requests});
    EXPECT_GE(run.stats.preemptions, 3);
    EXPECT_EQ(run.outputs, solo) << "prefix caching " << caching;
    EXPECT_EQ(run.used_at_end, 0);
  }
}

TEST_P(Metamorphic, ForksShareTheirPromptAndCopyOnWrite) {
  auto requests = Requests(count());
  auto one = std::make_shared<Request>(*requests[1]);
  one->prompt.resize(37, 5);  // ends inside a page
  one->sampling.n = 1;
  auto four = std::make_shared<Request>(*one);
  four->id = 77;
  four->sampling.n = 4;
  Outputs solo = Solo({one});
  const Outcome alone = RunRounds(GetParam(), {}, {{four}});
  // k owners of the tail page: at most k - 1 copies.
  EXPECT_EQ(alone.stats.page_copies, 3);
  EXPECT_EQ(alone.stats.forks, 3);
  ASSERT_EQ(alone.outputs.size(), 4u);
  EXPECT_EQ(alone.outputs.at({77, 0}), solo.at({one->id, 0}));  // branch 0 of n is n = 1
  EXPECT_NE(alone.outputs.at({77, 1}).tokens, alone.outputs.at({77, 0}).tokens);
  requests.push_back(four);
  const Outcome mixed =
      RunRounds(GetParam(), {.harness = {.num_threads = 2}, .budget = 64}, {requests});
  for (int32_t b = 0; b < 4; ++b) {
    EXPECT_EQ(mixed.outputs.at({77, b}), alone.outputs.at({77, b})) << "branch " << b;
  }
}

// HARD-CASES R07: pages that are freed keep no influence. Unused memory is NaN in a second pool.
TEST_P(Metamorphic, FreedPagesHoldNoInfluence) {
  const auto requests = Requests(count());
  const Outputs solo = Solo(requests);
  const Outcome run =
      RunRounds(GetParam(), {.harness = {.num_blocks = 64, .poison = true}}, {requests});
  EXPECT_EQ(run.outputs, solo);
}

std::vector<std::string> Models() {
  const std::string root = std::string(QUIRE_TEST_REFERENCE) + "/models/";
  std::vector<std::string> models = {root + "llama", root + "llama-bf16", root + "llama-tied-bias",
                                     root + "llama-rope-dynamic", root + "mistral"};
#ifdef QUIRE_TEST_REAL_MODEL
  const char* path = std::getenv("QUIRE_SMOLLM2");
  models.push_back(path != nullptr ? path : QUIRE_TEST_SMOLLM2);
#endif
  return models;
}

INSTANTIATE_TEST_SUITE_P(Models, Metamorphic, testing::ValuesIn(Models()), [](const auto& param) {
  std::string name = param.param.substr(param.param.rfind('/') + 1);
  std::replace_if(
      name.begin(), name.end(),
      [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; }, '_');
  return name;
});

}  // namespace
}  // namespace quire
