// Prompts that are cut by truncate_prompt_tokens: which tokens stay. Expected ids are those of the
// `tokenizers` package 0.23.3 with enable_truncation(max_length, direction) on the same files; of
// ids and of limits too small for what a tokenizer adds, they are counted by hand.
#include "server/convert_prompt.h"

#include <gtest/gtest.h>

#include <fstream>
#include <numeric>
#include <sstream>
#include <string>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace quire {
namespace {

ServedModel Model(const std::string& name) {
  std::ifstream file(QUIRE_TEST_REFERENCE "/tokenizers/" + name + "/tokenizer.json");
  std::stringstream text;
  text << file.rdbuf();
  auto tokenizer = Tokenizer::FromJson(text.str(), "");
  CHECK(tokenizer.ok(), "{}", Message(tokenizer.status()));
  ServedModel model;
  model.tokenizer = *std::move(tokenizer);
  model.vocab_size = model.tokenizer->vocab_size();
  model.max_model_len = 20;
  return model;
}

pb::GenerateRequest Cut(int32_t keep, pb::TruncationSide side = pb::TRUNCATION_SIDE_UNSPECIFIED) {
  pb::GenerateRequest r;
  r.set_truncate_prompt_tokens(keep);
  r.set_truncation_side(side);
  return r;
}

std::vector<TokenId> Prompt(const pb::GenerateRequest& r, const ServedModel& model) {
  std::vector<TokenId> prompt;
  absl::Status status = CheckPromptFields(r);
  if (status.ok()) status = ReadPrompt(r, model, prompt);
  EXPECT_TRUE(status.ok()) << status;
  return prompt;
}

struct Case {
  const char* tokenizer;
  pb::TruncationSide side;
  int32_t keep;
  std::vector<TokenId> ids;
};

TEST(TruncatedPrompt, WhatTheTokenizerAddsStays) {
  constexpr auto kLeft = pb::TRUNCATION_SIDE_LEFT, kRight = pb::TRUNCATION_SIDE_RIGHT;
  const std::vector<Case> cases = {
      {"llama2", pb::TRUNCATION_SIDE_UNSPECIFIED, 6, {1, 325, 540, 825, 314, 527}},
      {"llama2", kLeft, 3, {1, 314, 527}},
      {"llama2", kLeft, 2, {1, 527}},
      {"llama2", kLeft, 1, {1}},
      {"llama2", kRight, 6, {1, 458, 297, 646, 540, 538}},
      {"llama2", kRight, 2, {1, 458}},
      {"llama2", kRight, 1, {1}},
      {"llama2_metaspace", kLeft, 6, {1, 540, 825, 314, 527, 2}},
      {"llama2_metaspace", kLeft, 3, {1, 527, 2}},
      {"llama2_metaspace", kLeft, 2, {1, 2}},
      {"llama2_metaspace", kRight, 6, {1, 462, 297, 646, 540, 2}},
      {"llama2_metaspace", kRight, 3, {1, 462, 2}},
      {"llama2_metaspace", kLeft, 1, {2}},
      {"llama2_metaspace", kRight, 1, {1}},
      {"deepseek_v3", kLeft, 6, {800, 262, 580, 680, 64, 268}},
      {"deepseek_v3", kRight, 6, {800, 39, 68, 580, 286, 78}},
      {"deepseek_v3", kLeft, 100, {800, 39,  68, 580, 286, 78,  280, 261, 69,  84, 75,
                                   286, 269, 75, 67,  11,  220, 262, 580, 680, 64, 268}},
  };
  for (const Case& c : cases) {
    const ServedModel model = Model(c.tokenizer);
    pb::GenerateRequest r = Cut(c.keep, c.side);
    r.set_text("Hello wonderful world, hello again");
    EXPECT_EQ(Prompt(r, model), c.ids) << c.tokenizer << " side " << c.side << " keep " << c.keep;
  }
}

TEST(TruncatedPrompt, WithoutSpecialTokensAndOfIdsNothingIsSpared) {
  const ServedModel model = Model("llama2");
  pb::GenerateRequest r = Cut(3);
  r.set_text("Hello wonderful world, hello again");
  r.set_add_special_tokens(false);
  EXPECT_EQ(Prompt(r, model), (std::vector<TokenId>{825, 314, 527}));
  pb::GenerateRequest ids = Cut(2);
  for (const uint32_t id : {1, 5, 6, 7}) ids.mutable_token_ids()->add_ids(id);
  EXPECT_EQ(Prompt(ids, model), (std::vector<TokenId>{6, 7}));
  ids.set_truncation_side(pb::TRUNCATION_SIDE_RIGHT);
  EXPECT_EQ(Prompt(ids, model), (std::vector<TokenId>{1, 5}));
  ids.set_truncate_prompt_tokens(4);
  EXPECT_EQ(Prompt(ids, model).size(), 4u);
}

TEST(TruncatedPrompt, MinusOneLeavesRoomForTheNewTokens) {
  const ServedModel model = Model("llama2");  // max_model_len 20
  pb::GenerateRequest r = Cut(-1);
  for (uint32_t id = 0; id < 50; ++id) r.mutable_token_ids()->add_ids(id);
  const auto expect_last = [&](size_t count) {
    std::vector<TokenId> last(count);
    std::iota(last.begin(), last.end(), static_cast<TokenId>(50 - count));
    EXPECT_EQ(Prompt(r, model), last);
  };
  expect_last(19);
  r.mutable_stopping()->set_max_tokens(8);
  expect_last(12);
  r.mutable_stopping()->set_max_tokens(1000);  // refused later, by its own name
  expect_last(1);
}

TEST(TruncatedPrompt, RefusalsNameTheField) {
  for (const int32_t keep : {0, -2, INT32_MIN}) {
    const absl::Status status = CheckPromptFields(Cut(keep));
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(Message(status).find(fmt::format("truncate_prompt_tokens={}", keep)),
              std::string::npos);
  }
  pb::GenerateRequest r;
  r.set_truncation_side(pb::TRUNCATION_SIDE_RIGHT);
  EXPECT_NE(Message(CheckPromptFields(r)).find("needs truncate_prompt_tokens"), std::string::npos);
  EXPECT_NE(Message(CheckPromptFields(Cut(3, static_cast<pb::TruncationSide>(9))))
                .find("truncation_side=9"),
            std::string::npos);
}

}  // namespace
}  // namespace quire
