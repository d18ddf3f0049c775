// Beam search with real models against transformers' goldens: each checkpoint of
// tests/reference/models that has any. A beam's whole text is computed anew at each step.
#include <algorithm>
#include <filesystem>
#include <map>

#include "tests/beam_cases.h"
#include "tests/support/model_harness.h"
#include "tests/support/sampling_oracle.h"

namespace quire {
namespace {

namespace fs = std::filesystem;

// Logits after prompt + output, each text computed once.
class Rows {
 public:
  explicit Rows(const std::string& checkpoint) {
    auto opened = ModelHarness::Open(checkpoint, {});
    CHECK(opened.ok(), "{}", opened.status().ToString());
    harness_ = *std::move(opened);
  }
  const std::vector<float>& After(const std::vector<TokenId>& prompt,
                                  const std::vector<TokenId>& output) {
    std::vector<TokenId> text = prompt;
    text.insert(text.end(), output.begin(), output.end());
    std::vector<float>& row = rows_[text];
    if (row.empty()) {
      const auto seq = harness_->NewSequence(text);
      row = harness_->Step({seq.get()}, {static_cast<int32_t>(text.size())}, true);
    }
    return row;
  }

 private:
  std::unique_ptr<ModelHarness> harness_;
  std::map<std::vector<TokenId>, std::vector<float>> rows_;
};

std::vector<Hypothesis> Search(const BeamCase& c, const SamplingParams& params, Rows& rows) {
  BeamSearch search(c.beam, c.stop);
  SamplerScratch scratch;
  return RunBeams(search, [&](const std::vector<TokenId>& output) {
    Sampled sampled;
    Candidates({.logits = rows.After(c.prompt, output),
                .params = &params,
                .stop = &c.stop,
                .prompt = c.prompt,
                .output = output},
               static_cast<size_t>(search.num_candidates()), scratch, sampled);
    return sampled.top;
  });
}

std::vector<std::string> CheckpointsWithBeams() {
  std::vector<std::string> found;
  for (const auto& entry : fs::directory_iterator(std::string(QUIRE_TEST_REFERENCE) + "/models")) {
    if (!fs::exists(entry.path() / "golden.json")) continue;
    if (!BeamCasesOf(entry.path().string()).empty()) found.push_back(entry.path().string());
  }
  std::sort(found.begin(), found.end());
  return found;
}

TEST(BeamGolden, EveryCase) {
  const std::vector<std::string> checkpoints = CheckpointsWithBeams();
  ASSERT_GE(checkpoints.size(), 2u);  // llama and mistral
  for (const std::string& checkpoint : checkpoints) {
    Rows rows(checkpoint);
    const std::vector<BeamCase> cases = BeamCasesOf(checkpoint);
    EXPECT_GE(cases.size(), 16u) << checkpoint;
    for (const BeamCase& c : cases) {
      SCOPED_TRACE(checkpoint);
      ExpectHypotheses(c, Search(c, {.temperature = 0}, rows));
    }
  }
}

// T02: penalty counts go with the beam. Each token's logprob is that of its own text, by the plain
// definitions of the oracle; that needs no other beam search.
TEST(BeamGolden, T02_LogprobsAreThoseOfTheBeamsOwnText) {
  const SamplingParams params{
      .temperature = 0, .repetition_penalty = 1.2f, .frequency_penalty = 0.5f, .min_tokens = 4};
  for (const std::string& checkpoint : CheckpointsWithBeams()) {
    Rows rows(checkpoint);
    BeamCase c = BeamCasesOf(checkpoint)[0];
    c.beam.beam_width = c.beam.num_return_sequences = 3;
    int unlike_plain = 0;
    const std::vector<Hypothesis> plain = Search(c, {.temperature = 0}, rows);
    const std::vector<Hypothesis> best = Search(c, params, rows);
    ASSERT_EQ(best.size(), 3u);
    for (size_t b = 0; b < best.size(); ++b) {
      const Hypothesis& h = best[b];
      ExpectOwnScore(h, c.beam);
      EXPECT_GE(h.tokens.size(), 4u);
      unlike_plain += h.tokens != plain[b].tokens ? 1 : 0;
      OracleRow own{.params = params, .stop = c.stop, .prompt = c.prompt};
      for (size_t i = 0; i < h.tokens.size(); ++i) {
        const std::vector<float>& logits = rows.After(c.prompt, own.output);
        const std::vector<double> probs = OracleSoftmax({logits.begin(), logits.end()}, 1);
        own.logits.clear();
        for (const double p : probs) own.logits.push_back(static_cast<float>(std::log(p)));
        EXPECT_NEAR(h.logprobs[i], OracleLogits(own)[static_cast<size_t>(h.tokens[i])], 1e-5);
        own.output.push_back(h.tokens[i]);
      }
    }
    EXPECT_GT(unlike_plain, 0) << checkpoint << ": the penalties did nothing";
  }
}

}  // namespace
}  // namespace quire
