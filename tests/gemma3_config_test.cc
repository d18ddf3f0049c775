// tests/gemma3_config_test.cc -- Gemma 3's configuration from config.json in the old and the new
// style, defaults as in transformers, and from GGUF, whose weights give the same bits as the
// checkpoint that golden_models_test holds against transformers. HARD-CASES K01, S09.
#include <gtest/gtest.h>

#include <cmath>

#include "models/checkpoint.h"
#include "models/registry.h"
#include "tests/support/edited_model.h"
#include "tests/support/model_harness.h"

namespace quire {
namespace {

using absl::StatusCode;

absl::StatusOr<ModelConfig> Read(const ConfigEdits& keys) {
  ConfigEdits all = keys;
  all.try_emplace("architectures", R"(["Gemma3ForCausalLM"])");
  const auto json = Json::Parse(EditedConfig("{}", all));
  CHECK(json.ok(), "{}", Message(json.status()));
  const auto architecture = FindArchitecture("Gemma3ForCausalLM");
  CHECK(architecture.ok(), "{}", Message(architecture.status()));
  return (*architecture)->from_json(JsonFields(*json, "config.json"));
}

ModelConfig ReadOrDie(const ConfigEdits& keys) {
  const auto config = Read(keys);
  CHECK(config.ok(), "{}", Message(config.status()));
  return *config;
}

// One letter a layer: s sliding, f full.
std::string Pattern(const ModelConfig& config) {
  std::string out;
  for (const LayerConfig& l : config.layers) {
    const bool sliding = l.attention == AttentionKind::kSliding;
    EXPECT_EQ(l.rope, sliding ? 1 : 0);
    EXPECT_EQ(l.window > 0, sliding);
    out += sliding ? 's' : 'f';
  }
  return out;
}

TEST(Gemma3Config, DefaultsOfTransformers) {
  const ModelConfig c = ReadOrDie({});
  EXPECT_EQ(c.hidden_dim, 2304);
  EXPECT_EQ(c.vocab_size, 262208);
  EXPECT_EQ(c.max_position, 131072);
  EXPECT_EQ(c.norm_eps, 1e-6f);
  EXPECT_EQ(c.norm_offset, 1.0f);
  EXPECT_EQ(c.embedding_scale, 48.0f);  // sqrt(2304)
  EXPECT_EQ(c.logit_softcap, 0.0f);
  EXPECT_TRUE(c.tie_embeddings);
  EXPECT_EQ(Pattern(c), "sssssfsssssfsssssfsssssfss");
  EXPECT_EQ(c.layers[0].window, 4096);
  EXPECT_EQ(c.layers[0].num_heads, 8);
  EXPECT_EQ(c.layers[0].num_kv_heads, 4);
  EXPECT_EQ(c.layers[0].head_dim, 256);
  EXPECT_EQ(c.layers[0].mlp_dim, 9216);
  EXPECT_EQ(c.layers[0].softmax_scale, 0.0625f);  // 256^-0.5
  EXPECT_EQ(c.layers[0].activation, kernels::Activation::kGeluTanh);
  EXPECT_FALSE(c.layers[0].attention_bias);
  ASSERT_EQ(c.ropes.size(), 2u);
  EXPECT_EQ(c.ropes[0].theta, 1e6f);
  EXPECT_EQ(c.ropes[0].type, RopeType::kDefault);
  EXPECT_EQ(c.ropes[1].theta, 10000.0f);
  EXPECT_EQ(c.ropes[1].rotary_dim, 256);
}

TEST(Gemma3Config, K01_LayerTypes) {
  const std::string four = "4";
  EXPECT_EQ(Pattern(ReadOrDie({{"num_hidden_layers", four}, {"sliding_window_pattern", "2"}})),
            "sfsf");
  EXPECT_EQ(Pattern(ReadOrDie({{"num_hidden_layers", four}, {"sliding_window_pattern", "1"}})),
            "ffff");
  EXPECT_EQ(Pattern(ReadOrDie({{"num_hidden_layers", four}})), "ssss") << "every sixth is full";
  // Names decide; the number is then no longer read.
  const std::string types =
      R"(["sliding_attention","full_attention","full_attention","sliding_attention"])";
  EXPECT_EQ(
      Pattern(ReadOrDie(
          {{"num_hidden_layers", four}, {"layer_types", types}, {"sliding_window_pattern", "1"}})),
      "sffs");
}

TEST(Gemma3Config, S09_RopesInEveryStyle) {
  struct Case {
    ConfigEdits keys;
    float full, sliding;
    RopeType type;
    float factor;
  };
  const std::string linear = R"({"rope_type":"linear","factor":8.0})";
  const Case cases[] = {
      {{{"rope_theta", "5e5"}}, 5e5f, 1e4f, RopeType::kDefault, 1},
      {{{"rope_local_base_freq", "2e4"}}, 1e6f, 2e4f, RopeType::kDefault, 1},
      // Scaling, as the old style has it, is the full layers' alone.
      {{{"rope_scaling", linear}}, 1e6f, 1e4f, RopeType::kLinear, 8},
      {{{"rope_scaling", R"({"type":"linear","factor":4})"}, {"rope_parameters", "null"}},
       1e6f,
       1e4f,
       RopeType::kLinear,
       4},
      {{{"rope_parameters",
         R"({"full_attention":{"rope_type":"linear","factor":8.0,"rope_theta":3e6},
             "sliding_attention":{"rope_type":"default","rope_theta":7e3}})"}},
       3e6f,
       7e3f,
       RopeType::kLinear,
       8},
      // What the new style leaves out has the old style's key, then the default.
      {{{"rope_parameters", R"({"full_attention":{"rope_type":"linear","factor":2.0}})"},
        {"rope_local_base_freq", "9e3"}},
       1e6f,
       9e3f,
       RopeType::kLinear,
       2},
  };
  for (const Case& c : cases) {
    const ModelConfig config = ReadOrDie(c.keys);
    SCOPED_TRACE(c.keys.begin()->second);
    EXPECT_EQ(config.ropes[0].theta, c.full);
    EXPECT_EQ(config.ropes[0].type, c.type);
    EXPECT_EQ(config.ropes[0].factor, c.factor);
    EXPECT_EQ(config.ropes[1].theta, c.sliding);
    EXPECT_EQ(config.ropes[1].type, RopeType::kDefault);
  }
}

TEST(Gemma3Config, ScalesAndCaps) {
  const ModelConfig c = ReadOrDie({{"hidden_size", "1152"},
                                   {"query_pre_attn_scalar", "168"},
                                   {"attn_logit_softcapping", "50.0"},
                                   {"final_logit_softcapping", "30.0"},
                                   {"attention_bias", "true"},
                                   {"tie_word_embeddings", "false"}});
  EXPECT_EQ(c.embedding_scale, static_cast<float>(std::sqrt(1152.0)));
  EXPECT_EQ(c.layers[5].softmax_scale, static_cast<float>(1 / std::sqrt(168.0)));
  EXPECT_EQ(c.layers[5].score_softcap, 50.0f);
  EXPECT_EQ(c.logit_softcap, 30.0f);
  EXPECT_TRUE(c.layers[5].attention_bias);
  EXPECT_FALSE(c.tie_embeddings);
}

TEST(Gemma3Config, RefusesByName) {
  struct Case {
    ConfigEdits keys;
    StatusCode code;
    std::vector<std::string> words;
  };
  const Case cases[] = {
      {{{"use_bidirectional_attention", "true"}},
       StatusCode::kUnimplemented,
       {"use_bidirectional_attention=true"}},
      {{{"layer_types", R"(["full_attention"])"}},
       StatusCode::kInvalidArgument,
       {"layer_types", "26 strings"}},
      {{{"num_hidden_layers", "1"}, {"layer_types", R"(["chunked_attention"])"}},
       StatusCode::kUnimplemented,
       {"chunked_attention", "element 0", "sliding_attention"}},
      {{{"num_hidden_layers", "1"}, {"layer_types", "[3]"}},
       StatusCode::kInvalidArgument,
       {"layer_types", "element 0"}},
      {{{"sliding_window", "null"}},
       StatusCode::kInvalidArgument,
       {"sliding_window=null", "layer 0"}},
      {{{"sliding_window", "0"}}, StatusCode::kInvalidArgument, {"sliding_window=0"}},
      {{{"sliding_window_pattern", "0"}},
       StatusCode::kInvalidArgument,
       {"sliding_window_pattern=0"}},
      {{{"query_pre_attn_scalar", "0"}}, StatusCode::kInvalidArgument, {"query_pre_attn_scalar=0"}},
      {{{"final_logit_softcapping", "-1.0"}},
       StatusCode::kInvalidArgument,
       {"final_logit_softcapping=-1"}},
      {{{"rope_parameters", R"({"rope_type":"linear","factor":8.0})"}},
       StatusCode::kInvalidArgument,
       {"rope_parameters.", "layer type"}},
      {{{"rope_parameters", R"({"full_attention":{"rope_type":"odd"}})"}},
       StatusCode::kUnimplemented,
       {"rope_parameters.full_attention.rope_type=\"odd\"", "linear"}},
      {{{"rope_parameters", R"({"full_attention":{"rope_theta":1e6}})"},
        {"rope_scaling", R"({"rope_type":"linear","factor":8.0})"}},
       StatusCode::kInvalidArgument,
       {"rope_scaling", "rope_parameters"}},
      {{{"hidden_activation", "\"tanh\""}},
       StatusCode::kUnimplemented,
       {"hidden_activation=\"tanh\"", "gelu_pytorch_tanh"}},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.keys.begin()->first);
    ExpectRefused(Read(c.keys).status(), c.code, c.words);
  }
}

// The reference checkpoint as llama.cpp's converter would write it: other names, norms plus one.
class Gemma3Gguf : public ::testing::Test {
 protected:
  static constexpr uint32_t kUint32 = 4;
  static constexpr uint32_t kFloat32 = 6;
  static constexpr uint32_t kBool = 7;
  static constexpr uint32_t kString = 8;
  static constexpr uint32_t kArray = 9;
  struct Entry {
    uint32_t type;
    std::string value;
  };
  static Entry U(uint32_t v) { return {kUint32, Bytes().U32(v).text()}; }
  static Entry F(float v) { return {kFloat32, Bytes().Put(v).text()}; }
  static Entry S(const std::string& v) { return {kString, Bytes().Str(v).text()}; }
  static Entry Flags(const std::vector<bool>& v) {
    Bytes b;
    b.U32(kBool).U64(v.size());
    for (const bool x : v) b.Put(static_cast<uint8_t>(x));
    return {kArray, b.text()};
  }

  static std::string GgufName(std::string name) {
    const std::vector<std::pair<std::string, std::string>> words = {
        {"model.layers.", "blk."},
        {"model.embed_tokens.", "token_embd."},
        {"model.norm.", "output_norm."},
        {"input_layernorm", "attn_norm"},
        {"post_attention_layernorm", "post_attention_norm"},
        {"pre_feedforward_layernorm", "ffn_norm"},
        {"post_feedforward_layernorm", "post_ffw_norm"},
        {"self_attn.q_norm", "attn_q_norm"},
        {"self_attn.k_norm", "attn_k_norm"},
        {"self_attn.q_proj", "attn_q"},
        {"self_attn.k_proj", "attn_k"},
        {"self_attn.v_proj", "attn_v"},
        {"self_attn.o_proj", "attn_output"},
        {"mlp.gate_proj", "ffn_gate"},
        {"mlp.up_proj", "ffn_up"},
        {"mlp.down_proj", "ffn_down"}};
    for (const auto& [from, to] : words) {
      const size_t at = name.find(from);
      if (at != std::string::npos) name.replace(at, from.size(), to);
    }
    return name;
  }

  std::string Write(const std::map<std::string, Entry>& changes = {}) {
    std::map<std::string, Entry> entries = {
        {"general.architecture", S("gemma3")},
        {"gemma3.block_count", U(6)},
        {"gemma3.context_length", U(512)},
        {"gemma3.embedding_length", U(40)},
        {"gemma3.feed_forward_length", U(64)},
        {"gemma3.attention.head_count", U(4)},
        {"gemma3.attention.head_count_kv", U(2)},
        {"gemma3.attention.key_length", U(16)},
        {"gemma3.attention.value_length", U(16)},
        {"gemma3.attention.layer_norm_rms_epsilon", F(1e-6f)},
        {"gemma3.attention.sliding_window", U(12)},
        {"gemma3.attention.scale", F(static_cast<float>(1 / std::sqrt(20.0)))},
        {"gemma3.rope.freq_base", F(1e6f)},
        {"gemma3.rope.scaling.type", S("linear")},
        {"gemma3.rope.scaling.factor", F(8.0f)},
    };
    for (const auto& [key, entry] : changes) entries[key] = entry;
    GgufParts parts;
    for (const auto& [key, entry] : entries) {
      if (!entry.value.empty()) parts.Entry(key, entry.type, entry.value);
    }
    const GoldenFile file(ReferencePath("models/gemma3/model.safetensors"));
    Bytes data;
    for (const std::string& name : file.Names()) {
      const GoldenTensor& tensor = file.Get(name);
      std::vector<uint64_t> dims(tensor.shape.rbegin(), tensor.shape.rend());
      parts.Tensor(GgufName(name), dims, 0, data.text().size());
      const bool norm = name.find("norm") != std::string::npos;
      for (const float v : tensor.floats()) data.Put(norm ? v + 1.0f : v);
      data.PadTo(32);
    }
    parts.data = data.text();
    return dir_.Write("gemma3.gguf", parts.Build());
  }
  ModelConfig Config(const std::map<std::string, Entry>& changes) {
    const auto checkpoint = OpenCheckpoint(Write(changes));
    CHECK(checkpoint.ok(), "{}", Message(checkpoint.status()));
    return checkpoint->config;
  }
  TempDir dir_;
};

TEST_F(Gemma3Gguf, SameBitsAsTheCheckpoint) {
  const std::vector<TokenId> prompt = {25, 73,  72, 34,  104, 137, 18, 63, 65,  16,
                                       72, 112, 5,  151, 124, 158, 46, 65, 166, 182};
  std::vector<std::vector<std::vector<float>>> logits;
  for (const std::string& path : {ReferencePath("models/gemma3"), Write()}) {
    auto opened = ModelHarness::Open(path, {});
    ASSERT_TRUE(opened.ok()) << opened.status();
    auto seq = (*opened)->NewSequence(prompt);
    logits.push_back((*opened)->Generate(*seq, 30));
  }
  EXPECT_TRUE(logits[0] == logits[1]);
}

TEST_F(Gemma3Gguf, WhatTheFileDoesNotSay) {
  const ModelConfig c = Config({{"gemma3.attention.scale", {}},
                                {"gemma3.rope.scaling.type", {}},
                                {"gemma3.rope.scaling.factor", {}}});
  EXPECT_EQ(Pattern(c), "sssssf");
  EXPECT_EQ(c.norm_offset, 0.0f) << "the weights have it";
  EXPECT_EQ(c.embedding_scale, static_cast<float>(std::sqrt(40.0)));
  EXPECT_EQ(c.layers[0].softmax_scale, 0.25f) << "16^-0.5";
  EXPECT_EQ(c.layers[0].activation, kernels::Activation::kGeluTanh);
  EXPECT_EQ(c.ropes[0].type, RopeType::kDefault);
  EXPECT_EQ(c.ropes[1].theta, 10000.0f);
  EXPECT_FALSE(c.ropes[0].interleaved);
  EXPECT_EQ(c.logit_softcap, 0.0f);
}

// The largest model's scale is by hidden size over heads (168 there), which no key says.
TEST_F(Gemma3Gguf, SixtyTwoLayersScaleByAnotherWidth) {
  const std::map<std::string, Entry> keys = {{"gemma3.block_count", U(62)},
                                             {"gemma3.attention.scale", {}}};
  EXPECT_EQ(Config(keys).layers[61].softmax_scale, static_cast<float>(1 / std::sqrt(10.0)));
}

TEST_F(Gemma3Gguf, WhatItMaySay) {
  EXPECT_EQ(Pattern(Config({{"gemma3.attention.sliding_window_pattern", U(3)}})), "ssfssf");
  EXPECT_EQ(Pattern(Config({{"gemma3.attention.sliding_window_pattern", U(0)}})), "ssssss");
  EXPECT_EQ(Pattern(Config({{"gemma3.attention.sliding_window_pattern",
                             Flags({true, false, true, true, false, false})}})),
            "sfssff");
  EXPECT_EQ(Pattern(Config({{"gemma3.attention.sliding_window", {}}})), "ffffff");
  EXPECT_EQ(Config({{"gemma3.rope.freq_base_swa", F(2e4f)}}).ropes[1].theta, 2e4f);
  EXPECT_EQ(Config({{"gemma3.final_logit_softcapping", F(30.0f)}}).logit_softcap, 30.0f);
  ExpectRefused(
      OpenCheckpoint(Write({{"gemma3.attention.sliding_window_pattern", Flags({true, false})}}))
          .status(),
      StatusCode::kInvalidArgument, {"sliding_window_pattern", "6 elements"});
}

}  // namespace
}  // namespace quire
