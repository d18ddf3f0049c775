// Which sampling parameters are refused, and that the message tells what to change.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "sampling/params.h"

namespace quire {
namespace {

constexpr int32_t kVocab = 64;
constexpr float kInf = std::numeric_limits<float>::infinity();
const float kNan = std::nanf("");

absl::Status Check(const std::function<void(SamplingParams&, StopConditions&)>& change) {
  SamplingParams params;
  StopConditions stop{.max_tokens = 16};
  change(params, stop);
  return Validate(params, stop, kVocab);
}

// Expects a refusal whose message has every part.
void ExpectRefused(const absl::Status& status, const std::vector<std::string>& parts) {
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  for (const std::string& part : parts) {
    EXPECT_NE(Message(status).find(part), std::string::npos) << part << " in: " << status;
  }
}

TEST(Validate, Defaults) {
  EXPECT_TRUE(Check([](SamplingParams&, StopConditions&) {}).ok());
}

TEST(Validate, EveryFieldAtAndBeyondItsBounds) {
  SamplingParams lowest, highest;
  int fields = 0;
  SamplingParams::VisitFields(lowest, [](std::string_view, auto& v, auto min, auto) { v = min; });
  SamplingParams::VisitFields(highest, [](std::string_view, auto& v, auto, auto max) { v = max; });
  EXPECT_TRUE(Validate(lowest, {.max_tokens = 1}, kVocab).ok());
  EXPECT_TRUE(Validate(highest, {.max_tokens = INT32_MAX}, kVocab).ok());

  std::vector<std::string> names;
  SamplingParams::VisitFields(
      lowest, [&](std::string_view name, auto, auto, auto) { names.emplace_back(name); });
  for (const std::string& wanted : names) {
    for (int way = 0; way < 6; ++way) {
      SamplingParams params;
      bool changed = false;
      SamplingParams::VisitFields(params, [&](std::string_view name, auto& v, auto min, auto max) {
        using T = std::decay_t<decltype(v)>;
        if (name != wanted) return;
        changed = true;
        if constexpr (std::is_same_v<T, float>) {
          const float bad[] = {
              std::nextafter(min, -kInf), std::nextafter(max, kInf), kInf, -kInf, kNan, -kNan};
          v = bad[way];
        } else {
          if (way == 0)
            v = min - 1;
          else if (way == 1 && max < INT32_MAX)
            v = max + 1;
          else if (way == 2)
            v = INT32_MIN;
          else
            changed = false;
        }
      });
      if (!changed) continue;
      ++fields;
      ExpectRefused(Validate(params, {.max_tokens = 16}, kVocab), {wanted + "=", "[", "]"});
    }
  }
  EXPECT_EQ(names.size(), 13u);
  EXPECT_GE(fields, 8 * 6 + 5 * 2);
}

TEST(Validate, MessageNamesFieldValueRangeAndDefault) {
  EXPECT_EQ(Message(Check([](auto& p, auto&) { p.temperature = kNan; })),
            "temperature=nan is outside [0, 1000000000]; the default is 1");
  EXPECT_EQ(Message(Check([](auto& p, auto&) { p.top_k = -2; })),
            "top_k=-2 is outside [-1, 2147483647]; the default is 0");
}

// H02: the temperatures of the case. Zero and tiny ones are greedy.
TEST(Validate, Temperatures) {
  for (float t : {0.0f, -0.0f, 1e-45f, 1e-12f, 1e-6f}) {
    EXPECT_TRUE(Check([&](auto& p, auto&) { p.temperature = t; }).ok()) << t;
    EXPECT_TRUE((SamplingParams{.temperature = t}.greedy())) << t;
  }
  for (float t : {1e-5f, 1e-4f, 1e-3f, 0.01f, 2.0f, 100.0f, 1e6f}) {
    EXPECT_TRUE(Check([&](auto& p, auto&) { p.temperature = t; }).ok()) << t;
    EXPECT_FALSE((SamplingParams{.temperature = t}.greedy())) << t;
  }
  for (float t : {1e30f, kInf, -kInf, kNan, -1.0f, -1e-45f}) {
    ExpectRefused(Check([&](auto& p, auto&) { p.temperature = t; }), {"temperature="});
  }
}

// H11: the values of the case that are integers and floats at all.
TEST(Validate, TopKTopPMinP) {
  for (int32_t k : {-1, 0, 1, kVocab, kVocab + 1, 9999999}) {
    EXPECT_TRUE(Check([&](auto& p, auto&) { p.top_k = k; }).ok()) << k;
  }
  ExpectRefused(Check([](auto& p, auto&) { p.top_k = -2; }), {"top_k=-2"});
  for (float v : {0.0f, 1e-9f, 1.0f}) EXPECT_TRUE(Check([&](auto& p, auto&) { p.top_p = v; }).ok());
  for (float v : {1.0000001f, -0.1f}) {
    ExpectRefused(Check([&](auto& p, auto&) { p.top_p = v; }), {"top_p="});
  }
  for (float v : {0.0f, 1.0f}) EXPECT_TRUE(Check([&](auto& p, auto&) { p.min_p = v; }).ok());
  ExpectRefused(Check([](auto& p, auto&) { p.min_p = 1.1f; }), {"min_p=1.1"});
}

// H01
TEST(Validate, LogitBias) {
  EXPECT_TRUE(Check([](auto& p, auto&) { p.logit_bias = {{kVocab - 1, 100.0f}}; }).ok());
  EXPECT_TRUE(Check([](auto& p, auto&) { p.logit_bias = {{0, -100.0f}, {1, 0.0f}}; }).ok());
  for (TokenId id : {kVocab, -1, INT32_MAX, INT32_MIN}) {
    ExpectRefused(Check([&](auto& p, auto&) {
                    p.logit_bias = {{3, 1.0f}, {id, 1.0f}};
                  }),
                  {"logit_bias key " + std::to_string(id), "[0, 63]"});
  }
  for (float bias : {101.0f, -100.00001f, kNan, kInf, -kInf, 3e38f}) {
    ExpectRefused(Check([&](auto& p, auto&) {
                    p.logit_bias = {{3, 1.0f}, {7, bias}};
                  }),
                  {"logit_bias[7]=", "[-100, 100]"});
  }
  ExpectRefused(Check([](auto& p, auto&) {
                  p.logit_bias = {{3, 1.0f}, {5, 1.0f}, {3, 2.0f}};
                }),
                {"logit_bias key 3 is given twice"});
  // 100,000 entries can't be distinct ids of this vocabulary.
  ExpectRefused(Check([](auto& p, auto&) {
                  for (int i = 0; i < 100000; ++i) p.logit_bias.emplace_back(i % kVocab, 1.0f);
                }),
                {"is given twice"});
  // In a vocabulary that has them they are fine.
  SamplingParams params;
  for (int i = 0; i < 100000; ++i) params.logit_bias.emplace_back(i, 1.0f);
  EXPECT_TRUE(Validate(params, {.max_tokens = 1}, 100000).ok());
}

TEST(Validate, TokenLists) {
  EXPECT_TRUE(Check([](auto& p, auto& s) {
                p.allowed_token_ids = {0, 63, 63};
                p.bad_words = {{5}, {1, 2, 3}};
                s.stop_token_ids = {0, 63};
              }).ok());
  ExpectRefused(Check([](auto& p, auto&) {
                  p.allowed_token_ids = {1, 64};
                }),
                {"allowed_token_ids[1]=64", "[0, 63]"});
  ExpectRefused(Check([](auto& p, auto&) {
                  p.bad_words = {{1}, {}};
                }),
                {"bad_words[1] has 0 tokens", "1 to"});
  ExpectRefused(Check([](auto& p, auto&) {
                  p.bad_words = {{1}, {2, -1}};
                }),
                {"bad_words[1][1]=-1", "[0, 63]"});
  ExpectRefused(Check([](auto& p, auto&) { p.bad_words.emplace_back(257, 1); }),
                {"bad_words[0] has 257 tokens", "256"});
  ExpectRefused(Check([](auto& p, auto&) { p.bad_words.assign(1025, {1}); }),
                {"bad_words has 1025", "1024"});
  ExpectRefused(Check([](auto& p, auto&) {
                  p.allowed_token_ids = {4, 5};
                  p.bad_words = {{5}, {4}, {1, 2}};
                }),
                {"allowed_token_ids has 2 ids", "bad_words"});
  ExpectRefused(Check([](auto&, auto& s) {
                  s.stop_token_ids = {1, 2, 64};
                }),
                {"stop_token_ids[2]=64", "[0, 63]"});
  ExpectRefused(Check([](auto&, auto& s) { s.stop_token_ids.assign(1025, 1); }),
                {"stop_token_ids has 1025", "1024"});
}

TEST(Validate, TokenCounts) {
  EXPECT_TRUE(Check([](auto& p, auto&) { p.min_tokens = 16; }).ok());
  ExpectRefused(Check([](auto& p, auto&) { p.min_tokens = 17; }),
                {"min_tokens=17", "max_tokens=16"});
  for (int32_t n : {0, -1, INT32_MIN}) {
    ExpectRefused(Check([&](auto&, auto& s) { s.max_tokens = n; }),
                  {"max_tokens=" + std::to_string(n), "at least 1"});
  }
}

// H08
TEST(Validate, NumLogprobs) {
  for (int32_t k : {-1, 0, 1, 5, 20}) {
    EXPECT_TRUE(Check([&](auto& p, auto&) { p.num_logprobs = k; }).ok()) << k;
  }
  for (int32_t k : {-2, 21, kVocab, kVocab + 1, 2000000000}) {
    ExpectRefused(Check([&](auto& p, auto&) { p.num_logprobs = k; }), {"num_logprobs=", "20"});
  }
}

TEST(Validate, GreedyBranchesAreAllowed) {
  EXPECT_TRUE(Check([](auto& p, auto&) {
                p.temperature = 0;
                p.n = 4;
              }).ok());
}

}  // namespace
}  // namespace quire
