// Beam search over toy models against transformers' generate (reference/beam, made by
// make_beam.py): widths, length penalties, early stopping, end tokens, processors; and diverse
// groups.
#include <algorithm>
#include <map>

#include "tests/beam_cases.h"

namespace quire {
namespace {

struct Toy {
  uint32_t id = 0, vocab = 0, steps = 0;

  // The table of make_beam.py.
  float Logit(uint32_t step, uint32_t last, uint32_t token) const {
    uint32_t x = id * 1000003 + step * 10007 + last * 101 + token * 7 + 12345;
    x = (x ^ x >> 16) * 0x7FEB352D;
    x = (x ^ x >> 15) * 0x846CA68B;
    return static_cast<float>((static_cast<int32_t>((x ^ x >> 16) % 4000001) - 2000000) /
                              1000000.0);
  }
  std::vector<float> Row(TokenId prompt, const std::vector<TokenId>& output) const {
    const auto last = static_cast<uint32_t>(output.empty() ? prompt : output.back());
    std::vector<float> row;
    for (uint32_t t = 0; t < vocab; ++t) {
      row.push_back(Logit(static_cast<uint32_t>(output.size()) % steps, last, t));
    }
    return row;
  }
};

// Parameters that act on logits, by their names in transformers.
SamplingParams ProcessorsOf(const Json& json) {
  SamplingParams p{.temperature = 0};
  json.ForEach([&](std::string_view name, const Json& value) {
    if (name == "repetition_penalty") p.repetition_penalty = static_cast<float>(*value.as_double());
    if (name == "no_repeat_ngram_size") {
      p.no_repeat_ngram_size = static_cast<int32_t>(*value.as_int());
    }
    if (name == "min_new_tokens") p.min_tokens = static_cast<int32_t>(*value.as_int());
    for (size_t i = 0; i < value.size(); ++i) {
      if (name == "bad_words_ids") p.bad_words.push_back(IdsOf(value.at(i)));
      if (name == "suppress_tokens") {
        p.bad_words.push_back({static_cast<TokenId>(*value.at(i).as_int())});
      }
      if (name == "sequence_bias") {
        p.logit_bias.emplace_back(IdsOf(value.at(i).at(0))[0],
                                  static_cast<float>(*value.at(i).at(1).as_double()));
      }
    }
  });
  return p;
}

// Returns how many cases of each kind there were.
std::map<std::string, int> RunFile(const std::string& name) {
  const Json file = ReadGoldenJson(std::string(QUIRE_TEST_REFERENCE) + "/beam/" + name);
  std::map<std::string, int> counts;
  const Json cases = file["cases"];
  SamplerScratch scratch;
  for (size_t i = 0; i < cases.size() && !testing::Test::HasFailure(); ++i) {
    const Json json = cases.at(i);
    const auto part = [&](const char* key) {
      return static_cast<uint32_t>(*json["toy"][key].as_int());
    };
    const Toy toy{.id = part("id"), .vocab = part("vocab"), .steps = part("steps")};
    BeamCase c = ReadBeamCase(json);
    c.prompt = IdsOf(json["prompt"]);
    const SamplingParams params = ProcessorsOf(json);
    BeamSearch search(c.beam, c.stop);
    const std::vector<Hypothesis> got = RunBeams(search, [&](const std::vector<TokenId>& output) {
      const std::vector<float> logits = toy.Row(c.prompt[0], output);
      Sampled sampled;
      Candidates({.logits = logits,
                  .params = &params,
                  .stop = &c.stop,
                  .prompt = c.prompt,
                  .output = output},
                 static_cast<size_t>(search.num_candidates()), scratch, sampled);
      return sampled.top;
    });
    ExpectHypotheses(c, got);
    ++counts["width " + std::to_string(c.beam.beam_width)];
    ++counts["early " + std::to_string(static_cast<int>(c.beam.early_stopping))];
    ++counts["ends " + std::to_string(c.stop.eos_token_ids.size())];
    const auto stopped = std::count_if(
        got.begin(), got.end(), [](const auto& h) { return h.finish == FinishReason::kStop; });
    counts["stopped"] += static_cast<int>(stopped);
    counts["full length"] += static_cast<int>(got.size()) - static_cast<int>(stopped);
    bool edited = false;
    SamplingParams plain{.temperature = 0};
    SamplingParams::VisitFields(params, [&](std::string_view field, auto value, auto, auto) {
      SamplingParams::VisitFields(plain, [&](std::string_view other, auto usual, auto, auto) {
        if (field == other && value != static_cast<decltype(value)>(usual)) edited = true;
      });
    });
    if (edited || !params.bad_words.empty() || !params.logit_bias.empty()) ++counts["edited"];
  }
  return counts;
}

// T03, and T01 by ExpectHypotheses.
TEST(BeamTransformers, T03_ToyModels) {
  std::map<std::string, int> counts = RunFile("beam.json");
  for (const char* kind :
       {"width 2", "width 3", "width 4", "width 5", "width 8", "early 0", "early 1", "early 2",
        "ends 0", "ends 1", "ends 2", "ends 3", "edited"}) {
    EXPECT_GT(counts[kind], 30) << kind;
  }
  EXPECT_GT(counts["width 1"], 10);
  EXPECT_GT(counts["stopped"], 1000);
  EXPECT_GT(counts["full length"], 1000);
}

TEST(BeamTransformers, DiverseGroups) {
  std::map<std::string, int> counts = RunFile("groups.json");
  for (const char* kind : {"width 4", "width 6", "width 8"}) {
    EXPECT_GT(counts[kind], 30) << kind;
  }
  EXPECT_GT(counts["stopped"], 100);
  EXPECT_GT(counts["full length"], 100);
}

}  // namespace
}  // namespace quire
