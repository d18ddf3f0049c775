// tests/metamorphic_branching_test.cc -- contract C1 where the scheduler has a choice: under each
// policy, with guesses right and wrong, swapped out and in, with prompts cut by a cap; and what
// beams and prompt logprobs give in company, after hits and preempted.
//
// As in metamorphic_test.cc each test asserts from counters that its event took place. Beams are
// compared with transformers' own (golden.json), too.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <random>

#include "scheduler/ngram_proposer.h"
#include "scheduler/suffix_proposer.h"
#include "tests/beam_cases.h"
#include "tests/support/edited_model.h"
#include "tests/support/engine_run.h"

namespace quire {
namespace {

// Knows what will be said, and now and then says something else.
class Oracle final : public Proposer {
 public:
  explicit Oracle(const Outputs& outputs) : outputs_(outputs) {}
  std::string_view name() const override { return "oracle"; }
  void Propose(std::span<DraftRequest> requests) override {
    for (DraftRequest& r : requests) {
      r.chains.clear();
      const RequestId id = (r.seq->request->id - 1) % 1000 + 1;
      const std::vector<TokenId>& said = outputs_.at({id, r.seq->branch}).tokens;
      const auto at = static_cast<size_t>(r.seq->num_output_tokens());
      const size_t right = rng_() % static_cast<size_t>(r.max_chains + 1);  // maybe none
      for (size_t c = 0; c < static_cast<size_t>(r.max_chains) && at < said.size(); ++c) {
        DraftChain chain;
        for (size_t i = at; i < said.size() && chain.tokens.size() < size_t(r.max_tokens); ++i) {
          const bool wrong = (i == at && c != right) || rng_() % 8 == 0;
          chain.tokens.push_back(wrong ? static_cast<TokenId>(3 + c) : said[i]);
        }
        const bool twice = std::any_of(r.chains.begin(), r.chains.end(), [&](const auto& other) {
          return other.tokens[0] == chain.tokens[0];
        });
        if (!twice) r.chains.push_back(std::move(chain));
      }
    }
  }

 private:
  const Outputs& outputs_;
  std::mt19937 rng_{5};
};

class Branching : public testing::TestWithParam<std::string> {
 protected:
  bool big() const { return GetParam().find(".gguf") != std::string::npos; }
  bool windowed() const {
    return GetParam().find("mistral") != std::string::npos ||
           GetParam().find("gemma") != std::string::npos;
  }
  TokenId RandomToken(std::mt19937& rng) const {
    return static_cast<TokenId>(3 + rng() % (big() ? 40000 : 197));
  }

  // What `run` gave to ids 1001 ..., 2001 ... is what `solo` gave to 1 ...
  static void ExpectSame(const Outcome& run, const Outputs& solo, size_t rounds,
                         const std::string& what) {
    ASSERT_EQ(run.outputs.size(), rounds * solo.size()) << what;
    for (const auto& [key, out] : run.outputs) {
      EXPECT_EQ(out, solo.at({(key.first - 1) % 1000 + 1, key.second}))
          << what << ", request " << key.first;
    }
    EXPECT_EQ(run.used_at_end, 0) << what;
  }
  // All of `rounds` copies at once.
  Requests Crowd(size_t count, RequestId rounds) const {
    Requests all;
    for (RequestId i = 0; i < rounds; ++i) {
      const Requests some = Make(count, 1000 * i + 1);
      all.insert(all.end(), some.begin(), some.end());
    }
    return all;
  }

  // Half of them begin alike, and repeat themselves, so that lookups find something; greedy ones
  // soon repeat what they said, sampled ones don't.
  Requests Make(size_t count, RequestId first_id = 1) const {
    std::mt19937 rng(11);
    std::vector<TokenId> shared;
    for (int i = 0; i < 24; ++i) shared.push_back(RandomToken(rng));
    Requests out;
    for (size_t i = 0; i < count; ++i) {
      auto r = std::make_shared<Request>();
      r->id = first_id + i;
      if (i % 2 == 0) r->prompt = shared;
      for (size_t k = 2 + rng() % 30; k > 0; --k) {
        r->prompt.push_back(i % 3 == 0 ? shared[rng() % 6] : RandomToken(rng));
      }
      r->sampling.temperature = i % 3 == 1 ? 0.8f : 0.0f;
      r->sampling.frequency_penalty = i % 4 == 3 ? 0.5f : 0.0f;
      r->sampling.num_logprobs = 2;
      r->sampling.n = i % 5 == 4 ? 3 : 1;
      r->seed = 500 + i;
      r->priority = static_cast<int32_t>(i % 3);
      r->tenant = i % 2 == 0 ? "a" : "b";
      r->speculation.branching_factor = 1 + static_cast<int32_t>(i % 3);
      r->stop.max_tokens = 12 + static_cast<int32_t>(rng() % 20);
      out.push_back(r);
    }
    return out;
  }
  size_t count() const { return big() ? 6 : 14; }

  EngineSetup Wide(EngineSetup setup = {}) const {
    setup.harness.num_blocks = big() ? 160 : 1200;
    return setup;
  }
  Outputs Solo(const Requests& requests) const {
    Outputs all;
    for (const auto& r : requests) {
      all.merge(RunRounds(GetParam(), Wide(), {{r}}).outputs);
    }
    return all;
  }

  std::shared_ptr<Request> Beams(RequestId id, const BeamCase& c) const {
    auto r = std::make_shared<Request>();
    r->id = id;
    r->prompt = c.prompt;
    r->beam = c.beam;
    r->stop = c.stop;
    r->sampling.temperature = 0;
    return r;
  }
};

TEST_P(Branching, EachPolicyChangesNoBit) {
  const Requests requests = Make(count());
  const Outputs solo = Solo(requests);
  for (int32_t policy = 0; policy < 5; ++policy) {
    EngineSetup setup{.max_num_seqs = 4,
                      .budget = 48,
                      .prefix_caching = policy % 2 == 0,
                      .policy = static_cast<SchedulingPolicy>(policy),
                      .long_prefill_token_threshold = policy == 3 ? 9 : 0};
    const Outcome run = RunRounds(GetParam(), Wide(setup), {requests});
    EXPECT_EQ(run.outputs, solo) << Name(setup.policy);
    EXPECT_EQ(run.used_at_end, 0);
  }
}

TEST_P(Branching, GuessesChangeNoBit) {
  const Requests requests = Make(count());
  const Outputs solo = Solo(requests);
  NgramProposer ngram;
  SuffixProposer suffix;
  Oracle oracle(solo);
  for (Proposer* const proposer : std::initializer_list<Proposer*>{&ngram, &suffix, &oracle}) {
    EngineSetup setup{.max_num_seqs = big() ? 12 : 24,
                      .prefix_caching = true,
                      .speculation = SpeculationMethod::kNgram,
                      .proposer = proposer,
                      .num_speculative_tokens = 8};
    // The second round is what the first one said: found by suffix, and in the prefix cache.
    std::vector<Requests> rounds = {requests, Make(count(), 1001)};
    if (proposer == &oracle) {  // one after the other: then several chains pay
      rounds.clear();
      for (const Requests& all : {requests, Make(count(), 1001)}) {
        for (const auto& r : all) rounds.push_back({r});
      }
    }
    const Outcome run = RunRounds(GetParam(), Wide(setup), rounds);
    ExpectSame(run, solo, 2, std::string(proposer->name()));
    EXPECT_GT(run.stats.accepted_draft_tokens, proposer == &ngram ? 0 : 20) << proposer->name();
    if (proposer == &oracle) {
      EXPECT_GT(run.stats.draft_tokens, run.stats.accepted_draft_tokens) << "some are wrong";
      EXPECT_GT(run.stats.draft_chains, 10);
    }
    std::printf("%s: %lld of %lld guesses right, %lld further chains\n", proposer->name().data(),
                static_cast<long long>(run.stats.accepted_draft_tokens),
                static_cast<long long>(run.stats.draft_tokens),
                static_cast<long long>(run.stats.draft_chains));
  }
}

TEST_P(Branching, GuessesInTightPoolsChangeNoBit) {
  const Requests requests = Make(count());
  const Outputs solo = Solo(requests);
  Oracle oracle(solo);
  EngineSetup setup{.max_num_seqs = 16,
                    .budget = 64,
                    .prefix_caching = true,
                    .speculation = SpeculationMethod::kDraft,
                    .proposer = &oracle,
                    .num_speculative_tokens = 4};
  setup.harness.pool_blocks = TightPools(GetParam(), setup, requests);
  setup.harness.poison = true;
  const Outcome run = RunRounds(GetParam(), setup, {Crowd(count(), 3)});
  ExpectSame(run, solo, 3, "tight");
  EXPECT_GE(run.stats.preemptions, 3);
  EXPECT_GT(run.stats.accepted_draft_tokens, 0);
  EXPECT_GT(run.stats.draft_tokens, run.stats.accepted_draft_tokens);
}

TEST_P(Branching, SwappedOutThreeTimesChangesNoBit) {
  const Requests requests = Make(count());
  const Outputs solo = Solo(requests);
  for (const PreemptionMode mode : {PreemptionMode::kSwap, PreemptionMode::kAuto}) {
    EngineSetup setup{.budget = 64, .prefix_caching = true, .preemption = mode};
    setup.harness.pool_blocks = TightPools(GetParam(), setup, requests);
    setup.harness.host_blocks = 400;
    setup.harness.poison = true;
    const Outcome run = RunRounds(GetParam(), setup, {Crowd(count(), 3)});
    ExpectSame(run, solo, 3, "swap");
    EXPECT_GE(run.stats.preemptions, 3);
    if (mode == PreemptionMode::kSwap) {
      EXPECT_GE(run.stats.swapped_preemptions, 3);
      EXPECT_GE(run.stats.swap_ins, 1);
    }
  }
}

// D01, D05: what a client is told of its prompt depends neither on the cache nor on chunks.
TEST_P(Branching, PromptLogprobsAreTheSameColdAndWarm) {
  Requests cold, warm;
  std::map<RequestId, std::vector<std::pair<int32_t, uint32_t>>> alone;
  for (const auto& r : Make(count())) {
    auto asked = std::make_shared<Request>(*r);
    asked->prompt_logprobs = 3;
    cold.push_back(asked);
    asked = std::make_shared<Request>(*asked);
    asked->id += 1000;
    warm.push_back(asked);
    alone.merge(RunRounds(GetParam(), Wide(), {{cold.back()}}).prompts);
  }
  const Outputs solo = Solo(Make(count()));
  for (const int32_t budget : {512, 33}) {
    EngineSetup setup{.max_num_seqs = 32, .budget = budget, .prefix_caching = true};
    const Outcome run = RunRounds(GetParam(), Wide(setup), {Make(count(), 2001), cold, warm});
    for (const auto& r : cold) {
      EXPECT_EQ(run.prompts.at(r->id), alone.at(r->id));
      EXPECT_EQ(run.prompts.at(r->id + 1000), alone.at(r->id));
      // 3 best and the token's own for each position but the first.
      EXPECT_EQ(run.prompts.at(r->id).size(), 4 * (r->prompt.size() - 1));
    }
    ExpectSame(run, solo, 3, "prompt logprobs");
    EXPECT_GT(run.all_cached_tokens(), 0) << "those that did not ask";
  }
}

// T02, T03: transformers' beams, alone, all together, after hits, and preempted, bit by bit.
TEST_P(Branching, BeamsAreTransformersBeams) {
  std::vector<BeamCase> cases;
  const bool recorded = GetParam().find("two-pools") == std::string::npos &&
                        GetParam().find("@int8") == std::string::npos;
  if (!big() && recorded) cases = BeamCasesOf(GetParam());
  if (cases.empty()) {  // no golden: made up, compared with itself alone
    std::mt19937 rng(3);
    for (int i = 0; i < 3; ++i) {
      BeamCase c;
      for (int k = 0; k < 20 + i; ++k) c.prompt.push_back(RandomToken(rng));
      c.beam = {.beam_width = 4, .num_return_sequences = 4};
      c.stop.max_tokens = 12;
      cases.push_back(c);
    }
  }
  Requests requests, crowd;
  Outputs solo;
  std::map<std::pair<RequestId, int32_t>, float> scores;
  for (size_t i = 0; i < cases.size(); ++i) {
    requests.push_back(Beams(i + 1, cases[i]));
    for (RequestId round = 0; round < 4; ++round) {
      crowd.push_back(Beams(1000 * round + i + 1, cases[i]));
    }
    Outcome run = RunRounds(GetParam(), Wide(), {{requests.back()}});
    ASSERT_EQ(run.outputs.size(), static_cast<size_t>(cases[i].beam.num_return_sequences));
    EXPECT_GT(run.stats.beam_forks, 0);
    for (size_t b = 0; b < cases[i].sequences.size(); ++b) {
      const std::pair<RequestId, int32_t> key{i + 1, static_cast<int32_t>(b)};
      EXPECT_EQ(run.outputs.at(key).tokens, cases[i].sequences[b]) << cases[i].name;
      // A negative penalty multiplies the sum, and what logits differ by.
      const double scale = std::pow(static_cast<double>(cases[i].sequences[b].size()),
                                    -double{cases[i].beam.length_penalty});
      EXPECT_NEAR(run.scores.at(key), cases[i].scores[b],
                  kBeamScoreTolerance * std::max(1.0, scale))
          << cases[i].name;
    }
    solo.merge(run.outputs);
    scores.merge(run.scores);
  }
  const auto expect_same = [&](const Outcome& run, size_t rounds, const char* what) {
    ASSERT_EQ(run.outputs.size(), rounds * solo.size()) << what;
    for (const auto& [key, out] : run.outputs) {
      const std::pair<RequestId, int32_t> first{(key.first - 1) % 1000 + 1, key.second};
      EXPECT_EQ(out, solo.at(first)) << what << " request " << key.first;
      EXPECT_EQ(run.scores.at(key), scores.at(first)) << what;
    }
  };
  const EngineSetup together{.harness = {.num_threads = 2}, .budget = 96, .prefix_caching = true};
  expect_same(RunRounds(GetParam(), Wide(together), {crowd}), 4, "together");
  EngineSetup tight{.max_num_seqs = 16, .budget = 32, .prefix_caching = true};
  tight.harness.poison = true;
  tight.harness.pool_blocks = TightPools(GetParam(), tight, requests);
  const Outcome run = RunRounds(GetParam(), tight, {crowd});
  expect_same(run, 4, "preempted");
  EXPECT_GE(run.stats.preemptions, 3);
  tight.preemption = PreemptionMode::kSwap;
  tight.harness.host_blocks = 400;
  const Outcome swapped = RunRounds(GetParam(), tight, {crowd});
  expect_same(swapped, 4, "swapped");
  EXPECT_GE(swapped.stats.swapped_preemptions, 1);
}

// One among 63 others.
TEST_P(Branching, SixtyThreeNeighboursChangeNoBit) {
  Requests crowd = Make(64);
  for (auto& r : crowd) {
    auto shorter = std::make_shared<Request>(*r);
    shorter->sampling.n = 1;
    shorter->stop.max_tokens = 8;
    r = shorter;
  }
  Requests few;
  for (size_t i = 0; i < crowd.size(); i += big() ? 16 : 4) few.push_back(crowd[i]);
  const Outputs solo = Solo(few);
  EngineSetup setup = Wide({.harness = {.num_threads = 2}, .prefix_caching = true});
  if (big()) setup.harness.num_blocks = 400;
  const Outcome run = RunRounds(GetParam(), setup, {crowd});
  for (const auto& r : few) EXPECT_EQ(run.outputs.at({r->id, 0}), solo.at({r->id, 0}));
  EXPECT_EQ(run.outputs.size(), 64u);
  EXPECT_LT(run.stats.steps, 16) << "together, not one after the other";
}

std::vector<std::string> Models() {
  const std::string root = std::string(QUIRE_TEST_REFERENCE) + "/models/";
  std::vector<std::string> models = {
      root + "llama",
      root + "llama-rope-dynamic",
      root + "mistral",
      root + "gemma3",
      root + "llama@int8",
      EditedModel("gemma3", "two-pools", {{"layer_types", ""}, {"sliding_window_pattern", "5"}},
                  11)};
#ifdef QUIRE_TEST_REAL_MODEL
  const char* path = std::getenv("QUIRE_SMOLLM2");
  models.push_back(path != nullptr ? path : QUIRE_TEST_SMOLLM2);
#endif
  return models;
}

INSTANTIATE_TEST_SUITE_P(Models, Branching, testing::ValuesIn(Models()), [](const auto& param) {
  std::string name = param.param.substr(param.param.rfind('/') + 1);
  std::replace_if(
      name.begin(), name.end(),
      [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; }, '_');
  return name;
});

}  // namespace
}  // namespace quire
