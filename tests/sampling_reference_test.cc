// Logits to probabilities against transformers' processors (tests/reference/sampling).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "base/json.h"
#include "sampling/processors.h"

namespace quire {
namespace {

constexpr double kTolerance = 1e-5;  // of the reference's README
constexpr float kMasked = -std::numeric_limits<float>::infinity();

struct Case {
  SamplingParams params;
  StopConditions stop;
  bool offered = true;  // false: uses a parameter that we don't have
};

std::vector<TokenId> Ids(const Json& json) {
  std::vector<TokenId> ids;
  if (json.is_integer()) ids.push_back(static_cast<TokenId>(*json.as_int()));
  for (size_t i = 0; i < json.size(); ++i)
    ids.push_back(static_cast<TokenId>(*json.at(i).as_int()));
  return ids;
}

Case Read(const Json& params) {
  Case c;
  params.ForEach([&](std::string_view name, const Json& value) {
    bool known = false;
    SamplingParams::VisitFields(c.params, [&](std::string_view field, auto& member, auto, auto) {
      if (field != name) return;
      member = static_cast<std::decay_t<decltype(member)>>(*value.as_double());
      known = true;
    });
    if (known) return;
    if (name == "logit_bias") {
      for (size_t i = 0; i < value.size(); ++i) {
        c.params.logit_bias.emplace_back(static_cast<TokenId>(*value.at(i).at(0).as_int()),
                                         static_cast<float>(*value.at(i).at(1).as_double()));
      }
    } else if (name == "bad_words_ids") {
      for (size_t i = 0; i < value.size(); ++i) c.params.bad_words.push_back(Ids(value.at(i)));
    } else if (name == "min_new_tokens") {
      c.params.min_tokens = static_cast<int32_t>(*value.as_int());
    } else if (name == "eos_token_id") {
      c.stop.eos_token_ids = Ids(value);
    } else {
      EXPECT_TRUE(name == "epsilon_cutoff" || name == "eta_cutoff") << name;
      c.offered = false;
    }
  });
  c.stop.max_tokens = 100;
  return c;
}

TEST(SamplingReference, EveryCase) {
  std::ifstream file(QUIRE_TEST_REFERENCE "/sampling/sampling.json");
  std::stringstream text;
  text << file.rdbuf();
  const absl::StatusOr<Json> parsed = Json::Parse(text.str());
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  const Json& doc = *parsed;
  const int32_t vocab_size = static_cast<int32_t>(*doc["vocab"].as_int());
  int compared = 0, tied = 0, not_offered = 0;
  std::set<std::string> names;
  SamplerScratch scratch;  // one for all: nothing may be left over
  for (size_t n = 0; n < doc["cases"].size(); ++n) {
    const Json c = doc["cases"].at(n);
    SCOPED_TRACE(c["params"].Dump() + " on " + std::string(*c["logits"].as_string()) + ", " +
                 std::string(*c["history"].as_string()));
    const Case parameters = Read(c["params"]);
    if (!parameters.offered) {
      ++not_offered;
      continue;
    }
    ASSERT_TRUE(Validate(parameters.params, parameters.stop, vocab_size).ok());
    for (const std::string& key : c["params"].keys()) names.insert(key);

    const Json logits_json = doc["logits"][*c["logits"].as_string()];
    std::vector<float> logits;
    for (size_t i = 0; i < logits_json.size(); ++i) {
      logits.push_back(static_cast<float>(logits_json.at(i).as_double().value_or(kMasked)));
    }
    const Json history = doc["histories"][*c["history"].as_string()];
    const std::vector<TokenId> ids = Ids(history["input_ids"]);
    const auto prompt_length = static_cast<size_t>(*history["prompt_length"].as_int());
    const SampleRow row{.logits = logits,
                        .params = &parameters.params,
                        .stop = &parameters.stop,
                        .prompt = std::span(ids).first(prompt_length),
                        .output = std::span(ids).subspan(prompt_length)};
    FilterTokens(EditLogits(row, scratch), parameters.params, scratch);

    double total = 0;
    for (float w : scratch.values) total += w;
    std::vector<double> probs(vocab_size, 0.0);
    for (size_t i = 0; i < scratch.ids.size(); ++i)
      probs[scratch.ids[i]] = scratch.values[i] / total;
    std::vector<double> expected;
    for (size_t i = 0; i < c["probs"].size(); ++i)
      expected.push_back(*c["probs"].at(i).as_double());
    const std::vector<TokenId> kept = Ids(c["kept"]);
    if (c["tied"].as_bool().value_or(false)) {
      // Which of the equal tokens stays is torch's choice: compare how many, and the sorted masses.
      ++tied;
      EXPECT_EQ(scratch.ids.size(), kept.size());
      std::sort(probs.begin(), probs.end());
      std::sort(expected.begin(), expected.end());
    } else {
      EXPECT_EQ(scratch.ids, kept);
    }
    for (int32_t i = 0; i < vocab_size; ++i) ASSERT_NEAR(probs[i], expected[i], kTolerance) << i;
    ++compared;
  }
  EXPECT_EQ(compared, 330);
  EXPECT_EQ(not_offered, 12);  // epsilon_cutoff and eta_cutoff on six rows
  EXPECT_GT(tied, 0);
  EXPECT_EQ(names.size(), 13u);
}

}  // namespace
}  // namespace quire
