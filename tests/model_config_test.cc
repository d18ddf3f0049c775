// config.json and GGUF metadata to ModelConfig: defaults as in transformers, contradictions and
// absurd values refused by name (HARD-CASES M17, R04, S09), ids that end a sequence (Q04, M19).
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "models/checkpoint.h"
#include "models/registry.h"
#include "tests/allocation_meter.h"
#include "tests/weight_files.h"

namespace quire {
namespace {

using absl::StatusCode;

constexpr uint32_t kUint32 = 4;
constexpr uint32_t kFloat32 = 6;
constexpr uint32_t kString = 8;
constexpr uint32_t kArray = 9;

// Keys with their JSON text; "" takes a key out.
using Keys = std::map<std::string, std::string>;

std::string ConfigText(const Keys& changes = {}) {
  Keys keys = {{"architectures", R"(["LlamaForCausalLM"])"},
               {"hidden_size", "48"},
               {"intermediate_size", "64"},
               {"num_hidden_layers", "2"},
               {"num_attention_heads", "4"},
               {"num_key_value_heads", "2"},
               {"max_position_embeddings", "512"},
               {"vocab_size", "200"}};
  for (const auto& [key, value] : changes) keys[key] = value;
  std::string text;
  for (const auto& [key, value] : keys) {
    if (value.empty()) continue;
    text += fmt::format("{}\"{}\":{}", text.empty() ? "{" : ",", key, value);
  }
  return text + "}";
}

absl::StatusOr<ModelConfig> FromJson(const Keys& changes) {
  const auto json = Json::Parse(ConfigText(changes));
  CHECK(json.ok(), "{}", Message(json.status()));
  const auto architecture = FindArchitecture(*(*json)["architectures"].at(0).as_string());
  if (!architecture.ok()) return architecture.status();
  return (*architecture)->from_json(JsonFields(*json, "config.json"));
}

ModelConfig FromJsonOrDie(const Keys& changes) {
  const auto config = FromJson(changes);
  CHECK(config.ok(), "{}", Message(config.status()));
  return *config;
}

TEST(LlamaConfigTest, DefaultsOfTransformers) {
  // LlamaConfig() and MistralConfig() of transformers 5.16.1.
  const Keys nothing = {{"hidden_size", ""},         {"intermediate_size", ""},
                        {"num_hidden_layers", ""},   {"num_attention_heads", ""},
                        {"num_key_value_heads", ""}, {"max_position_embeddings", ""},
                        {"vocab_size", ""}};
  const ModelConfig llama = FromJsonOrDie(nothing);
  EXPECT_EQ(llama.hidden_dim, 4096);
  EXPECT_EQ(llama.vocab_size, 32000);
  EXPECT_EQ(llama.max_position, 2048);
  EXPECT_EQ(llama.norm_eps, 1e-6f);
  EXPECT_FALSE(llama.tie_embeddings);
  ASSERT_EQ(llama.layers.size(), 32u);
  EXPECT_EQ(llama.layers[31].num_heads, 32);
  EXPECT_EQ(llama.layers[31].num_kv_heads, 32);
  EXPECT_EQ(llama.layers[31].head_dim, 128);
  EXPECT_EQ(llama.layers[31].mlp_dim, 11008);
  EXPECT_EQ(llama.layers[31].attention, AttentionKind::kFull);
  EXPECT_EQ(llama.layers[31].activation, kernels::Activation::kSilu);
  EXPECT_FALSE(llama.layers[31].attention_bias);
  EXPECT_FALSE(llama.layers[31].mlp_bias);
  ASSERT_EQ(llama.ropes.size(), 1u);
  EXPECT_EQ(llama.ropes[0].theta, 10000.0f);
  EXPECT_EQ(llama.ropes[0].rotary_dim, 128);
  EXPECT_FALSE(llama.ropes[0].interleaved);

  Keys mistral_keys = nothing;
  mistral_keys["architectures"] = R"(["MistralForCausalLM"])";
  const ModelConfig mistral = FromJsonOrDie(mistral_keys);
  EXPECT_EQ(mistral.max_position, 131072);
  EXPECT_EQ(mistral.layers[0].num_kv_heads, 8);
  EXPECT_EQ(mistral.layers[0].mlp_dim, 14336);
  EXPECT_EQ(mistral.layers[0].attention, AttentionKind::kSliding);
  EXPECT_EQ(mistral.layers[0].window, 4096) << "absent is not null";
}

TEST(LlamaConfigTest, MistralWindow) {
  const std::string mistral = R"(["MistralForCausalLM"])";
  const ModelConfig none = FromJsonOrDie({{"architectures", mistral}, {"sliding_window", "null"}});
  EXPECT_EQ(none.layers[0].attention, AttentionKind::kFull);
  const ModelConfig some = FromJsonOrDie({{"architectures", mistral}, {"sliding_window", "16"}});
  EXPECT_EQ(some.layers[1].attention, AttentionKind::kSliding);
  EXPECT_EQ(some.layers[1].window, 16);
  ExpectRefused(FromJson({{"architectures", mistral}, {"sliding_window", "0"}}).status(),
                StatusCode::kInvalidArgument, {"sliding_window=0"});
  // A key that only mistral has means nothing to llama.
  EXPECT_EQ(FromJsonOrDie({{"sliding_window", "16"}}).layers[0].attention, AttentionKind::kFull);
}

TEST(LlamaConfigTest, ExplicitHeadDimAndNulls) {
  EXPECT_EQ(FromJsonOrDie({}).layers[0].head_dim, 12);
  const ModelConfig wide = FromJsonOrDie({{"head_dim", "16"}});
  EXPECT_EQ(wide.layers[0].head_dim, 16);
  EXPECT_EQ(wide.layers[0].softmax_scale, 0.25f);
  EXPECT_EQ(wide.ropes[0].rotary_dim, 16);
  EXPECT_EQ(FromJsonOrDie({{"head_dim", "null"}}).layers[0].head_dim, 12);
  EXPECT_EQ(FromJsonOrDie({{"num_key_value_heads", "null"}}).layers[0].num_kv_heads, 4);
  EXPECT_EQ(FromJsonOrDie({{"num_key_value_heads", ""}}).layers[0].num_kv_heads, 4);
  // 48 is no multiple of 5, but the head is given.
  EXPECT_EQ(
      FromJsonOrDie({{"num_attention_heads", "5"}, {"num_key_value_heads", "1"}, {"head_dim", "8"}})
          .layers[0]
          .num_heads,
      5);
}

TEST(LlamaConfigTest, FlagsAndActivations) {
  const ModelConfig config = FromJsonOrDie({{"attention_bias", "true"},
                                            {"mlp_bias", "true"},
                                            {"tie_word_embeddings", "true"},
                                            {"rms_norm_eps", "1e-5"},
                                            {"hidden_act", "\"gelu_pytorch_tanh\""}});
  EXPECT_TRUE(config.layers[0].attention_bias);
  EXPECT_TRUE(config.layers[0].mlp_bias);
  EXPECT_TRUE(config.tie_embeddings);
  EXPECT_EQ(config.norm_eps, 1e-5f);
  EXPECT_EQ(config.layers[0].activation, kernels::Activation::kGeluTanh);
  EXPECT_EQ(FromJsonOrDie({{"hidden_act", "\"gelu\""}}).layers[0].activation,
            kernels::Activation::kGelu);
  EXPECT_EQ(FromJsonOrDie({{"hidden_act", "\"relu\""}}).layers[0].activation,
            kernels::Activation::kRelu);
  ExpectRefused(FromJson({{"hidden_act", "\"relu6\""}}).status(), StatusCode::kUnimplemented,
                {"hidden_act=\"relu6\"", "silu", "gelu_pytorch_tanh"});
}

TEST(LlamaConfigTest, M17AbsurdValuesAreNamed) {
  struct Case {
    const char* key;
    const char* value;
  };
  const Case cases[] = {{"num_attention_heads", "0"},
                        {"num_attention_heads", "-1"},
                        {"num_attention_heads", "4.5"},
                        {"num_attention_heads", "\"4\""},
                        {"num_attention_heads", "2147483648"},
                        {"num_key_value_heads", "0"},
                        {"num_key_value_heads", "3"},
                        {"num_key_value_heads", "8"},
                        {"num_hidden_layers", "1000000000"},
                        {"num_hidden_layers", "0"},
                        {"hidden_size", "0"},
                        {"hidden_size", "50"},
                        {"hidden_size", "9223372036854775807"},
                        {"intermediate_size", "0"},
                        {"head_dim", "0"},
                        {"head_dim", "15"},
                        {"head_dim", "16777216"},
                        {"vocab_size", "0"},
                        {"vocab_size", "1e300"},
                        {"max_position_embeddings", "0"},
                        {"max_position_embeddings", "-5"},
                        {"rms_norm_eps", "0"},
                        {"rms_norm_eps", "-0.001"},
                        {"rms_norm_eps", "1e-60"},
                        {"rope_theta", "0"},
                        {"tie_word_embeddings", "1"},
                        {"attention_bias", "\"yes\""}};
  for (const Case& c : cases) {
    SCOPED_TRACE(fmt::format("{}={}", c.key, c.value));
    const AllocationMeter meter;
    const absl::Status status = FromJson({{c.key, c.value}}).status();
    EXPECT_LT(meter.bytes(), size_t{1} << 20);
    ExpectRefused(status, StatusCode::kInvalidArgument, {"config.json", fmt::format("{}=", c.key)});
  }
}

TEST(LlamaConfigTest, R04HeadCountsThatDoNotDivide) {
  for (const auto& [heads, kv] : std::vector<std::pair<int, int>>{{3, 2}, {33, 2}, {5, 3}}) {
    ExpectRefused(
        FromJson({{"num_attention_heads", fmt::format("{}", heads)},
                  {"num_key_value_heads", fmt::format("{}", kv)},
                  {"head_dim", "16"}})
            .status(),
        StatusCode::kInvalidArgument,
        {fmt::format("num_key_value_heads={}", kv), fmt::format("num_attention_heads={}", heads)});
  }
  for (const auto& [heads, kv] :
       std::vector<std::pair<int, int>>{{6, 2}, {7, 7}, {7, 1}, {12, 4}, {14, 2}, {48, 16}}) {
    const ModelConfig config = FromJsonOrDie({{"num_attention_heads", fmt::format("{}", heads)},
                                              {"num_key_value_heads", fmt::format("{}", kv)},
                                              {"head_dim", "16"}});
    EXPECT_EQ(config.layers[0].num_heads, heads);
    EXPECT_EQ(config.layers[0].num_kv_heads, kv);
  }
}

TEST(LlamaConfigTest, S09ThetaInEveryStyle) {
  EXPECT_EQ(FromJsonOrDie({{"rope_theta", "500000.0"}}).ropes[0].theta, 500000.0f);
  EXPECT_EQ(FromJsonOrDie({{"rope_parameters", R"({"rope_theta":500000.0})"}}).ropes[0].theta,
            500000.0f);
  EXPECT_EQ(
      FromJsonOrDie({{"rope_theta", "500000"}, {"rope_scaling", R"({"type":"linear","factor":2})"}})
          .ropes[0]
          .theta,
      500000.0f);
  EXPECT_EQ(FromJsonOrDie({}).ropes[0].theta, 10000.0f);
  ExpectRefused(FromJson({{"rope_scaling", R"({"rope_type":"ntk","factor":2})"}}).status(),
                StatusCode::kUnimplemented, {"rope_scaling.rope_type=\"ntk\"", "dynamic"});
  ExpectRefused(FromJson({{"partial_rotary_factor", "0.5"}}).status(), StatusCode::kUnimplemented,
                {"partial_rotary_factor"});
}

TEST(RegistryTest, UnknownArchitectures) {
  ExpectRefused(FindArchitecture("FooForCausalLM").status(), StatusCode::kUnimplemented,
                {"FooForCausalLM", "LlamaForCausalLM (llama in GGUF)", "MistralForCausalLM"});
  EXPECT_FALSE(FindArchitecture("").ok()) << "an empty name is not a row without a GGUF name";
}

// Directories: config.json, generation_config.json and the weights of tests/reference/models/llama.
class DirectoryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    dir_.Write("model.safetensors", ReadBytes(ReferencePath("models/llama/model.safetensors")));
  }
  absl::StatusOr<LoadedCheckpoint> Open(const Keys& changes, const std::string& generation = "") {
    dir_.Write("config.json", ConfigText(changes));
    std::filesystem::remove(dir_.File("generation_config.json"));
    if (!generation.empty()) dir_.Write("generation_config.json", generation);
    return OpenCheckpoint(dir_.path());
  }
  std::vector<TokenId> Eos(const std::string& config, const std::string& generation) {
    const auto checkpoint = Open({{"eos_token_id", config}}, generation);
    CHECK(checkpoint.ok(), "{}", Message(checkpoint.status()));
    return checkpoint->config.eos_token_ids;
  }
  TempDir dir_;
};

TEST_F(DirectoryTest, Q04EndOfSequenceIdsOfBothFiles) {
  using ::testing::ElementsAre;
  using ::testing::IsEmpty;
  EXPECT_THAT(Eos("2", ""), ElementsAre(2));
  EXPECT_THAT(Eos("[2,7]", ""), ElementsAre(2, 7));
  EXPECT_THAT(Eos("", R"({"eos_token_id":[9,11]})"), ElementsAre(9, 11));
  EXPECT_THAT(Eos("", R"({"eos_token_id":9})"), ElementsAre(9));
  EXPECT_THAT(Eos("2", R"({"eos_token_id":[2,9]})"), ElementsAre(2, 9));
  EXPECT_THAT(Eos("[3,2]", R"({"eos_token_id":9})"), ElementsAre(3, 2, 9));
  EXPECT_THAT(Eos("null", R"({"temperature":0.5})"), IsEmpty());
  EXPECT_THAT(Eos("", ""), IsEmpty());
}

TEST_F(DirectoryTest, M19IdsOutsideTheVocabulary) {
  for (const char* id : {"200", "4294967295", "-1", "[2,200]", "\"2\"", "2.5"}) {
    ExpectRefused(Open({{"eos_token_id", id}}).status(), StatusCode::kInvalidArgument,
                  {"config.json", "eos_token_id=", "[0, 200)"});
    ExpectRefused(Open({}, fmt::format(R"({{"eos_token_id":{}}})", id)).status(),
                  StatusCode::kInvalidArgument, {"generation_config.json", "eos_token_id="});
  }
  ExpectRefused(Open({{"bos_token_id", "200"}}).status(), StatusCode::kInvalidArgument,
                {"bos_token_id=200"});
  const auto old = Open({{"pad_token_id", "-1"}, {"bos_token_id", "1"}});
  ASSERT_TRUE(old.ok()) << old.status();
  EXPECT_EQ(old->config.pad_token_id, -1) << "what old checkpoints write for none";
  EXPECT_EQ(old->config.bos_token_id, 1);
}

TEST_F(DirectoryTest, GenerationConfigIsKept) {
  const auto checkpoint = Open({}, R"({"temperature": 0.5, "top_k": 20})");
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const auto json = Json::Parse(checkpoint->config.default_sampling_json);
  ASSERT_TRUE(json.ok());
  EXPECT_EQ((*json)["temperature"].as_double(), 0.5);
  EXPECT_EQ((*json)["top_k"].as_int(), 20);
  EXPECT_EQ(Open({})->config.default_sampling_json, "");
}

TEST_F(DirectoryTest, UnreadableConfigs) {
  ExpectRefused(Open({{"architectures", R"(["FooForCausalLM"])"}}).status(),
                StatusCode::kUnimplemented, {"config.json", "FooForCausalLM", "LlamaForCausalLM"});
  ExpectRefused(Open({{"architectures", ""}}).status(), StatusCode::kInvalidArgument,
                {"architectures=(absent)"});
  ExpectRefused(Open({{"quantization_config", R"({"quant_method":"gptq"})"}}).status(),
                StatusCode::kUnimplemented, {"quantization_config", "gptq"});
  ExpectRefused(Open({}, "[]").status(), StatusCode::kInvalidArgument, {"generation_config.json"});
  for (const std::string& text :
       {std::string(), std::string("[]"), std::string("{\"rope_theta\":NaN}"),
        std::string(100000, '['), std::string("{")}) {
    dir_.Write("config.json", text);
    ExpectRefused(OpenCheckpoint(dir_.path()).status(), StatusCode::kInvalidArgument,
                  {"config.json"});
  }
  std::filesystem::remove(dir_.File("config.json"));
  ExpectRefused(OpenCheckpoint(dir_.path()).status(), StatusCode::kNotFound, {"config.json"});
}

TEST_F(DirectoryTest, M17HugeConfigIsNotRead) {
  dir_.Write("config.json", std::string(100, '['));
  std::filesystem::resize_file(dir_.File("config.json"), 200 << 20);
  const AllocationMeter meter;
  ExpectRefused(OpenCheckpoint(dir_.path()).status(), StatusCode::kInvalidArgument,
                {"config.json", "209715200", "16777216"});
  EXPECT_LT(meter.bytes(), size_t{1} << 20);
}

// A llama in GGUF of one layer: hidden 32, 4 heads of 8, vocabulary 16; entries replace or add.
class GgufConfigTest : public ::testing::Test {
 protected:
  struct Entry {
    uint32_t type;
    std::string value;
  };
  static Entry U(uint32_t v) { return {kUint32, Bytes().U32(v).text()}; }
  static Entry F(float v) { return {kFloat32, Bytes().Put(v).text()}; }
  static Entry S(const std::string& v) { return {kString, Bytes().Str(v).text()}; }
  static Entry Us(const std::vector<uint32_t>& v) {
    Bytes b;
    b.U32(kUint32).U64(v.size());
    for (const uint32_t x : v) b.U32(x);
    return {kArray, b.text()};
  }
  static constexpr uint32_t kAbsent = 99;

  absl::StatusOr<LoadedCheckpoint> Open(
      const std::map<std::string, Entry>& changes,
      const std::map<std::string, std::vector<float>>& more = {}) {
    std::map<std::string, Entry> entries = {
        {"general.architecture", S("llama")},
        {"llama.block_count", U(2)},
        {"llama.context_length", U(256)},
        {"llama.embedding_length", U(32)},
        {"llama.feed_forward_length", U(64)},
        {"llama.attention.head_count", U(4)},
        {"llama.attention.layer_norm_rms_epsilon", F(1e-5f)},
    };
    for (const auto& [key, entry] : changes) entries[key] = entry;
    GgufParts parts;
    for (const auto& [key, entry] : entries) {
      if (entry.type != kAbsent) parts.Entry(key, entry.type, entry.value);
    }
    Bytes data;
    parts.Tensor("token_embd.weight", {32, 16}, 0, 0);
    data.Raw(std::string(32 * 16 * 4, '\0'));
    for (const auto& [name, values] : more) {
      parts.Tensor(name, {values.size()}, 0, data.text().size());
      for (const float v : values) data.Put(v);
      data.PadTo(32);
    }
    parts.data = data.text();
    return OpenCheckpoint(dir_.Write("m.gguf", parts.Build()));
  }
  ModelConfig OpenOrDie(const std::map<std::string, Entry>& changes,
                        const std::map<std::string, std::vector<float>>& more = {}) {
    const auto checkpoint = Open(changes, more);
    CHECK(checkpoint.ok(), "{}", Message(checkpoint.status()));
    return checkpoint->config;
  }
  TempDir dir_;
};

TEST_F(GgufConfigTest, Defaults) {
  const ModelConfig config = OpenOrDie({});
  EXPECT_EQ(config.vocab_size, 16) << "from the tensor";
  EXPECT_EQ(config.hidden_dim, 32);
  EXPECT_EQ(config.max_position, 256);
  EXPECT_EQ(config.norm_eps, 1e-5f);
  EXPECT_TRUE(config.tie_embeddings) << "no output.weight";
  EXPECT_TRUE(config.gguf_tensor_names);
  ASSERT_EQ(config.layers.size(), 2u);
  EXPECT_EQ(config.layers[0].num_kv_heads, 4) << "as many as heads";
  EXPECT_EQ(config.layers[0].head_dim, 8);
  EXPECT_EQ(config.layers[0].softmax_scale, static_cast<float>(1 / std::sqrt(8.0)));
  EXPECT_EQ(config.ropes[0].theta, 10000.0f) << "S09: without rope.freq_base";
  EXPECT_EQ(config.ropes[0].rotary_dim, 8);
  EXPECT_TRUE(config.ropes[0].interleaved);
  EXPECT_EQ(config.ropes[0].type, RopeType::kDefault);
  EXPECT_EQ(config.name, "m.gguf");
  EXPECT_EQ(OpenOrDie({{"general.name", S("Tiny")}}).name, "Tiny");
}

TEST_F(GgufConfigTest, PerLayerArrays) {
  const ModelConfig config = OpenOrDie({{"llama.attention.head_count", Us({4, 2})},
                                        {"llama.attention.head_count_kv", Us({2, 1})},
                                        {"llama.feed_forward_length", Us({64, 96})}});
  EXPECT_EQ(config.layers[0].num_heads, 4);
  EXPECT_EQ(config.layers[1].num_heads, 2);
  EXPECT_EQ(config.layers[1].num_kv_heads, 1);
  EXPECT_EQ(config.layers[1].mlp_dim, 96);
  ExpectRefused(Open({{"llama.attention.head_count", Us({4, 4, 4})}}).status(),
                StatusCode::kInvalidArgument, {"llama.attention.head_count", "2 elements"});
  ExpectRefused(Open({{"llama.attention.head_count", Us({4, 0})}}).status(),
                StatusCode::kInvalidArgument, {"llama.attention.head_count[1]=0"});
}

TEST_F(GgufConfigTest, RopeScaling) {
  EXPECT_EQ(OpenOrDie({{"llama.rope.freq_base", F(500000.0f)}}).ropes[0].theta, 500000.0f);
  EXPECT_EQ(OpenOrDie({{"llama.rope.dimension_count", U(4)}}).ropes[0].rotary_dim, 4);
  const ModelConfig linear =
      OpenOrDie({{"llama.rope.scaling.type", S("linear")}, {"llama.rope.scaling.factor", F(4.0f)}});
  EXPECT_EQ(linear.ropes[0].type, RopeType::kLinear);
  EXPECT_EQ(linear.ropes[0].factor, 4.0f);
  EXPECT_EQ(OpenOrDie({{"llama.rope.scale_linear", F(2.0f)}}).ropes[0].type, RopeType::kLinear);
  EXPECT_EQ(
      OpenOrDie({{"llama.rope.scaling.type", S("none")}, {"llama.rope.scaling.factor", F(4.0f)}})
          .ropes[0]
          .type,
      RopeType::kDefault);
  const ModelConfig yarn = OpenOrDie({{"llama.rope.scaling.type", S("yarn")},
                                      {"llama.rope.scaling.factor", F(4.0f)},
                                      {"llama.rope.scaling.original_context_length", U(64)}});
  EXPECT_EQ(yarn.ropes[0].type, RopeType::kYarn);
  EXPECT_EQ(yarn.ropes[0].original_max_position, 64);
  ExpectRefused(Open({{"llama.rope.scaling.type", S("ntk")}}).status(), StatusCode::kUnimplemented,
                {"llama.rope.scaling.type=ntk", "yarn"});
  ExpectRefused(Open({{"llama.rope.scaling.type", S("longrope")}}).status(),
                StatusCode::kInvalidArgument, {"rope_factors_short.weight"});
  const ModelConfig longrope = OpenOrDie(
      {{"llama.rope.scaling.type", S("longrope")},
       {"llama.rope.scaling.original_context_length", U(64)}},
      {{"rope_factors_short.weight", {1, 1, 1, 1}}, {"rope_factors_long.weight", {1, 2, 3, 4}}});
  EXPECT_THAT(longrope.ropes[0].long_factor, ::testing::ElementsAre(1, 2, 3, 4));

  const ModelConfig divided = OpenOrDie({}, {{"rope_freqs.weight", {1, 1, 2, 8}}});
  EXPECT_THAT(divided.ropes[0].freq_divisors, ::testing::ElementsAre(1, 1, 2, 8));
  ExpectRefused(Open({}, {{"rope_freqs.weight", {1, 1, 2}}}).status(), StatusCode::kInvalidArgument,
                {"rope_freqs.weight", "[4] F32"});
  ExpectRefused(Open({}, {{"rope_freqs.weight", {1, 0, 2, 3}}}).status(),
                StatusCode::kInvalidArgument, {"rope_freqs.weight[1]=0"});
}

TEST_F(GgufConfigTest, M17AbsurdValuesAreNamed) {
  const float nan = std::nanf("");
  const std::vector<std::pair<std::string, Entry>> cases = {
      {"llama.block_count", U(0)},
      {"llama.block_count", U(1000000000)},
      {"llama.block_count", {kAbsent, ""}},
      {"llama.block_count", F(2.0f)},
      {"llama.context_length", U(0)},
      {"llama.embedding_length", U(0)},
      {"llama.embedding_length", U(33)},
      {"llama.feed_forward_length", U(0)},
      {"llama.attention.head_count", U(0)},
      {"llama.attention.head_count", U(0xffffffffu)},
      {"llama.attention.head_count", S("4")},
      {"llama.attention.head_count_kv", U(3)},
      {"llama.attention.head_count_kv", U(0)},
      {"llama.attention.key_length", U(7)},
      {"llama.attention.value_length", U(16)},
      {"llama.attention.layer_norm_rms_epsilon", F(0.0f)},
      {"llama.attention.layer_norm_rms_epsilon", F(nan)},
      {"llama.rope.freq_base", F(0.0f)},
      {"llama.rope.freq_base", F(nan)},
      {"llama.rope.freq_base", F(INFINITY)},
      {"llama.rope.dimension_count", U(0)},
      {"llama.rope.dimension_count", U(16)},
      {"llama.vocab_size", U(15)},
      {"llama.vocab_size", U(17)},
      {"tokenizer.ggml.eos_token_id", U(16)},
      {"tokenizer.ggml.eos_token_id", U(0xffffffffu)},
      {"tokenizer.ggml.eot_token_id", {5, Bytes().Put(int32_t{-1}).text()}},
      {"tokenizer.ggml.bos_token_id", U(16)},
      {"tokenizer.ggml.padding_token_id", U(99)},
  };
  for (const auto& [key, entry] : cases) {
    SCOPED_TRACE(key);
    const absl::Status status = Open({{key, entry}}).status();
    const bool absent = entry.type == kAbsent;
    ExpectRefused(status, absent ? StatusCode::kNotFound : StatusCode::kInvalidArgument,
                  {"m.gguf", key});
  }
  const auto odd = Open({{"llama.rope.dimension_count", U(5)}});
  ExpectRefused(odd.status(), StatusCode::kInvalidArgument, {"rotary dimension 5"});
}

TEST_F(GgufConfigTest, RelativesAndStrangersAreRefused) {
  ExpectRefused(Open({{"llama.expert_count", U(8)}}).status(), StatusCode::kUnimplemented,
                {"llama.expert_count=8"});
  ExpectRefused(Open({{"llama.logit_scale", F(8.0f)}}).status(), StatusCode::kUnimplemented,
                {"llama.logit_scale=8"});
  ExpectRefused(Open({{"general.architecture", S("gemma9")}}).status(), StatusCode::kUnimplemented,
                {"m.gguf", "gemma9", "llama in GGUF"});
  ExpectRefused(Open({{"general.architecture", {kAbsent, ""}}}).status(), StatusCode::kNotFound,
                {"general.architecture"});
}

TEST_F(GgufConfigTest, Q04EndOfSequenceKeys) {
  const ModelConfig config = OpenOrDie({{"tokenizer.ggml.eos_token_id", U(2)},
                                        {"tokenizer.ggml.eot_token_id", U(5)},
                                        {"tokenizer.ggml.eom_token_id", U(2)},
                                        {"tokenizer.ggml.bos_token_id", U(1)},
                                        {"tokenizer.ggml.padding_token_id", U(3)}});
  EXPECT_THAT(config.eos_token_ids, ::testing::ElementsAre(2, 5));
  EXPECT_EQ(config.bos_token_id, 1);
  EXPECT_EQ(config.pad_token_id, 3);
  EXPECT_EQ(OpenOrDie({}).bos_token_id, -1);
}

TEST_F(GgufConfigTest, M19MoreTokensThanRows) {
  Bytes tokens;
  tokens.U32(kString).U64(17);
  for (int i = 0; i < 17; ++i) tokens.Str("t");
  ExpectRefused(Open({{"tokenizer.ggml.tokens", {kArray, tokens.text()}}}).status(),
                StatusCode::kInvalidArgument, {"tokenizer.ggml.tokens", "17", "16 rows"});
}

}  // namespace
}  // namespace quire
