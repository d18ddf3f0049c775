// tests/smollm2_test.cc -- the default model, from its real 4-bit file, against transformers'
// greedy tokens in float32 on the dequantised weights (tests/reference/smollm2/golden.json).
//
// The rule of the golden file: tokens are equal up to the first step whose top-2 margin is below
// 0.01. The model comes from deploy/fetch-model.sh; QUIRE_SMOLLM2 names another place.
#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/support/golden_file.h"
#include "tests/support/model_harness.h"

namespace quire {
namespace {

constexpr double kMargin = 0.01;

std::string ModelPath() {
  const char* path = std::getenv("QUIRE_SMOLLM2");
  return path != nullptr ? path : QUIRE_TEST_SMOLLM2;
}

TEST(SmolLM2, GreedyTokensEqualTheGoldens) {
  auto harness = ModelHarness::Open(ModelPath(), {.num_threads = 2, .num_blocks = 256});
  ASSERT_TRUE(harness.ok()) << harness.status() << "; run deploy/fetch-model.sh";
  const Json golden = ReadGoldenJson(QUIRE_TEST_REFERENCE "/smollm2/golden.json");
  const Json prompts = golden["prompts"];
  ASSERT_EQ(prompts.size(), 12u);
  int compared = 0;
  int cut_short = 0;
  for (size_t p = 0; p < prompts.size(); ++p) {
    const Json item = prompts.at(p);
    std::vector<TokenId> ids;
    for (size_t i = 0; i < item["input_ids"].size(); ++i) {
      ids.push_back(static_cast<TokenId>(*item["input_ids"].at(i).as_int()));
    }
    auto seq = (*harness)->NewSequence(ids);
    const auto steps = static_cast<int32_t>(item["greedy"].size());
    (*harness)->Generate(*seq, steps);
    for (int32_t t = 0; t < steps; ++t) {
      const auto i = static_cast<size_t>(t);
      if (*item["margins"].at(i).as_double() < kMargin) {
        ++cut_short;
        break;
      }
      ASSERT_EQ(seq->tokens[ids.size() + i], *item["greedy"].at(i).as_int())
          << "prompt " << p << " step " << t;
      ++compared;
    }
  }
  EXPECT_LE(cut_short, 2);  // the golden file has two prompts with such a step
  EXPECT_GT(compared, 10 * 64);
}

}  // namespace
}  // namespace quire
