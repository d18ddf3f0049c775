// tests/prefix_cases_test.cc -- hard cases of prefix caching on real models, at the scale of their
// reports: outputs, and the bits of their logprobs, are those of a cold cache.
#include <gtest/gtest.h>

#include <random>

#include "tests/support/engine_run.h"

namespace quire {
namespace {

constexpr int32_t kVocab = 200;

class PrefixCases : public testing::TestWithParam<std::string> {
 protected:
  static std::string Model() { return std::string(QUIRE_TEST_REFERENCE) + "/models/" + GetParam(); }
  static std::vector<TokenId> Random(std::mt19937& rng, int32_t count) {
    std::vector<TokenId> tokens(static_cast<size_t>(count));
    for (TokenId& t : tokens) t = static_cast<TokenId>(3 + rng() % (kVocab - 3));
    return tokens;
  }
  static std::shared_ptr<Request> Greedy(RequestId id, std::vector<TokenId> prompt,
                                         int32_t max_tokens) {
    auto r = std::make_shared<Request>();
    r->id = id;
    r->prompt = std::move(prompt);
    r->sampling.temperature = 0;
    r->sampling.num_logprobs = 5;
    r->stop.max_tokens = max_tokens;
    return r;
  }
  static EngineSetup Setup(bool caching) {
    EngineSetup setup;
    setup.harness.num_blocks = 1500;
    setup.budget = 2048;
    setup.prefix_caching = caching;
    return setup;
  }
  static Outputs Cold(const Requests& requests) {
    Outputs all;
    for (const auto& r : requests) all.merge(RunRounds(Model(), Setup(false), {{r}}).outputs);
    return all;
  }
};

// A01: 32 requests with one prefix of 8 blocks come in one step on a cold cache, 20 times. One
// computes the prefix; the others read what it writes in the very same step.
TEST_P(PrefixCases, A01_SharedInsideTheStepThatComputesIt) {
  std::mt19937 rng(1);
  const std::vector<TokenId> prefix = Random(rng, 8 * 16);
  Requests requests;
  for (RequestId i = 1; i <= 32; ++i) {
    std::vector<TokenId> prompt = prefix;
    for (const TokenId t : Random(rng, 5)) prompt.push_back(t);
    requests.push_back(Greedy(i, std::move(prompt), 16));
  }
  const Outputs cold = Cold(requests);
  EngineSetup setup = Setup(true);
  setup.harness.max_tokens_per_step = setup.budget;
  setup.harness.max_seqs = 64;
  setup.harness.num_threads = 2;
  auto opened = ModelHarness::Open(Model(), setup.harness);
  ASSERT_TRUE(opened.ok()) << opened.status();
  ModelHarness& h = **opened;
  SchedulerOptions options;
  options.max_num_batched_tokens = setup.budget;
  options.max_model_len = LongestSequence(h.config());
  Scheduler scheduler(options, h.blocks());
  for (int round = 1; round <= 20; ++round) {
    SCOPED_TRACE(round);
    Outcome run;
    RunRound(h, scheduler, requests, run);
    ASSERT_EQ(run.outputs, cold);
    EXPECT_EQ(scheduler.stats().prefix_hit_tokens, round * 31 * 128);
    EXPECT_EQ(h.blocks().stats().in_step_tokens, round * 31 * 128);
    h.blocks().Flush();
  }
}

// A06: a prompt of two whole blocks three times, then longer and shorter ones of the same text.
TEST_P(PrefixCases, A06_WhollyCachedPrompts) {
  std::mt19937 rng(6);
  const std::vector<TokenId> text = Random(rng, 48);
  std::vector<Requests> rounds;
  Requests all;
  RequestId id = 0;
  for (const int32_t length : {32, 32, 32, 48, 48, 31, 33, 16, 17, 1}) {
    all.push_back(Greedy(++id, {text.begin(), text.begin() + length}, 8));
    rounds.push_back({all.back()});
  }
  const Outcome run = RunRounds(Model(), Setup(true), rounds);
  EXPECT_EQ(run.outputs, Cold(all));
  for (const auto& r : all) {
    const int32_t cached = run.cached_tokens.at(r->id);
    EXPECT_LT(cached, static_cast<int32_t>(r->prompt.size()));
  }
  EXPECT_GE(run.cached_tokens.at(3), 16);
  EXPECT_GE(run.cached_tokens.at(5), 32) << "the chain is intact";
}

// A08: a prefill that begins behind a hit, for every pair of the report: the first token's five
// likeliest and all that follow.
TEST_P(PrefixCases, A08_PrefillBehindAHit) {
  std::mt19937 rng(8);
  const std::vector<TokenId> text = Random(rng, 160);
  RequestId id = 0;
  int pairs = 0;
  for (const int32_t prefix : {16, 32, 48, 160}) {
    for (const int32_t suffix : {1, 2, 15, 16, 17, 40}) {
      SCOPED_TRACE(testing::Message() << prefix << " + " << suffix);
      std::vector<TokenId> prompt(text.begin(), text.begin() + prefix);
      const auto head = Greedy(++id, prompt, 1);
      for (const TokenId t : Random(rng, suffix)) prompt.push_back(t);
      const auto whole = Greedy(++id, prompt, 6);
      const Outcome run = RunRounds(Model(), Setup(true), {{head}, {whole}});
      EXPECT_EQ(run.cached_tokens.at(whole->id), prefix);
      EXPECT_EQ(run.outputs.at({whole->id, 0}), Cold({whole}).at({whole->id, 0}));
      EXPECT_EQ(run.outputs.at({whole->id, 0}).logprob_bits.size(), 6u * 11);
      ++pairs;
    }
  }
  EXPECT_EQ(pairs, 24);
}

// A09: every beginning of one text of 50 tokens, in three orders, while another decodes it.
TEST_P(PrefixCases, A09_PrefixesOfOneText) {
  std::mt19937 rng(9);
  const std::vector<TokenId> text = Random(rng, 50);
  Requests each;
  for (int32_t n = 1; n <= 50; ++n) {
    each.push_back(Greedy(n, {text.begin(), text.begin() + n}, 2));
  }
  const Outputs cold = Cold(each);
  std::vector<size_t> order(50);
  for (size_t i = 0; i < 50; ++i) order[i] = i;
  for (int round = 0; round < 3; ++round) {
    if (round == 1) std::reverse(order.begin(), order.end());
    if (round == 2) std::shuffle(order.begin(), order.end(), rng);
    // In threes, so that some are computed beside each other.
    std::vector<Requests> rounds;
    rounds.push_back({});
    for (const size_t i : order) {
      if (rounds.back().size() == 3) rounds.push_back({});
      rounds.back().push_back(each[i]);
    }
    rounds.front().push_back(Greedy(1000, {text.begin(), text.begin() + 40}, 30));
    const Outcome run = RunRounds(Model(), Setup(true), rounds);
    for (const auto& [key, out] : cold) EXPECT_EQ(run.outputs.at(key), out) << key.first;
    int hits = 0;
    for (const auto& [id, cached] : run.cached_tokens) {
      if (id == 1000) continue;
      EXPECT_TRUE(cached % 16 == 0 || cached < static_cast<int32_t>(id)) << cached << " of " << id;
      EXPECT_LT(cached, static_cast<int32_t>(id));
      hits += cached > 0;
    }
    EXPECT_GT(hits, 20);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, PrefixCases, testing::Values("llama", "mistral", "gemma3"),
                         [](const auto& param) { return param.param; });

}  // namespace
}  // namespace quire
