// Kernels by name and by kind of layer; a user's kernel, written in C, as good as a built-in one;
// what a library may have wrong. The libraries are tests/plugins/plain_attention.c.
#include "kernels/attention_library.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "kernels/attention_choice.h"
#include "kernels/attention_features.h"
#include "tests/support/attention_rig.h"
#include "tests/support/golden_file.h"
#include "tests/support/model_harness.h"

namespace quire::kernels {
namespace {

std::string Plugin(const std::string& name) {
  return std::string(QUIRE_TEST_PLUGINS) + "/" + name + ".so";
}

const AttentionBackend& Plain() {
  const auto loaded = LoadAttentionLibrary(Plugin("plain"));
  CHECK(loaded.ok(), "{}", Message(loaded.status()));
  return **loaded;
}

TEST(AttentionLibrary, IsFoundByTheNameItGives) {
  const AttentionBackend& plain = Plain();
  EXPECT_EQ(plain.name, "plain");
  EXPECT_EQ(plain.summary, "one row at a time in double");
  EXPECT_TRUE(plain.batch_invariant);
  EXPECT_EQ(*FindAttention("plain"), &plain);
  EXPECT_EQ(*FindAttention("paged|plain"), &plain);
  const size_t count = AttentionBackends().size();
  EXPECT_EQ(&Plain(), &plain);  // the same file again
  EXPECT_EQ(AttentionBackends().size(), count);
}

struct Case {
  const char* name;
  std::vector<std::pair<int32_t, int32_t>> seqs;  // queries of this step, keys before them
  AttentionShape shape;
  bool sinks = false;
  bool alibi = false;
};

TEST(AttentionLibrary, ConformsToFloat64) {
  AttentionShape window = Shape(4, 2, 64);
  window.window = 17;
  AttentionShape chunk = Shape(4, 2, 64);
  chunk.chunk = 16;
  AttentionShape softcap = Shape(2, 2, 64);
  softcap.logit_softcap = 5;
  const Case cases[] = {
      {"decode", {{1, 0}, {1, 130}, {1, 4}, {1, 63}, {1, 64}}, Shape(9, 3, 64)},
      {"mixed", {{70, 0}, {1, 170}, {9, 3}}, Shape(8, 2, 96)},
      {"window", {{30, 40}, {1, 90}}, window},
      {"chunk", {{30, 40}, {1, 63}, {1, 64}}, chunk},
      {"softcap", {{20, 6}}, softcap},
      {"latent", {{5, 29}, {1, 70}}, Shape(4, 4, 192, 128)},
      {"sinks", {{11, 29}, {1, 20}}, Shape(8, 2, 64), true},
      {"alibi", {{11, 29}}, Shape(4, 2, 32), false, true},
  };
  ThreadPool one(1);
  ThreadPool three(3);
  for (Case c : cases) {
    Extras extras;
    for (int32_t h = 0; h < c.shape.num_heads; ++h) {
      if (c.sinks) extras.sinks.push_back(0.7f * static_cast<float>(h) - 2.0f);
      if (c.alibi) extras.slopes.push_back(std::exp2(-2.0f * static_cast<float>(h + 1)));
    }
    for (const DType type : {DType::kF32, DType::kBF16, DType::kF16}) {
      c.shape.kv_dtype = type;
      std::vector<DenseSeq> seqs;
      std::vector<SeqRun> runs;
      std::vector<OracleResult> want;
      for (const auto& [queries, before] : c.seqs) {
        const auto i = static_cast<int32_t>(seqs.size());
        seqs.push_back(RandomSeq(c.shape, queries + before, static_cast<uint32_t>(100 + i)));
        runs.push_back({.seq = i, .num_q = queries, .num_k = queries + before});
        want.push_back(Dense(c.shape, seqs.back(), queries, queries + before, extras));
      }
      for (const int32_t page_size : {8, 128}) {
        ASSERT_TRUE(Plain().supports(c.shape, page_size).ok());
        const AttentionRig rig(c.shape, seqs, {.page_size = page_size});
        const AttentionResult alone = rig.Run(Plain(), runs, one, extras);
        EXPECT_LE(MaxError(alone, want), 2e-6) << c.name << " " << NameOf(type);
        EXPECT_TRUE(SameBits(alone.out, rig.Run(Plain(), runs, three, extras).out)) << c.name;
      }
    }
  }
}

TEST(AttentionLibrary, RowsThatSeeNothingAreZero) {
  const AttentionShape shape = Shape(4, 2, 32);
  const AttentionRig rig(shape, {RandomSeq(shape, 3, 1)}, {});
  ThreadPool pool(1);
  const AttentionResult got = rig.Run(Plain(), {{.seq = 0, .num_q = 5, .num_k = 3}}, pool);
  for (size_t i = 0; i < 2u * 4 * 32; ++i) EXPECT_EQ(got.out[i], 0.0f);
  for (size_t i = 0; i < 2u * 4; ++i) EXPECT_EQ(got.lse[i], -INFINITY);
}

TEST(AttentionLibrary, WhatItRefusesIsNamedWithWhatWouldWork) {
  AttentionShape shape = Shape(4, 2, 64);
  shape.bidirectional = true;
  const absl::Status status = CheckSupport(Plain(), shape, 16);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_NE(Message(status).find("bidirectional must be false"), std::string::npos) << status;
  const std::string text = Message(status);
  const std::string others = text.substr(text.find("; attention="));
  EXPECT_NE(others.find("flash"), std::string::npos) << text;
  EXPECT_NE(others.find("eager"), std::string::npos) << text;
  EXPECT_EQ(others.find("plain"), std::string::npos) << text;
  EXPECT_TRUE(CheckSupport(Plain(), Shape(4, 2, 64), 16).ok());
  // Nobody has pages of 12.
  EXPECT_EQ(Message(CheckSupport(Plain(), Shape(4, 2, 64), 12)).find("would work"),
            std::string::npos);
}

TEST(AttentionLibrary, FeaturesAreWhatItSupports) {
  const AttentionFeatures f = FeaturesOf(Plain());
  EXPECT_FALSE(f.bidirectional);
  EXPECT_TRUE(f.window && f.chunk && f.softcap && f.any_ratio);
  EXPECT_FALSE(f.all_head_dims);  // 512 is too much
  EXPECT_FALSE(f.latent_dims);
  EXPECT_EQ(f.head_dims.back(), 256);
  EXPECT_EQ(f.page_sizes, (std::vector<int32_t>{8, 16, 32, 64, 128}));
  const AttentionFeatures eager = FeaturesOf(**FindAttention("eager"));
  EXPECT_TRUE(eager.bidirectional && eager.all_head_dims && eager.latent_dims);
}

TEST(AttentionLibrary, MistakesAreNamed) {
  const std::string text_file = testing::TempDir() + "/no_library.so";
  std::ofstream(text_file) << "not a library\n";
  const size_t count = AttentionBackends().size() + (FindAttention("plain").ok() ? 0 : 1);
  Plain();
  const struct {
    std::string path;
    std::vector<std::string> parts;
  } cases[] = {
      {"/no/such/file.so", {"is not a file"}},
      {QUIRE_TEST_PLUGINS, {"is not a file"}},
      {text_file, {"can't be loaded"}},
      {Plugin("bad_version"), {"version 2", "takes 1", "kernel_plugin.h"}},
      {Plugin("bad_size"), {"size=8", "sizeof(QuireAttentionKernel)"}},
      {Plugin("bad_null"), {"workspace_bytes, run", "null"}},
      {Plugin("bad_symbol"), {"no symbol quire_attention_kernel"}},
      {Plugin("bad_nothing"), {"quire_attention_kernel() returns null"}},
      {Plugin("bad_taken"), {"name flash", "another kernel"}},
      {Plugin("bad_name"), {"\"my kernel\"", "letters"}},
  };
  for (const auto& c : cases) {
    const auto loaded = LoadAttentionLibrary(c.path);
    ASSERT_FALSE(loaded.ok()) << c.path;
    EXPECT_EQ(loaded.status().code(), absl::StatusCode::kInvalidArgument) << c.path;
    const std::string text = Message(loaded.status());
    EXPECT_NE(text.find("attention_library=" + c.path), std::string::npos) << text;
    for (const std::string& part : c.parts) EXPECT_NE(text.find(part), std::string::npos) << text;
  }
  EXPECT_EQ(AttentionBackends().size(), count);
}

TEST(AttentionChoice, OneNameOrOneForEachKind) {
  const struct {
    const char *text, *full, *sliding, *canonical;
  } cases[] = {
      {"flash", "flash", "flash", "flash"},
      {"paged|eager", "eager", "eager", "eager"},
      {"full=eager,sliding=flash", "eager", "flash", "full=eager,sliding=flash"},
      {"sliding=eager", "flash", "eager", "full=flash,sliding=eager"},
      {"full=eager", "eager", "flash", "full=eager,sliding=flash"},
      {"sliding=eager,full=paged|eager", "eager", "eager", "eager"},
  };
  for (const auto& c : cases) {
    const auto choice = ParseAttention(c.text);
    ASSERT_TRUE(choice.ok()) << choice.status();
    EXPECT_EQ(choice->full->name, c.full) << c.text;
    EXPECT_EQ(choice->sliding->name, c.sliding) << c.text;
    EXPECT_EQ(choice->ToString(), c.canonical) << c.text;
  }
}

TEST(AttentionChoice, MistakesAreNamed) {
  const struct {
    const char *text, *part;
  } cases[] = {
      {"flesh", "flesh"},
      {"", "must be one of flash"},
      {"full=flesh", "attention=flesh must be one of flash"},
      {"whole=flash", "full=<name>,sliding=<name>, not \"whole=flash\""},
      {"full=flash,eager", "not \"eager\""},
      {"full=flash,full=eager", "names full twice"},
      {"full=", "must be one of flash"},
  };
  for (const auto& c : cases) {
    const auto choice = ParseAttention(c.text);
    ASSERT_FALSE(choice.ok()) << c.text;
    EXPECT_EQ(choice.status().code(), absl::StatusCode::kInvalidArgument) << c.text;
    EXPECT_NE(Message(choice.status()).find(c.part), std::string::npos) << choice.status();
  }
}

// A model with both kinds of layer gives the reference's tokens and logits by each choice.
class Choices : public testing::TestWithParam<const char*> {};

TEST_P(Choices, GiveTheReferenceOutputs) {
  Plain();
  const std::string dir = std::string(QUIRE_TEST_REFERENCE) + "/models/gemma3";
  const Json json = ReadGoldenJson(dir + "/golden.json");
  const GoldenFile tensors(dir + "/golden.safetensors");
  const auto tolerance = static_cast<float>(*json["tolerance_abs"].as_double());
  const auto opened = ModelHarness::Open(dir, {.attention = GetParam()});
  ASSERT_TRUE(opened.ok()) << opened.status();
  ModelHarness& harness = **opened;
  const Json prompts = json["prompts"];
  for (size_t p = 0; p < prompts.size(); ++p) {
    const auto ids = [&](const char* key) {
      std::vector<TokenId> out;
      const Json list = prompts.at(p)[key];
      for (size_t i = 0; i < list.size(); ++i) {
        out.push_back(static_cast<TokenId>(*list.at(i).as_int()));
      }
      return out;
    };
    const std::vector<TokenId> want = ids("greedy");
    auto seq = harness.NewSequence(ids("input_ids"));
    const auto logits = harness.Generate(*seq, static_cast<int32_t>(want.size()));
    EXPECT_EQ(
        std::vector<TokenId>(seq->tokens.begin() + seq->num_prompt_tokens(), seq->tokens.end()),
        want);
    const std::vector<float> last = tensors.Floats("prompt" + std::to_string(p) + ".last_logits");
    ASSERT_EQ(last.size(), logits[0].size());
    for (size_t i = 0; i < last.size(); ++i) ASSERT_NEAR(logits[0][i], last[i], tolerance);
  }
}

INSTANTIATE_TEST_SUITE_P(All, Choices,
                         testing::Values("full=flash,sliding=eager", "full=eager,sliding=flash",
                                         "plain", "full=flash,sliding=plain"));

}  // namespace
}  // namespace quire::kernels
