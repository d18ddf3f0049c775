// tests/golden_models_test.cc -- each reference checkpoint against the outputs that transformers
// gave for it: greedy tokens exactly, logits and hidden states within the golden file's own
// tolerance.
//
// Runs every directory of tests/reference/models, or those below $QUIRE_REFERENCE: a directory of
// that format is all that a new architecture needs here.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <map>

#include "models/rope_config.h"
#include "tests/support/golden_file.h"
#include "tests/support/model_harness.h"

namespace quire {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> Checkpoints() {
  const char* other = std::getenv("QUIRE_REFERENCE");
  const fs::path root =
      other != nullptr ? fs::path(other) : fs::path(QUIRE_TEST_REFERENCE) / "models";
  std::vector<std::string> found;
  if (fs::exists(root / "golden.json")) return {root.string()};
  for (const fs::directory_entry& entry : fs::directory_iterator(root)) {
    if (fs::exists(entry.path() / "golden.json")) found.push_back(entry.path().string());
  }
  std::sort(found.begin(), found.end());
  CHECK(!found.empty(), "{}: no golden.json below it", root.string());
  return found;
}

struct Golden {
  explicit Golden(const std::string& dir)
      : json(ReadGoldenJson(dir + "/golden.json")),
        tensors(dir + "/golden.safetensors"),
        tolerance(static_cast<float>(*json["tolerance_abs"].as_double())) {
    const Json list = json["prompts"];
    for (size_t i = 0; i < list.size(); ++i) {
      prompts.push_back(Ids(list.at(i)["input_ids"]));
      greedy.push_back(Ids(list.at(i)["greedy"]));
    }
  }
  static std::vector<TokenId> Ids(const Json& list) {
    std::vector<TokenId> ids;
    for (size_t i = 0; i < list.size(); ++i)
      ids.push_back(static_cast<TokenId>(*list.at(i).as_int()));
    return ids;
  }
  const Json json;
  const GoldenFile tensors;
  const float tolerance;
  std::vector<std::vector<TokenId>> prompts, greedy;
};

float MaxDifference(std::span<const float> got, std::span<const float> want) {
  CHECK(got.size() == want.size(), "{} against {} values", got.size(), want.size());
  float worst = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const float d = std::fabs(got[i] - want[i]);
    if (!(d <= worst)) worst = d;  // NaN sticks
  }
  return worst;
}

float MaxMagnitude(std::span<const float> v) {
  float worst = 0;
  for (float x : v) worst = std::max(worst, std::fabs(x));
  return worst;
}

class GoldenModel : public testing::TestWithParam<std::tuple<std::string, std::string>> {
 protected:
  void SetUp() override {
    auto opened =
        ModelHarness::Open(std::get<0>(GetParam()), {.attention = std::get<1>(GetParam())});
    ASSERT_TRUE(opened.ok()) << opened.status();
    harness_ = *std::move(opened);
    golden_ = std::make_unique<Golden>(std::get<0>(GetParam()));
  }
  std::unique_ptr<ModelHarness> harness_;
  std::unique_ptr<Golden> golden_;
};

TEST_P(GoldenModel, GreedyTokensAndLogits) {
  for (size_t p = 0; p < golden_->prompts.size(); ++p) {
    const std::vector<TokenId>& want = golden_->greedy[p];
    auto seq = harness_->NewSequence(golden_->prompts[p]);
    const auto logits = harness_->Generate(*seq, static_cast<int32_t>(want.size()));
    const std::vector<TokenId> got(seq->tokens.begin() + seq->num_prompt_tokens(),
                                   seq->tokens.end());
    EXPECT_EQ(got, want) << "prompt " << p;
    const std::string name = "prompt" + std::to_string(p);
    EXPECT_LT(MaxDifference(logits[0], golden_->tensors.Floats(name + ".last_logits")),
              golden_->tolerance)
        << name;
    if (golden_->tensors.Has(name + ".step_logits")) {
      const std::vector<float> steps = golden_->tensors.Floats(name + ".step_logits");
      const size_t vocab = logits[0].size();
      ASSERT_EQ(steps.size(), logits.size() * vocab);
      for (size_t t = 0; t < logits.size(); ++t) {
        EXPECT_LT(MaxDifference(logits[t], {&steps[t * vocab], vocab}), golden_->tolerance)
            << name << " step " << t;
      }
    }
  }
}

TEST_P(GoldenModel, HiddenStatesAndLogitsAtEveryPosition) {
  const std::vector<TokenId>& prompt = golden_->prompts[2];
  std::map<int32_t, std::vector<float>> hidden;
  harness_->model().set_tap(
      [&](int32_t layer, std::span<const float> h) { hidden[layer].assign(h.begin(), h.end()); });
  auto seq = harness_->NewSequence(prompt);
  harness_->Generate(*seq, 1);
  harness_->model().set_tap(nullptr);
  const auto check = [&](int32_t layer, const std::string& name) {
    const std::vector<float> want = golden_->tensors.Floats(name);
    EXPECT_LT(MaxDifference(hidden[layer], want), 1e-4f * std::max(1.0f, MaxMagnitude(want)))
        << name;
  };
  check(-1, "hidden.embed");
  for (int32_t l = 0; l < static_cast<int32_t>(harness_->config().layers.size()); ++l) {
    check(l, "hidden.layer" + std::to_string(l));
  }
  // Logits of every position: the prompt one token at a time, in a fresh sequence. Frequencies that
  // depend on the length make this another function, so those models are checked by the steps
  // above.
  const bool by_length = IsLengthDependent(harness_->config().ropes[0]);
  if (by_length) return;
  const std::vector<float> full = golden_->tensors.Floats("prompt2.full_logits");
  auto slow = harness_->NewSequence(prompt);
  const size_t vocab = full.size() / prompt.size();
  for (size_t t = 0; t < prompt.size(); ++t) {
    slow->tokens.resize(prompt.size());
    const std::vector<float> row = harness_->Step({slow.get()}, {1}, true);
    slow->tokens.resize(prompt.size());
    EXPECT_LT(MaxDifference(row, {&full[t * vocab], vocab}), golden_->tolerance)
        << "position " << t;
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, GoldenModel,
    testing::Combine(testing::ValuesIn(Checkpoints()),
                     testing::Values("eager", "sdpa", "flash", "flex")),
    [](const auto& param) {
      std::string name =
          fs::path(std::get<0>(param.param)).filename().string() + "_" + std::get<1>(param.param);
      std::replace_if(
          name.begin(), name.end(),
          [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; }, '_');
      return name;
    });

}  // namespace
}  // namespace quire
