// tests/window_cases_test.cc -- models whose layers see a window, all of them or some: HARD-CASES
// K01, K05 and K08, on checkpoints whose goldens golden_models_test holds.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "models/registry.h"
#include "tests/support/edited_model.h"
#include "tests/support/engine_run.h"

namespace quire {
namespace {

std::vector<TokenId> RandomTokens(size_t count, uint32_t seed) {
  std::mt19937 rng(seed);
  std::vector<TokenId> out;
  for (size_t i = 0; i < count; ++i) out.push_back(static_cast<TokenId>(3 + rng() % 197));
  return out;
}

std::shared_ptr<const Request> Greedy(RequestId id, std::vector<TokenId> prompt,
                                      int32_t new_tokens) {
  auto r = std::make_shared<Request>();
  r->id = id;
  r->prompt = std::move(prompt);
  r->sampling.temperature = 0;
  r->sampling.num_logprobs = 5;
  r->stop.max_tokens = new_tokens;
  return r;
}

// Logits at the positions [from - 1, end) of a text whose first token is given: the prompt of
// `from` tokens in chunks, the rest one by one.
std::vector<std::vector<float>> Logits(const std::string& model, TokenId first, int32_t from,
                                       int32_t chunk = 0, size_t end = 120) {
  auto opened = ModelHarness::Open(model, {.num_blocks = 300});
  CHECK(opened.ok(), "{}", opened.status().ToString());
  std::vector<TokenId> prompt = RandomTokens(120, 5);
  prompt[0] = first;
  auto seq = (*opened)->NewSequence({prompt.begin(), prompt.begin() + from});
  std::vector<std::vector<float>> out;
  if (chunk == 0) chunk = from;
  while (seq->num_computed_tokens < from) {
    const int32_t count = std::min(chunk, from - seq->num_computed_tokens);
    std::vector<float> row =
        (*opened)->Step({seq.get()}, {count}, seq->num_computed_tokens + count == from);
    if (seq->num_computed_tokens == from) out.push_back(std::move(row));
  }
  for (size_t i = static_cast<size_t>(from); i < end; ++i) {
    seq->tokens.resize(i);  // the prompt goes on, whatever was sampled
    seq->tokens.push_back(prompt[i]);
    out.push_back((*opened)->Step({seq.get()}, {1}, true));
  }
  if (end == prompt.size()) {
    EXPECT_GT((*opened)->NumGivenBack(seq->tables), 0);
  }
  return out;
}

std::string Reference(const std::string& name) { return ReferencePath("models/" + name); }

// Three layers of window 16: position 3 * 15 is the last that can know of token 0. One full layer
// among the windowed ones, and it decides for ever; freed pages of the others change nothing.
TEST(WindowCases, K01_OnlyFullLayersRememberTheFirstToken) {
  const std::string mistral = Reference("mistral");
  EXPECT_TRUE(Logits(mistral, 7, 47) == Logits(mistral, 8, 47));
  EXPECT_TRUE(Logits(mistral, 7, 46)[0] != Logits(mistral, 8, 46)[0]) << "position 45";
  const std::string gemma3 = Reference("gemma3");
  const auto a = Logits(gemma3, 7, 100);
  const auto b = Logits(gemma3, 8, 100);
  for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(a[i] != b[i]) << i;
}

// The layers' kinds by name, by number, or by default; ropes in the new style and the old one.
TEST(WindowCases, K01_EveryWayToSayThePattern) {
  const auto want = Logits(Reference("gemma3"), 7, 50);
  const ConfigEdits old_ropes = {{"rope_parameters", ""},
                                 {"rope_theta", "1000000.0"},
                                 {"rope_local_base_freq", "10000.0"},
                                 {"rope_scaling", R"({"rope_type":"linear","factor":8.0})"}};
  ConfigEdits old_style = old_ropes;
  old_style["layer_types"] = "";
  old_style["sliding_window_pattern"] = "6";
  EXPECT_TRUE(Logits(EditedModel("gemma3", "old", old_style), 7, 50) == want);
  EXPECT_TRUE(Logits(EditedModel("gemma3", "default-pattern", {{"layer_types", ""}}), 7, 50) ==
              want);
  // What the pattern says matters: full layers elsewhere give another model.
  ConfigEdits other = {{"layer_types", ""}, {"sliding_window_pattern", "3"}};
  EXPECT_TRUE(Logits(EditedModel("gemma3", "other-pattern", other), 7, 50) != want);
}

// Caps by their definition: logits c * tanh(l / c) of the logits without one; a cap on scores far
// above them all changes next to nothing, a low one much.
TEST(WindowCases, SoftCaps) {
  const auto plain = Logits(Reference("gemma3"), 7, 50);
  const auto capped =
      Logits(EditedModel("gemma3", "capped", {{"final_logit_softcapping", "3.0"}}), 7, 50);
  const auto loose =
      Logits(EditedModel("gemma3", "loose", {{"attn_logit_softcapping", "1e4"}}), 7, 50);
  const auto tight =
      Logits(EditedModel("gemma3", "tight", {{"attn_logit_softcapping", "0.5"}}), 7, 50);
  float most = 0;
  for (size_t i = 0; i < plain.size(); ++i) {
    for (size_t j = 0; j < plain[i].size(); ++j) {
      EXPECT_NEAR(capped[i][j], 3 * std::tanh(double{plain[i][j]} / 3), 2e-6);
      EXPECT_NEAR(loose[i][j], plain[i][j], 1e-4);
      most = std::max(most, std::fabs(tight[i][j] - plain[i][j]));
    }
  }
  EXPECT_GT(most, 0.1f);
}

// Windows, chunks and pages of every size against each other: D07 and D09 on a whole model.
TEST(WindowCases, D09_PromptsAroundTheWindow) {
  for (const char* window : {"1", "8", "31", "32", "33"}) {
    const std::string model =
        EditedModel("gemma3", std::string("window-") + window, {{"sliding_window", window}});
    for (const int32_t length : {1, 7, 8, 9, 31, 32, 33, 34, 63, 64, 65, 100}) {
      const auto end = static_cast<size_t>(length) + 2;
      const auto want = Logits(model, 7, length, 0, end);
      for (const int32_t chunk : {1, 4, 13}) {
        EXPECT_TRUE(Logits(model, 7, length, chunk, end) == want)
            << "window " << window << ", prompt of " << length << " in chunks of " << chunk;
      }
    }
  }
}

// The same prompt of three windows four times, then again with others in between: each is a hit
// that the pages of the window before its end serve, and each gives what the first one gave.
TEST(WindowCases, K05_HitsOnWindowedLayers) {
  const std::string model = EditedModel("gemma3", "window-64", {{"sliding_window", "64"}});
  const std::vector<TokenId> prompt = RandomTokens(200, 11);
  std::vector<Requests> rounds;
  for (RequestId id = 1; id <= 4; ++id) rounds.push_back({Greedy(id, prompt, 20)});
  for (RequestId id = 5; id <= 8; ++id) {
    rounds.push_back({Greedy(100 + id, RandomTokens(150, static_cast<uint32_t>(id)), 20)});
    rounds.push_back({Greedy(id, prompt, 20)});
  }
  // 6 groups of 14 pages for one request; room for the prompt's own and one stranger's.
  const EngineSetup setup{
      .harness = {.num_blocks = 170}, .max_num_seqs = 1, .prefix_caching = true};
  const Outcome run = RunRounds(model, setup, rounds);
  EXPECT_EQ(run.cached_tokens.at(1), 0);
  for (RequestId id = 2; id <= 8; ++id) {
    EXPECT_EQ(run.outputs.at({id, 0}), run.outputs.at({1, 0})) << id;
    EXPECT_GT(run.cached_tokens.at(id), 64) << id;
  }
  EXPECT_GT(run.given_back_at_hit, 0);
}

// In a pool so small that the window's pages are lost between two of them: fewer tokens are found,
// or none, and still nothing changes.
TEST(WindowCases, K05_LostWindowsCostAMiss) {
  const std::string model = EditedModel("gemma3", "window-64", {{"sliding_window", "64"}});
  const std::vector<TokenId> prompt = RandomTokens(200, 11);
  std::vector<Requests> rounds;
  for (RequestId id = 1; id <= 6; ++id) {
    rounds.push_back({Greedy(id, prompt, 20)});
    rounds.push_back({Greedy(100 + id, RandomTokens(210, static_cast<uint32_t>(id)), 30)});
  }
  EngineSetup setup{.max_num_seqs = 1, .budget = 32, .prefix_caching = true};
  setup.harness.pool_blocks = TightPools(model, setup, {Greedy(1, RandomTokens(240, 1), 30)});
  const Outcome run = RunRounds(model, setup, rounds);
  for (RequestId id = 2; id <= 6; ++id) {
    EXPECT_EQ(run.outputs.at({id, 0}), run.outputs.at({1, 0})) << id;
    EXPECT_LT(run.cached_tokens.at(id), 192) << "the window before the end is gone";
  }
}

// Every architecture that is served finds a long prompt again.
TEST(WindowCases, K08_LongPromptsAreFoundOnEveryArchitecture) {
  const std::map<std::string, std::string> checkpoints = {{"LlamaForCausalLM", "llama"},
                                                          {"MistralForCausalLM", "mistral"},
                                                          {"Gemma3ForCausalLM", "gemma3"}};
  for (const Architecture& a : Architectures()) {
    ASSERT_TRUE(checkpoints.contains(std::string(a.hf_name))) << a.hf_name << " has no row here";
    const std::string model = EditedModel(checkpoints.at(std::string(a.hf_name)), "long",
                                          {{"max_position_embeddings", "1024"}});
    const std::vector<TokenId> prompt = RandomTokens(561, 3);
    std::vector<TokenId> longer = prompt;
    longer.push_back(9);
    const EngineSetup setup{.harness = {.num_blocks = 500}, .prefix_caching = true};
    const Outcome run = RunRounds(
        model, setup, {{Greedy(1, prompt, 4)}, {Greedy(2, prompt, 4)}, {Greedy(3, longer, 4)}});
    const Outcome cold = RunRounds(model, setup, {{Greedy(3, longer, 4)}});
    EXPECT_GE(run.cached_tokens.at(2), 512) << a.hf_name;
    EXPECT_GE(run.cached_tokens.at(3), 512) << a.hf_name;
    EXPECT_EQ(run.outputs.at({2, 0}), run.outputs.at({1, 0})) << a.hf_name;
    EXPECT_EQ(run.outputs.at({3, 0}), cold.outputs.at({3, 0})) << a.hf_name;
  }
}

}  // namespace
}  // namespace quire
