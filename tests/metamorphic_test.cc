// tests/metamorphic_test.cc -- contract C1 on real models, through the real scheduler and executor:
// a sequence's tokens and logprobs are bit by bit what it gives alone, whatever happens around it.
//
// Each test asserts from counters that its event took place. The checkpoints are tiny ones with
// every feature of the Llama family, with windows on all layers and on some, with caches of float32
// and of int8, and SmolLM2 where it
// is to be had (not under the sanitizers).
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>

#include "tests/support/edited_model.h"
#include "tests/support/engine_run.h"

namespace quire {
namespace {

class Metamorphic : public testing::TestWithParam<std::string> {
 protected:
  // Requests of many lengths; every third greedy, the others sampled, some with several branches.
  Requests Make(size_t count, RequestId first_id = 1) const {
    std::mt19937 rng(7);
    Requests out;
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
  bool windowed() const {
    return GetParam().find("mistral") != std::string::npos ||
           GetParam().find("gemma") != std::string::npos;
  }
  // Pools with room for all requests at once, however many groups share one.
  EngineSetup Wide(EngineSetup setup = {}) const {
    setup.harness.num_blocks = big() ? 100 : 1200;
    return setup;
  }

  // Each request alone on a fresh engine, cache off, whole prefill, one thread.
  Outputs Solo(const Requests& requests, const std::string& attention = "flash") const {
    Outputs all;
    for (const auto& r : requests) {
      Outcome run = RunRounds(GetParam(), Wide({.harness = {.attention = attention}}), {{r}});
      EXPECT_EQ(run.used_at_end, 0);
      all.merge(run.outputs);
    }
    return all;
  }
};

TEST_P(Metamorphic, BatchChunksThreadsAndPageSizesChangeNoBit) {
  const auto requests = Make(count());
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
      {"pages of 8", {.harness = {.block_size = 8}}},
      {"pages of 64", {.harness = {.block_size = 64}}},
      {"pages of 32", {.harness = {.block_size = 32}}},
      {"pages of 128", {.harness = {.block_size = 128}}},
  };
  for (const Case& c : cases) {
    if (c.setup.budget == 1) {
      // n branches need n places; with one place only single branches can run.
      Requests single;
      for (const auto& r : requests) {
        if (r->sampling.n == 1) single.push_back(r);
      }
      const Outcome run = RunRounds(GetParam(), Wide(c.setup), {single});
      ASSERT_FALSE(run.outputs.empty());
      for (const auto& [key, out] : run.outputs) EXPECT_EQ(out, solo.at(key)) << c.name;
      EXPECT_GT(run.stats.steps, static_cast<int64_t>(single.size()) * 8);
      continue;
    }
    const Outcome run = RunRounds(GetParam(), Wide(c.setup), {requests});
    EXPECT_EQ(run.outputs, solo) << c.name;
    EXPECT_GT(run.stats.forks, 0) << c.name;
    EXPECT_EQ(run.used_at_end, 0) << c.name;
    EXPECT_EQ(run.most_given_back > 0, windowed() && c.setup.harness.block_size < 128) << c.name;
  }
}

TEST_P(Metamorphic, PrefixHitsChangeNoBit) {
  const auto requests = Make(count());
  const Outputs solo = Solo(requests);
  const Outcome run =
      RunRounds(GetParam(), Wide({.prefix_caching = true}), {requests, Make(count(), 1000)});
  EXPECT_GT(run.all_cached_tokens(), 0);
  EXPECT_EQ(run.stats.prefix_hit_tokens, run.all_cached_tokens());
  // Hits reach beyond the window: what lies before it is not even looked for.
  EXPECT_EQ(run.given_back_at_hit > 0, windowed());
  ASSERT_EQ(run.outputs.size(), 2 * solo.size());
  for (const auto& [key, out] : run.outputs) {
    const auto id = key.first >= 1000 ? key.first - 999 : key.first;
    EXPECT_EQ(out, solo.at({id, key.second})) << "request " << key.first;
  }
}

TEST_P(Metamorphic, PreemptionChangesNoBit) {
  const auto requests = Make(big() ? 12 : count());
  const Outputs solo = Solo(requests);
  for (const bool caching : {false, true}) {
    EngineSetup setup{.budget = 64, .prefix_caching = caching};
    setup.harness.pool_blocks = TightPools(GetParam(), setup, requests);
    const Outcome run = RunRounds(GetParam(), setup, {requests});
    EXPECT_GE(run.stats.preemptions, 3);
    EXPECT_EQ(run.most_given_back > 0, windowed());
    EXPECT_EQ(run.outputs, solo) << "prefix caching " << caching;
    EXPECT_EQ(run.used_at_end, 0);
  }
}

TEST_P(Metamorphic, ForksShareTheirPromptAndCopyOnWrite) {
  auto requests = Make(count());
  auto one = std::make_shared<Request>(*requests[1]);
  one->prompt.resize(37, 5);  // ends inside a page
  one->sampling.n = 1;
  auto four = std::make_shared<Request>(*one);
  four->id = 77;
  four->sampling.n = 4;
  Outputs solo = Solo({one});
  const Outcome alone = RunRounds(GetParam(), Wide(), {{four}});
  // k owners of the tail page: at most k - 1 copies, in each group.
  EXPECT_EQ(alone.stats.page_copies, 3 * alone.num_groups);
  EXPECT_EQ(alone.num_pools, GetParam().find("two-pools") != std::string::npos ? 2 : 1);
  EXPECT_EQ(alone.stats.forks, 3);
  ASSERT_EQ(alone.outputs.size(), 4u);
  EXPECT_EQ(alone.outputs.at({77, 0}), solo.at({one->id, 0}));  // branch 0 of n is n = 1
  EXPECT_NE(alone.outputs.at({77, 1}).tokens, alone.outputs.at({77, 0}).tokens);
  requests.push_back(four);
  const Outcome mixed =
      RunRounds(GetParam(), Wide({.harness = {.num_threads = 2}, .budget = 64}), {requests});
  for (int32_t b = 0; b < 4; ++b) {
    EXPECT_EQ(mixed.outputs.at({77, b}), alone.outputs.at({77, b})) << "branch " << b;
  }
}

// HARD-CASES R07: pages that are freed keep no influence, nor has the null page, by which tables
// name what a window has passed: all of it is NaN, from the start or from the moment it is freed.
TEST_P(Metamorphic, FreedPagesHoldNoInfluence) {
  const auto requests = Make(count());
  const Outputs solo = Solo(requests);
  const Outcome run =
      RunRounds(GetParam(), Wide({.harness = {.poison = true}, .budget = 64}), {requests});
  EXPECT_EQ(run.outputs, solo);
  EXPECT_GT(run.poisoned_pages, 0);
  EXPECT_EQ(run.most_given_back > 0, windowed());
}

TEST_P(Metamorphic, TheOtherKernelsAreExactToo) {
  const auto requests = Make(big() ? 3 : count());
  for (const kernels::AttentionBackend* backend : kernels::AttentionBackends()) {
    if (backend->name == "flash" || !backend->batch_invariant) continue;
    const std::string name(backend->name);
    const Outputs solo = Solo(requests, name);
    const EngineSetup setup{.harness = {.attention = name, .poison = true},
                            .max_num_seqs = 5,
                            .budget = 7,
                            .prefix_caching = true};
    const Outcome run = RunRounds(GetParam(), Wide(setup), {requests});
    EXPECT_EQ(run.outputs, solo) << name;
    EXPECT_EQ(run.most_given_back > 0, windowed()) << name;
  }
}

std::vector<std::string> Models() {
  const std::string root = std::string(QUIRE_TEST_REFERENCE) + "/models/";
  std::vector<std::string> models = {
      root + "llama", root + "llama-bf16", root + "llama-tied-bias", root + "llama-rope-dynamic",
      root + "mistral", root + "gemma3", root + "llama@int8", root + "gemma3@int8",
      // Nine sliding layers, two full ones: pools of two sizes.
      EditedModel("gemma3", "two-pools", {{"layer_types", ""}, {"sliding_window_pattern", "5"}},
                  11)};
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
