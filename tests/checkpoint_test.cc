// Whole checkpoints: reference directories, the same weights as GGUF, and BindWeights against files
// that do not hold what the configuration says (HARD-CASES M13, M17).
#include "models/checkpoint.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <map>

#include "models/model_weights.h"
#include "models/weights/safetensors.h"
#include "tests/weight_files.h"

namespace quire {
namespace {

using absl::StatusCode;

LoadedCheckpoint OpenOrDie(const std::string& path) {
  absl::StatusOr<LoadedCheckpoint> checkpoint = OpenCheckpoint(path);
  CHECK(checkpoint.ok(), "{}", Message(checkpoint.status()));
  return *std::move(checkpoint);
}

TEST(CheckpointTest, ReferenceLlama) {
  const LoadedCheckpoint checkpoint = OpenOrDie(ReferencePath("models/llama"));
  const ModelConfig& config = checkpoint.config;
  EXPECT_EQ(config.architecture, "LlamaForCausalLM");
  EXPECT_EQ(config.name, "llama");
  EXPECT_EQ(config.hidden_dim, 48);
  EXPECT_EQ(config.vocab_size, 200);
  EXPECT_EQ(config.max_position, 512);
  ASSERT_EQ(config.layers.size(), 3u);
  EXPECT_EQ(config.layers[0].num_heads, 4);
  EXPECT_EQ(config.layers[0].num_kv_heads, 2);
  EXPECT_EQ(config.layers[0].head_dim, 16);
  EXPECT_EQ(config.layers[0].mlp_dim, 64);
  EXPECT_EQ(config.bos_token_id, 1);
  EXPECT_EQ(config.pad_token_id, 0);
  EXPECT_THAT(config.eos_token_ids, ::testing::ElementsAre(2));
  EXPECT_EQ(checkpoint.gguf, nullptr);
  EXPECT_TRUE(checkpoint.notes.empty());
  EXPECT_EQ(OpenOrDie(ReferencePath("models/llama/")).config.name, "llama");
}

TEST(CheckpointTest, EveryReferenceDirectoryBinds) {
  struct Case {
    const char* name;
    RopeType rope;
    bool tied;
    bool biases;
    int32_t window;
  };
  const Case cases[] = {{"llama", RopeType::kDefault, false, false, 0},
                        {"llama-bf16", RopeType::kDefault, false, false, 0},
                        {"llama-text", RopeType::kDefault, false, false, 0},
                        {"llama-tied-bias", RopeType::kDefault, true, true, 0},
                        {"llama-rope-dynamic", RopeType::kDynamic, false, false, 0},
                        {"llama-rope-linear", RopeType::kLinear, false, false, 0},
                        {"llama-rope-llama3", RopeType::kLlama3, false, false, 0},
                        {"llama-rope-longrope", RopeType::kLongrope, false, false, 0},
                        {"llama-rope-yarn", RopeType::kYarn, false, false, 0},
                        {"mistral", RopeType::kDefault, false, false, 16}};
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    const LoadedCheckpoint checkpoint = OpenOrDie(ReferencePath(fmt::format("models/{}", c.name)));
    const auto weights = BindWeights(checkpoint.config, *checkpoint.weights);
    ASSERT_TRUE(weights.ok()) << weights.status();
    EXPECT_EQ(checkpoint.config.ropes[0].type, c.rope);
    EXPECT_EQ(weights->lm_head.has_value(), !c.tied);
    ASSERT_EQ(weights->layers.size(), checkpoint.config.layers.size());
    size_t bound = weights->lm_head ? 3 : 2;
    for (size_t i = 0; i < weights->layers.size(); ++i) {
      const LayerWeights& w = weights->layers[i];
      for (const auto& view : {w.attn_norm, w.mlp_norm, w.q, w.k, w.v, w.o, w.gate, w.up, w.down}) {
        EXPECT_TRUE(view.has_value());
        ++bound;
      }
      for (const auto& view :
           {w.q_bias, w.k_bias, w.v_bias, w.o_bias, w.gate_bias, w.up_bias, w.down_bias}) {
        EXPECT_EQ(view.has_value(), c.biases);
        if (view) ++bound;
      }
      EXPECT_FALSE(w.q_norm.has_value());
      EXPECT_EQ(checkpoint.config.layers[i].window, c.window);
      EXPECT_EQ(checkpoint.config.layers[i].attention,
                c.window > 0 ? AttentionKind::kSliding : AttentionKind::kFull);
    }
    EXPECT_EQ(bound, checkpoint.weights->Names().size()) << "every tensor of the file has a role";
  }
}

TEST(CheckpointTest, RolesPointAtTheRightTensors) {
  const LoadedCheckpoint checkpoint = OpenOrDie(ReferencePath("models/llama-tied-bias"));
  const auto weights = BindWeights(checkpoint.config, *checkpoint.weights);
  ASSERT_TRUE(weights.ok()) << weights.status();
  const LayerWeights& w = weights->layers[1];
  const std::vector<std::pair<std::optional<TensorView>, std::string>> roles = {
      {w.attn_norm, "input_layernorm.weight"}, {w.mlp_norm, "post_attention_layernorm.weight"},
      {w.q, "self_attn.q_proj.weight"},        {w.k, "self_attn.k_proj.weight"},
      {w.v, "self_attn.v_proj.weight"},        {w.o, "self_attn.o_proj.weight"},
      {w.q_bias, "self_attn.q_proj.bias"},     {w.k_bias, "self_attn.k_proj.bias"},
      {w.v_bias, "self_attn.v_proj.bias"},     {w.o_bias, "self_attn.o_proj.bias"},
      {w.gate, "mlp.gate_proj.weight"},        {w.up, "mlp.up_proj.weight"},
      {w.down, "mlp.down_proj.weight"},        {w.gate_bias, "mlp.gate_proj.bias"},
      {w.up_bias, "mlp.up_proj.bias"},         {w.down_bias, "mlp.down_proj.bias"}};
  for (const auto& [view, name] : roles) {
    EXPECT_EQ(view->data, checkpoint.weights->Find("model.layers.1." + name)->data) << name;
  }
  EXPECT_EQ(weights->embed.data, checkpoint.weights->Find("model.embed_tokens.weight")->data);
  EXPECT_EQ(weights->final_norm.data, checkpoint.weights->Find("model.norm.weight")->data);
}

// tests/reference/gguf/make_quants.py wrote the GGUF from the directory with PyPI's gguf. Rows of q
// and k are permuted there: row 2i + j of a head is the checkpoint's row i + j * head_dim / 2.
TEST(CheckpointTest, GgufOfTheSameWeights) {
  const LoadedCheckpoint hub = OpenOrDie(ReferencePath("models/llama"));
  const LoadedCheckpoint gguf = OpenOrDie(ReferencePath("models/llama-gguf/model.gguf"));
  ASSERT_NE(gguf.gguf, nullptr);
  EXPECT_EQ(gguf.gguf, gguf.weights.get());
  const ModelConfig& a = hub.config;
  const ModelConfig& b = gguf.config;
  EXPECT_EQ(a.architecture, b.architecture);
  EXPECT_EQ(a.name, b.name);
  EXPECT_EQ(a.hidden_dim, b.hidden_dim);
  EXPECT_EQ(a.vocab_size, b.vocab_size);
  EXPECT_EQ(a.max_position, b.max_position);
  EXPECT_EQ(a.norm_eps, b.norm_eps);
  EXPECT_EQ(a.tie_embeddings, b.tie_embeddings);
  EXPECT_EQ(a.eos_token_ids, b.eos_token_ids);
  EXPECT_EQ(a.bos_token_id, b.bos_token_id);
  EXPECT_EQ(a.pad_token_id, b.pad_token_id);
  ASSERT_EQ(a.ropes.size(), b.ropes.size());
  EXPECT_EQ(a.ropes[0].type, b.ropes[0].type);
  EXPECT_EQ(a.ropes[0].theta, b.ropes[0].theta);
  EXPECT_EQ(a.ropes[0].rotary_dim, b.ropes[0].rotary_dim);
  EXPECT_FALSE(a.ropes[0].interleaved);
  EXPECT_TRUE(b.ropes[0].interleaved);
  ASSERT_EQ(a.layers.size(), b.layers.size());
  for (size_t i = 0; i < a.layers.size(); ++i) {
    EXPECT_EQ(a.layers[i].attention, b.layers[i].attention);
    EXPECT_EQ(a.layers[i].num_heads, b.layers[i].num_heads);
    EXPECT_EQ(a.layers[i].num_kv_heads, b.layers[i].num_kv_heads);
    EXPECT_EQ(a.layers[i].head_dim, b.layers[i].head_dim);
    EXPECT_EQ(a.layers[i].softmax_scale, b.layers[i].softmax_scale);
    EXPECT_EQ(a.layers[i].mlp_dim, b.layers[i].mlp_dim);
    EXPECT_EQ(a.layers[i].activation, b.layers[i].activation);
    EXPECT_EQ(a.layers[i].attention_bias, b.layers[i].attention_bias);
    EXPECT_EQ(a.layers[i].mlp_bias, b.layers[i].mlp_bias);
  }

  const auto x = BindWeights(a, *hub.weights);
  const auto y = BindWeights(b, *gguf.weights);
  ASSERT_TRUE(x.ok()) << x.status();
  ASSERT_TRUE(y.ok()) << y.status();
  const auto same = [](const TensorView& s, const TensorView& t) {
    return s.ToString() == t.ToString() && std::memcmp(s.data, t.data, s.num_bytes()) == 0;
  };
  const auto same_permuted = [](const TensorView& s, const TensorView& t, int64_t head_dim) {
    if (s.ToString() != t.ToString()) return false;
    const size_t row_bytes = static_cast<size_t>(s.shape[1]) * sizeof(float);
    for (int64_t row = 0; row < s.shape[0]; ++row) {
      const int64_t head = row / head_dim * head_dim;
      const int64_t i = row % head_dim / 2;
      const int64_t from = head + i + row % 2 * (head_dim / 2);
      if (std::memcmp(static_cast<const char*>(s.data) + static_cast<size_t>(from) * row_bytes,
                      static_cast<const char*>(t.data) + static_cast<size_t>(row) * row_bytes,
                      row_bytes) != 0) {
        return false;
      }
    }
    return true;
  };
  EXPECT_TRUE(same(x->embed, y->embed));
  EXPECT_TRUE(same(x->final_norm, y->final_norm));
  EXPECT_TRUE(same(*x->lm_head, *y->lm_head));
  for (size_t i = 0; i < x->layers.size(); ++i) {
    const LayerWeights& s = x->layers[i];
    const LayerWeights& t = y->layers[i];
    for (const auto member :
         {&LayerWeights::attn_norm, &LayerWeights::mlp_norm, &LayerWeights::v, &LayerWeights::o,
          &LayerWeights::gate, &LayerWeights::up, &LayerWeights::down}) {
      EXPECT_TRUE(same(*(s.*member), *(t.*member)));
    }
    EXPECT_FALSE(same(*s.q, *t.q)) << "they are permuted";
    EXPECT_TRUE(same_permuted(*s.q, *t.q, 16));
    EXPECT_TRUE(same_permuted(*s.k, *t.k, 16));
  }
}

// A copy of tests/reference/models/llama whose tensors and config can be changed.
class EditedTest : public ::testing::Test {
 protected:
  struct Tensor {
    std::string dtype = "F32";
    std::vector<int64_t> shape;
    std::string data;
  };
  void SetUp() override {
    const auto source = SafetensorsSource::OpenDirectory(ReferencePath("models/llama"));
    CHECK(source.ok(), "{}", Message(source.status()));
    for (const std::string& name : (*source)->Names()) {
      const TensorView view = *(*source)->Find(name);
      Tensor t;
      t.shape.assign(view.shape.begin(), view.shape.begin() + view.rank);
      t.data.assign(static_cast<const char*>(view.data), view.num_bytes());
      tensors_[name] = t;
    }
    config_ = ReadBytes(ReferencePath("models/llama/config.json"));
  }
  void SetConfig(const std::string& key, const std::string& value) {
    const size_t at = config_.find("\"" + key + "\":");
    CHECK(at != std::string::npos, "{}", key);
    const size_t end = config_.find_first_of(",\n", at);
    config_.replace(at, end - at, fmt::format("\"{}\": {}", key, value));
  }
  absl::StatusOr<ModelWeights> Bind() {
    std::string header = "{";
    std::string data;
    for (const auto& [name, t] : tensors_) {
      std::string shape;
      for (const int64_t d : t.shape) shape += fmt::format("{}{}", shape.empty() ? "" : ",", d);
      header += fmt::format(R"({}"{}":{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                            header == "{" ? "" : ",", name, t.dtype, shape, data.size(),
                            data.size() + t.data.size());
      data += t.data;
    }
    dir_.Write("model.safetensors", Safetensors(header + "}", data));
    dir_.Write("config.json", config_);
    absl::StatusOr<LoadedCheckpoint> checkpoint = OpenCheckpoint(dir_.path());
    if (!checkpoint.ok()) return checkpoint.status();
    checkpoint_ = *std::move(checkpoint);
    return BindWeights(checkpoint_.config, *checkpoint_.weights);
  }
  const void* Data(const std::string& name) { return checkpoint_.weights->Find(name)->data; }

  std::map<std::string, Tensor> tensors_;
  std::string config_;
  TempDir dir_;
  LoadedCheckpoint checkpoint_;
};

constexpr char kEmbed[] = "model.embed_tokens.weight";
constexpr char kHead[] = "lm_head.weight";

TEST_F(EditedTest, ControlBinds) { EXPECT_TRUE(Bind().ok()); }

TEST_F(EditedTest, M13AllMissingTensorsAreListed) {
  tensors_.erase("model.norm.weight");
  tensors_.erase("model.layers.0.self_attn.q_proj.weight");
  tensors_.erase("model.layers.2.mlp.down_proj.weight");
  ExpectRefused(Bind().status(), StatusCode::kNotFound,
                {"model.safetensors", "3 needed tensors", "model.norm.weight",
                 "model.layers.0.self_attn.q_proj.weight", "model.layers.2.mlp.down_proj.weight"});
}

TEST_F(EditedTest, M17LayersAgainstTensors) {
  SetConfig("num_hidden_layers", "4");
  ExpectRefused(Bind().status(), StatusCode::kNotFound,
                {"9 needed tensors", "model.layers.3.input_layernorm.weight"});
  SetConfig("num_hidden_layers", "2");
  ExpectRefused(Bind().status(), StatusCode::kInvalidArgument, {"model.layers.2.", "2 layers"});
  SetConfig("num_hidden_layers", "4000");  // a long list is cut
  const absl::Status many = Bind().status();
  ExpectRefused(many, StatusCode::kNotFound, {"needed tensors", "..."});
  EXPECT_LT(Message(many).size(), 2000u);
}

TEST_F(EditedTest, M17ShapesAgainstTheConfiguration) {
  struct Case {
    const char* key;
    const char* value;
    const char* tensor;
    const char* found;
    const char* wanted;
  };
  const Case cases[] = {
      {"vocab_size", "199", kEmbed, "[200, 48]", "[199, 48]"},
      {"vocab_size", "201", kEmbed, "[200, 48]", "[201, 48]"},
      {"hidden_size", "64", kEmbed, "[200, 48]", "[200, 64]"},
      {"head_dim", "32", "model.layers.0.self_attn.q_proj.weight", "[64, 48]", "[128, 48]"},
      {"num_key_value_heads", "4", "model.layers.0.self_attn.k_proj.weight", "[32, 48]",
       "[64, 48]"},
      {"intermediate_size", "63", "model.layers.0.mlp.gate_proj.weight", "[64, 48]", "[63, 48]"},
  };
  const std::string original = config_;
  for (const Case& c : cases) {
    SCOPED_TRACE(fmt::format("{}={}", c.key, c.value));
    config_ = original;
    SetConfig(c.key, c.value);
    ExpectRefused(Bind().status(), StatusCode::kInvalidArgument,
                  {"model.safetensors", c.tensor, c.found, c.wanted});
  }
}

TEST_F(EditedTest, RankAndTransposition) {
  tensors_["model.norm.weight"].shape = {1, 48};
  ExpectRefused(Bind().status(), StatusCode::kInvalidArgument, {"model.norm.weight", "[48]"});
  tensors_["model.norm.weight"].shape = {48};
  tensors_["model.layers.1.mlp.down_proj.weight"].shape = {64, 48};
  ExpectRefused(Bind().status(), StatusCode::kInvalidArgument,
                {"model.layers.1.mlp.down_proj.weight", "[64, 48]", "[48, 64]"});
}

TEST_F(EditedTest, DtypesAreJudgedWhenNeeded) {
  Tensor f8{.dtype = "F8_E4M3", .shape = {2}, .data = "ab"};
  tensors_["model.layers.0.self_attn.rotary_emb.inv_freq"] = f8;
  EXPECT_TRUE(Bind().ok()) << "nobody asks for it";
  tensors_["model.norm.weight"] = {.dtype = "F8_E4M3", .shape = {48}, .data = std::string(48, 0)};
  ExpectRefused(Bind().status(), StatusCode::kUnimplemented,
                {"model.safetensors", "model.norm.weight", "F8_E4M3", "BF16"});
}

TEST_F(EditedTest, BiasesAgainstTheFlags) {
  const Tensor bias{.shape = {64}, .data = std::string(256, '\0')};
  tensors_["model.layers.1.self_attn.q_proj.bias"] = bias;
  ExpectRefused(Bind().status(), StatusCode::kInvalidArgument,
                {"model.layers.1.self_attn.q_proj.bias", "attention_bias=false"});
  tensors_.erase("model.layers.1.self_attn.q_proj.bias");
  SetConfig("mlp_bias", "true");
  ExpectRefused(Bind().status(), StatusCode::kNotFound,
                {"9 needed tensors", "model.layers.0.mlp.gate_proj.bias"});
}

// M17: tied or not, with and without lm_head, by what is in the file as in transformers 5.
TEST_F(EditedTest, TiedEmbeddings) {
  // Not tied, both there: the control. Tied, both there and different: the flag is wrong.
  SetConfig("tie_word_embeddings", "true");
  auto weights = Bind();
  ASSERT_TRUE(weights.ok()) << weights.status();
  ASSERT_TRUE(weights->lm_head.has_value());
  EXPECT_EQ(weights->lm_head->data, Data(kHead));
  EXPECT_EQ(weights->embed.data, Data(kEmbed));
  // Tied, both there and equal.
  const Tensor head = tensors_[kHead];
  tensors_[kHead] = tensors_[kEmbed];
  weights = Bind();
  ASSERT_TRUE(weights.ok()) << weights.status();
  EXPECT_FALSE(weights->lm_head.has_value());
  // Tied, one of them: it serves as both.
  tensors_.erase(kHead);
  weights = Bind();
  ASSERT_TRUE(weights.ok()) << weights.status();
  EXPECT_FALSE(weights->lm_head.has_value());
  EXPECT_EQ(weights->embed.data, Data(kEmbed));
  tensors_.erase(kEmbed);
  tensors_[kHead] = head;
  weights = Bind();
  ASSERT_TRUE(weights.ok()) << weights.status();
  EXPECT_FALSE(weights->lm_head.has_value());
  EXPECT_EQ(weights->embed.data, Data(kHead));
  // Tied, none.
  tensors_.erase(kHead);
  ExpectRefused(Bind().status(), StatusCode::kNotFound, {kEmbed});
}

TEST_F(EditedTest, UntiedNeedsBoth) {
  tensors_.erase(kHead);
  ExpectRefused(Bind().status(), StatusCode::kNotFound, {"1 needed tensors", kHead});
}

TEST_F(EditedTest, M15NoteNamesIgnoredFiles) {
  ASSERT_TRUE(Bind().ok());
  std::string map;
  for (const auto& [name, t] : tensors_) {
    map += fmt::format(R"({}"{}":"shard.safetensors")", map.empty() ? "" : ",", name);
  }
  std::filesystem::rename(dir_.File("model.safetensors"), dir_.File("shard.safetensors"));
  dir_.Write("model.safetensors", "stray");
  dir_.Write("model.safetensors.index.json", "{\"weight_map\":{" + map + "}}");
  const LoadedCheckpoint checkpoint = OpenOrDie(dir_.path());
  EXPECT_TRUE(BindWeights(checkpoint.config, *checkpoint.weights).ok());
  ASSERT_EQ(checkpoint.notes.size(), 1u);
  EXPECT_THAT(checkpoint.notes[0], ::testing::HasSubstr("model.safetensors"));
}

}  // namespace
}  // namespace quire
