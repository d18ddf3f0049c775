// tests/beam_cases.h -- beam searches that transformers has run (tests/reference), and a loop that
// runs one: who gives the rows, a model or a table, is up to the test.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "scheduler/beam.h"
#include "tests/support/golden_file.h"

namespace quire {

struct BeamCase {
  std::string name;
  std::vector<TokenId> prompt;
  BeamParams beam;
  StopConditions stop;
  std::vector<std::vector<TokenId>> sequences;  // best first, with the end token, no padding
  std::vector<double> scores;                   // rounded to 6 decimals
};

// Of a sum of logprobs: transformers rounds each partial sum to float32, on logits that differ in
// the last digits. Penalties below 0 scale the sum's error up with the score.
inline constexpr double kBeamScoreTolerance = 2e-5;

inline std::vector<TokenId> IdsOf(const Json& list) {
  std::vector<TokenId> ids;
  for (size_t i = 0; i < list.size(); ++i) {
    ids.push_back(static_cast<TokenId>(*list.at(i).as_int()));
  }
  return ids;
}

inline EarlyStopping EarlyStoppingOf(const Json& json) {
  if (json.is_string()) return EarlyStopping::kNever;
  return *json.as_bool() ? EarlyStopping::kFirst : EarlyStopping::kHeuristic;
}

// A case as transformers names its fields; the prompt is left to the caller.
inline BeamCase ReadBeamCase(const Json& json) {
  BeamCase c;
  const auto integer = [&](const char* key, int32_t fallback) {
    return json.Has(key) ? static_cast<int32_t>(*json[key].as_int()) : fallback;
  };
  c.beam.beam_width = integer("num_beams", 1);
  c.beam.num_groups = integer("num_beam_groups", 1);
  c.beam.num_return_sequences = static_cast<int32_t>(json["sequences"].size());
  if (json.Has("length_penalty")) {
    c.beam.length_penalty = static_cast<float>(*json["length_penalty"].as_double());
    c.beam.early_stopping = EarlyStoppingOf(json["early_stopping"]);
  }
  if (json.Has("diversity_penalty")) {
    c.beam.diversity_rate = static_cast<float>(*json["diversity_penalty"].as_double());
  }
  c.stop.max_tokens = integer("max_new_tokens", 0);
  const Json eos = json["eos_token_id"];
  c.stop.eos_token_ids =
      eos.is_integer() ? std::vector{static_cast<TokenId>(*eos.as_int())} : IdsOf(eos);
  for (size_t i = 0; i < json["sequences"].size(); ++i) {
    std::vector<TokenId> ids = IdsOf(json["sequences"].at(i));
    // What follows an end token is padding.
    const auto end = std::find_first_of(ids.begin(), ids.end(), c.stop.eos_token_ids.begin(),
                                        c.stop.eos_token_ids.end());
    if (end != ids.end()) ids.erase(end + 1, ids.end());
    c.sequences.push_back(std::move(ids));
    if (json.Has("scores")) c.scores.push_back(*json["scores"].at(i).as_double());
  }
  c.name = json.Dump().substr(0, 200);
  return c;
}

// The cases of a checkpoint's golden.json; none if it has no beams.
inline std::vector<BeamCase> BeamCasesOf(const std::string& checkpoint) {
  const Json golden = ReadGoldenJson(checkpoint + "/golden.json");
  std::vector<BeamCase> cases;
  const Json list = golden["beam"];
  for (size_t i = 0; i < list.size(); ++i) {
    BeamCase c = ReadBeamCase(list.at(i));
    const auto prompt = static_cast<size_t>(*list.at(i)["prompt"].as_int());
    c.prompt = IdsOf(golden["prompts"].at(prompt)["input_ids"]);
    c.name = "beam case " + std::to_string(i) + ": " + c.name;
    cases.push_back(std::move(c));
  }
  return cases;
}

// row(output) gives the best tokens after the prompt and `output`.
template <typename Row>
std::vector<Hypothesis> RunBeams(BeamSearch& search, Row row) {
  std::vector<std::vector<TokenId>> outputs(1);
  while (!search.done()) {
    std::vector<std::vector<TokenLogprob>> rows;
    for (const std::vector<TokenId>& output : outputs) rows.push_back(row(output));
    const std::vector<NextBeam> next = search.Advance(rows);
    std::vector<std::vector<TokenId>> longer;
    for (const NextBeam& beam : next) {
      longer.push_back(outputs.at(static_cast<size_t>(beam.parent)));
      longer.back().push_back(beam.token);
    }
    outputs = std::move(longer);
    CHECK(static_cast<int32_t>(outputs.size()) == search.num_rows(), "{} beams, {} rows",
          outputs.size(), search.num_rows());
  }
  return search.Best();
}

// T01: a score is the sum of the logprobs of all generated tokens, the end token included, by their
// number ^ length_penalty. (Diversity penalties are in the score, not in the logprobs.)
inline void ExpectOwnScore(const Hypothesis& h, const BeamParams& beam) {
  double sum = 0;
  for (const float x : h.logprobs) sum += x;
  ASSERT_EQ(h.logprobs.size(), h.tokens.size());
  const double score =
      sum / std::pow(static_cast<double>(h.tokens.size()), double{beam.length_penalty});
  EXPECT_NEAR(h.score, score, 1e-5 * std::max(1.0, std::fabs(score)));
}

inline void ExpectHypotheses(const BeamCase& c, const std::vector<Hypothesis>& got) {
  ASSERT_EQ(got.size(), c.sequences.size()) << c.name;
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].tokens, c.sequences[i]) << c.name << " sequence " << i;
    if (!c.scores.empty()) {
      const double scale = std::pow(static_cast<double>(c.sequences[i].size()),
                                    -std::min(0.0, double{c.beam.length_penalty}));
      EXPECT_NEAR(got[i].score, c.scores[i], kBeamScoreTolerance * scale)
          << c.name << " sequence " << i;
    }
    if (c.beam.num_groups == 1) ExpectOwnScore(got[i], c.beam);
    const TokenId last = c.sequences[i].back();
    const std::vector<TokenId>& eos = c.stop.eos_token_ids;
    const bool stopped = std::find(eos.begin(), eos.end(), last) != eos.end();
    EXPECT_EQ(got[i].finish, stopped ? FinishReason::kStop : FinishReason::kLength) << c.name;
    EXPECT_EQ(got[i].stop_token, stopped ? last : -1) << c.name;
  }
}

}  // namespace quire
