// Frequencies of every rope variant against transformers (tests/reference/rope), read through the
// same code that reads a checkpoint; what a prompt's length decides; and partial rotation down to
// the rotated rows. HARD-CASES S04, S05, S08.
#include "models/rope_config.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "kernels/ops.h"
#include "models/rope_reader.h"
#include "tests/weight_files.h"

namespace quire {
namespace {

constexpr double kTolerance = 1e-6;  // relative: tests/reference/rope

Json Goldens() {
  const auto json = Json::Parse(ReadBytes(ReferencePath("rope/rope.json")));
  CHECK(json.ok(), "{}", Message(json.status()));
  return *json;
}

Json ParseOrDie(const std::string& text) {
  const auto json = Json::Parse(text);
  CHECK(json.ok(), "{}: {}", text, Message(json.status()));
  return *json;
}

absl::StatusOr<RopeConfig> Read(const Json& json, int32_t head_dim, int32_t max_position) {
  return RopeFromJson(JsonFields(json, "config.json"), head_dim, max_position);
}

void ExpectGolden(const RopeFrequencies& got, const Json& golden) {
  const Json want = golden["inv_freq"];
  ASSERT_EQ(got.inv_freq.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    const double w = *want.at(i).as_double();
    EXPECT_NEAR(double{got.inv_freq[i]}, w, kTolerance * w) << i;
  }
  const double scaling = *golden["attention_scaling"].as_double();
  EXPECT_NEAR(double{got.attention_scaling}, scaling, kTolerance * scaling);
}

TEST(RopeConfigTest, S04EveryVariantEqualsTransformers) {
  const Json goldens = Goldens();
  std::map<RopeType, int> seen;
  for (size_t i = 0; i < goldens.size(); ++i) {
    const Json golden = goldens.at(i);
    const std::string name(*golden["name"].as_string());
    SCOPED_TRACE(fmt::format("{} length {}", name, golden["length"].Dump()));
    const auto head_dim = static_cast<int32_t>(*golden["head_dim"].as_int());
    const auto max_position = static_cast<int32_t>(*golden["max_position_embeddings"].as_int());
    const auto rope = Read(golden, head_dim, max_position);
    if (name == "proportional") {
      ExpectRefused(rope.status(), absl::StatusCode::kUnimplemented,
                    {"rope_parameters.rope_type=\"proportional\"", "llama3"});
      continue;
    }
    ASSERT_TRUE(rope.ok()) << rope.status();
    ++seen[rope->type];
    // Without a length the variant does not look at it: any will do.
    const std::optional<int64_t> length = golden["length"].as_int();
    EXPECT_EQ(length.has_value(), IsLengthDependent(*rope));
    ExpectGolden(ComputeRope(*rope, max_position, static_cast<int32_t>(length.value_or(12345))),
                 golden);
  }
  EXPECT_EQ(seen.size(), 6u) << "every type that we know was met";
}

TEST(RopeConfigTest, S04OldStyleKeysMeanTheSame) {
  struct Case {
    const char* old_style;
    const char* new_style;
  };
  const Case cases[] = {
      {R"({"rope_theta":500000.0})", R"({"rope_parameters":{"rope_theta":500000.0}})"},
      {R"({"rope_theta":500000.0,"rope_scaling":null})",
       R"({"rope_parameters":{"rope_type":"default","rope_theta":500000.0}})"},
      {R"({"rope_theta":20000.0,"rope_scaling":{"type":"linear","factor":4.0}})",
       R"({"rope_parameters":{"rope_type":"linear","factor":4.0,"rope_theta":20000.0}})"},
      {R"({"rope_scaling":{"type":"dynamic","factor":2.0}})",
       R"({"rope_parameters":{"rope_type":"dynamic","factor":2.0,"rope_theta":10000.0}})"},
      {R"({"rope_theta":1e6,"rope_scaling":{"rope_type":"yarn","factor":4.0,
           "original_max_position_embeddings":512}})",
       R"({"rope_parameters":{"rope_type":"yarn","factor":4.0,"rope_theta":1e6,
           "original_max_position_embeddings":512}})"},
      // Phi-3's place for the original length wins.
      {R"({"original_max_position_embeddings":256,"rope_scaling":{"type":"yarn","factor":8.0}})",
       R"({"rope_parameters":{"rope_type":"yarn","factor":8.0,
           "original_max_position_embeddings":256}})"},
      // rope_scaling replaces rope_parameters wholly, it does not add to it (S08).
      {R"({"rope_scaling":{"type":"linear","factor":2.0},
           "rope_parameters":{"rope_type":"llama3","factor":8.0,"rope_theta":5e5}})",
       R"({"rope_parameters":{"rope_type":"linear","factor":2.0}})"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.old_style);
    const auto a = Read(ParseOrDie(c.old_style), 64, 2048);
    const auto b = Read(ParseOrDie(c.new_style), 64, 2048);
    ASSERT_TRUE(a.ok()) << a.status();
    ASSERT_TRUE(b.ok()) << b.status();
    EXPECT_EQ(a->type, b->type);
    const RopeFrequencies fa = ComputeRope(*a, 2048, 5000);
    const RopeFrequencies fb = ComputeRope(*b, 2048, 5000);
    EXPECT_EQ(fa.inv_freq, fb.inv_freq);
    EXPECT_EQ(fa.attention_scaling, fb.attention_scaling);
  }
}

// Partial rotation from the configuration to the rotated row: pairs and frequencies are those of
// the rotated dimensions, not of the head; the others pass through, bit by bit.
TEST(RopeConfigTest, S05PartialRotaryRotatesTheFirstDimensions) {
  for (const auto& [dim, factor, rotary] :
       {std::tuple{80, 0.4, 32}, {64, 0.25, 16}, {64, 0.5, 32}, {64, 1.0, 64}}) {
    const int32_t head_dim = dim;  // for the lambda below
    const auto rope = Read(
        ParseOrDie(fmt::format(R"({{"rope_theta":10000.0,"partial_rotary_factor":{}}})", factor)),
        head_dim, 4096);
    ASSERT_TRUE(rope.ok()) << rope.status();
    ASSERT_EQ(rope->rotary_dim, rotary);
    const std::vector<float> freq = ComputeRope(*rope, 4096, 1).inv_freq;
    ASSERT_EQ(freq.size(), static_cast<size_t>(rotary / 2));
    for (int32_t i = 0; i < rotary / 2; ++i) {
      const double want = std::pow(10000.0, -2.0 * i / rotary);
      EXPECT_NEAR(freq[static_cast<size_t>(i)], want, kTolerance * want);
    }
    ThreadPool pool(1);
    for (const int32_t position : {0, 1, 700, 2355}) {
      std::vector<float> cos(freq.size());
      std::vector<float> sin(freq.size());
      kernels::RopeAngles(position, freq, 1.0f, cos.data(), sin.data());
      std::vector<float> x;
      for (int32_t d = 0; d < 2 * head_dim; ++d) {
        x.push_back(static_cast<float>((d * 37 + 11) % 41) / 20.0f - 1.0f);
      }
      std::vector<float> y = x;
      const kernels::Heads heads[] = {{.x = y.data(), .num_heads = 2}};
      kernels::ApplyRope(
          {.head_dim = head_dim, .rotary_dim = rotary, .cos = cos.data(), .sin = sin.data()}, heads,
          1, pool);
      for (int32_t h = 0; h < 2; ++h) {
        const auto at = [&](const std::vector<float>& v, int32_t d) {
          return v[static_cast<size_t>(h * head_dim + d)];
        };
        for (int32_t i = 0; i < rotary / 2; ++i) {
          const double angle = static_cast<float>(position) * freq[static_cast<size_t>(i)];
          const double a = at(x, i);
          const double b = at(x, i + rotary / 2);
          EXPECT_NEAR(at(y, i), a * std::cos(angle) - b * std::sin(angle), 1e-5);
          EXPECT_NEAR(at(y, i + rotary / 2), b * std::cos(angle) + a * std::sin(angle), 1e-5);
        }
        for (int32_t d = rotary; d < head_dim; ++d) EXPECT_EQ(at(y, d), at(x, d));
      }
    }
  }
}

TEST(RopeConfigTest, DefaultsOfAbsentKeys) {
  const auto rope = Read(ParseOrDie("{}"), 64, 2048);
  ASSERT_TRUE(rope.ok());
  EXPECT_EQ(rope->type, RopeType::kDefault);
  EXPECT_EQ(rope->theta, 10000.0f);
  EXPECT_EQ(rope->rotary_dim, 64);
  // yarn without a factor: the ratio of the lengths.
  const auto yarn = Read(ParseOrDie(R"({"rope_parameters":{"rope_type":"yarn","factor":null,
      "original_max_position_embeddings":512}})"),
                         64, 2048);
  ASSERT_TRUE(yarn.ok()) << yarn.status();
  EXPECT_EQ(yarn->factor, 4.0f);
}

TEST(RopeConfigTest, BadParametersAreNamed) {
  struct Case {
    const char* text;
    absl::StatusCode code;
    std::vector<std::string> parts;
  };
  constexpr auto kBad = absl::StatusCode::kInvalidArgument;
  constexpr auto kUnknown = absl::StatusCode::kUnimplemented;
  const Case cases[] = {
      {R"({"rope_theta":0})", kBad, {"rope_theta=0"}},
      {R"({"rope_theta":-1.0})", kBad, {"rope_theta=-1.0"}},
      {R"({"rope_theta":1e39})", kBad, {"rope_theta=", "finite"}},
      {R"({"rope_theta":"10000"})", kBad, {"rope_theta=\"10000\""}},
      {R"({"rope_parameters":{"rope_theta":0.0}})", kBad, {"rope_parameters.rope_theta=0.0"}},
      {R"({"rope_scaling":{"type":"su","factor":2}})",
       kUnknown,
       {"rope_scaling.type=\"su\"", "longrope"}},
      {R"({"rope_scaling":{"rope_type":7}})", kBad, {"rope_scaling.rope_type=7"}},
      {R"({"rope_scaling":"linear"})", kBad, {"rope_scaling=\"linear\"", "object"}},
      {R"({"rope_scaling":{"type":"linear"}})", kBad, {"rope_scaling.factor=(absent)"}},
      {R"({"rope_scaling":{"type":"linear","factor":0}})", kBad, {"rope_scaling.factor=0"}},
      {R"({"rope_scaling":{"type":"dynamic","factor":0.5}})", kBad, {"factor=0.5", "dynamic"}},
      {R"({"rope_scaling":{"type":"llama3","factor":8.0,"low_freq_factor":4.0,
           "high_freq_factor":1.0}})",
       kBad,
       {"high_freq_factor=1"}},
      {R"({"rope_scaling":{"type":"yarn","factor":2,"original_max_position_embeddings":0}})",
       kBad,
       {"rope_scaling.original_max_position_embeddings=0"}},
      {R"({"rope_scaling":{"type":"longrope","factor":2,"short_factor":[1],"long_factor":[1]}})",
       kBad,
       {"rope_scaling.short_factor=[1]", "32"}},
      {R"({"partial_rotary_factor":1.5})", kBad, {"partial_rotary_factor=1.5"}},
      {R"({"rope_parameters":{"full_attention":{"rope_theta":1e6}}})",
       kUnknown,
       {"rope_parameters.full_attention", "layer type"}},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.text);
    ExpectRefused(Read(ParseOrDie(c.text), 64, 2048).status(), c.code, c.parts);
  }
}

TEST(RopeConfigTest, S08DynamicEqualsPlainUpToTheLimit) {
  RopeConfig plain{.rotary_dim = 64};
  RopeConfig dynamic = plain;
  dynamic.type = RopeType::kDynamic;
  dynamic.factor = 2.0f;
  const std::vector<float> want = ComputeRope(plain, 64, 1).inv_freq;
  for (const int32_t length : {1, 40, 63, 64}) {
    EXPECT_EQ(ComputeRope(dynamic, 64, length).inv_freq, want) << length;
  }
  EXPECT_NE(ComputeRope(dynamic, 64, 65).inv_freq, want);
}

// GGUF brings llama3 scaling as divisors of the plain frequencies: both roads give the same.
TEST(RopeConfigTest, DivisorsReproduceLlama3) {
  const Json goldens = Goldens();
  int met = 0;
  for (size_t i = 0; i < goldens.size(); ++i) {
    const Json golden = goldens.at(i);
    if (*golden["rope_parameters"]["rope_type"].as_string() != "llama3") continue;
    ++met;
    RopeConfig rope{.theta = 500000.0f};
    rope.rotary_dim = static_cast<int32_t>(*golden["head_dim"].as_int());
    for (int32_t k = 0; k < rope.rotary_dim / 2; ++k) {
      const double plain = std::pow(500000.0, -2.0 * k / rope.rotary_dim);
      rope.freq_divisors.push_back(
          static_cast<float>(plain / *golden["inv_freq"].at(static_cast<size_t>(k)).as_double()));
    }
    ExpectGolden(ComputeRope(rope, 131072, 1), golden);
  }
  EXPECT_EQ(met, 2);
}

// The regime must tell apart exactly those prompts whose positions are rotated differently when
// position p has the length max(prompt, p + 1).
TEST(RopeConfigTest, RegimeFollowsFromTheFrequencies) {
  ModelConfig config{.max_position = 24};
  RopeConfig dynamic{.type = RopeType::kDynamic, .rotary_dim = 8, .factor = 3.0f};
  RopeConfig longrope{.type = RopeType::kLongrope,
                      .rotary_dim = 8,
                      .factor = 4.0f,
                      .original_max_position = 10,
                      .short_factor = {1, 1, 1, 1},
                      .long_factor = {1, 2, 3, 4}};
  for (const RopeConfig& rope : {dynamic, longrope}) {
    config.ropes = {rope};
    constexpr int32_t kLongest = 40;
    const auto rotation = [&](int32_t prompt) {
      std::vector<std::vector<float>> out;
      for (int32_t p = 0; p < kLongest; ++p) {
        out.push_back(ComputeRope(rope, config.max_position, std::max(prompt, p + 1)).inv_freq);
      }
      return out;
    };
    int equal = 0;
    int different = 0;
    for (int32_t a = 1; a < kLongest; ++a) {
      for (int32_t b = a + 1; b < kLongest; ++b) {
        const bool same = rotation(a) == rotation(b);
        ++(same ? equal : different);
        EXPECT_EQ(RopeRegime(config, a) == RopeRegime(config, b), same) << a << " " << b;
      }
    }
    EXPECT_GT(equal, 0);
    EXPECT_GT(different, 0);
  }
  config.ropes = {RopeConfig{.rotary_dim = 8}};
  EXPECT_EQ(RopeRegime(config, 1), "");
  EXPECT_EQ(RopeRegime(config, 1000), "");
}

}  // namespace
}  // namespace quire
