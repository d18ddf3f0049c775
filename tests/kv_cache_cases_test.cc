// tests/kv_cache_cases_test.cc -- caches of int8 on whole models, where others went wrong: the
// cases of HARD-CASES (j). The models are random ones of every head width that the cases ask for.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "tests/support/model_harness.h"
#include "tests/weight_files.h"

namespace quire {
namespace {

constexpr int32_t kVocab = 512;
constexpr int32_t kHidden = 64;

using Tensors = std::map<std::string, std::pair<std::vector<int64_t>, std::vector<float>>>;

// A Llama of two layers, 4 heads and 2 kv heads, written to a directory of its own.
class RandomLlama {
 public:
  explicit RandomLlama(int32_t head_dim, float key_gain = 1.0f) {
    config_ = fmt::format(
        R"({{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": {},
"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": {},
"intermediate_size": 96, "vocab_size": {}, "max_position_embeddings": 256, "rms_norm_eps": 1e-5,
"rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": false}})",
        kHidden, head_dim, kVocab);
    std::mt19937 rng(static_cast<uint32_t>(head_dim));
    const auto add = [&](const std::string& name, std::vector<int64_t> shape, float deviation) {
      std::normal_distribution<float> normal(0.0f, deviation);
      int64_t n = 1;
      for (const int64_t d : shape) n *= d;
      std::vector<float> data(static_cast<size_t>(n));
      for (float& x : data) x = shape.size() == 1 ? 1.0f : normal(rng);
      tensors_[name] = {shape, data};
    };
    const int64_t q = 4 * head_dim;
    const int64_t kv = 2 * head_dim;
    add("model.embed_tokens.weight", {kVocab, kHidden}, 1.0f);
    add("lm_head.weight", {kVocab, kHidden}, 0.25f);
    add("model.norm.weight", {kHidden}, 0);
    for (int32_t i = 0; i < 2; ++i) {
      const std::string layer = fmt::format("model.layers.{}.", i);
      add(layer + "input_layernorm.weight", {kHidden}, 0);
      add(layer + "post_attention_layernorm.weight", {kHidden}, 0);
      add(layer + "self_attn.q_proj.weight", {q, kHidden}, 0.125f);
      add(layer + "self_attn.k_proj.weight", {kv, kHidden}, 0.125f * key_gain);
      add(layer + "self_attn.v_proj.weight", {kv, kHidden}, 0.125f);
      add(layer + "self_attn.o_proj.weight", {kHidden, q}, 1 / std::sqrt(static_cast<float>(q)));
      add(layer + "mlp.gate_proj.weight", {96, kHidden}, 0.125f);
      add(layer + "mlp.up_proj.weight", {96, kHidden}, 0.125f);
      add(layer + "mlp.down_proj.weight", {kHidden, 96}, 0.1f);
    }
  }
  RandomLlama& With(const std::string& name, float value) {
    tensors_[name] = {{1}, {value}};
    return *this;
  }
  const std::string& path() {
    std::string header = "{";
    std::string data;
    for (const auto& [name, tensor] : tensors_) {
      std::string shape;
      for (const int64_t d : tensor.first)
        shape += fmt::format("{}{}", shape.empty() ? "" : ",", d);
      const size_t bytes = tensor.second.size() * sizeof(float);
      header +=
          fmt::format(R"({}"{}":{{"dtype":"F32","shape":[{}],"data_offsets":[{},{}]}})",
                      header == "{" ? "" : ",", name, shape, data.size(), data.size() + bytes);
      data.append(reinterpret_cast<const char*>(tensor.second.data()), bytes);
    }
    dir_.Write("model.safetensors", Safetensors(header + "}", data));
    dir_.Write("config.json", config_);
    return dir_.path();
  }

 private:
  std::string config_;
  Tensors tensors_;
  TempDir dir_;
};

std::vector<TokenId> Prompt(int32_t n, int32_t seed) {
  std::vector<TokenId> tokens;
  for (int32_t i = 0; i < n; ++i) tokens.push_back((i * i * 31 + 7 * i + seed * 13) % kVocab);
  return tokens;
}

// Logits after each of the prompt's lengths 1 .. n, [n][vocab]: those of a prompt of that length,
// since how a prompt is cut changes no bit.
std::vector<std::vector<float>> LogitsOfEachLength(const std::string& model,
                                                   const HarnessOptions& options, int32_t n) {
  auto h = ModelHarness::Open(model, options);
  CHECK(h.ok(), "{}", Message(h.status()));
  const std::vector<TokenId> prompt = Prompt(n, 1);
  auto seq = (*h)->NewSequence(prompt);
  std::vector<std::vector<float>> logits;
  for (int32_t i = 0; i < n; ++i) {
    seq->tokens = prompt;
    logits.push_back((*h)->Step({seq.get()}, {1}, true));
  }
  return logits;
}

std::vector<double> LogProbabilities(const std::vector<float>& logits) {
  double max = -INFINITY;
  for (const float x : logits) max = std::max(max, double{x});
  double sum = 0;
  for (const float x : logits) sum += std::exp(x - max);
  std::vector<double> out;
  for (const float x : logits) out.push_back(x - max - std::log(sum));
  return out;
}

double Divergence(const std::vector<float>& of, const std::vector<float>& from) {
  const std::vector<double> p = LogProbabilities(from);
  const std::vector<double> q = LogProbabilities(of);
  double sum = 0;
  for (size_t i = 0; i < p.size(); ++i) sum += std::exp(p[i]) * (p[i] - q[i]);
  return sum;
}

// J06: prompts of 1 .. 70 tokens, every head width, every backend: KL to a cache of float32.
TEST(KvCacheCases, J06_EveryLengthAndWidthAgainstFloat32) {
  constexpr int32_t kMost = 70;
  for (const int32_t head_dim : {16, 40, 64, 80, 128}) {
    RandomLlama model(head_dim);
    const std::string path = model.path();
    const auto exact = LogitsOfEachLength(path, {}, kMost);
    for (const kernels::AttentionBackend* backend : kernels::AttentionBackends()) {
      const auto codes = LogitsOfEachLength(
          path, {.attention = std::string(backend->name), .kv_dtype = DType::kI8}, kMost);
      double at_borders = 0;
      double elsewhere = 0;
      for (int32_t i = 0; i < kMost; ++i) {
        const double kl = Divergence(codes[static_cast<size_t>(i)], exact[static_cast<size_t>(i)]);
        EXPECT_LT(kl, 0.02) << backend->name << " head_dim=" << head_dim << " length=" << i + 1;
        double& worst = (i + 1) % 16 <= 1 ? at_borders : elsewhere;
        worst = std::max(worst, kl);
      }
      EXPECT_GT(elsewhere, 1e-9) << "int8 was not in use";
      EXPECT_LT(at_borders, 3 * elsewhere + 1e-5) << backend->name << " head_dim=" << head_dim;
    }
  }
}

// J01: scales in the checkpoint, which an int8 cache with scales of its own doesn't need: keys that
// they would clip (0.02 * 448 = 8.96) come through, doubled scales change nothing.
TEST(KvCacheCases, J01_ScalesOfTheCheckpointAreNotMixedIn) {
  const auto run = [](float k_scale, float v_scale, DType type) {
    RandomLlama model(32, 4.0f);
    for (int32_t i = 0; i < 2 && k_scale > 0; ++i) {
      model.With(fmt::format("model.layers.{}.self_attn.k_scale", i), k_scale);
      model.With(fmt::format("model.layers.{}.self_attn.v_scale", i), v_scale);
    }
    return LogitsOfEachLength(model.path(), {.kv_dtype = type}, 40);
  };
  const auto none = run(0, 0, DType::kI8);
  EXPECT_EQ(run(0.02f, 0.5f, DType::kI8), none);
  EXPECT_EQ(run(0.04f, 1.0f, DType::kI8), none);
  const auto exact = run(0.02f, 0.5f, DType::kF32);
  for (size_t i = 0; i < exact.size(); ++i) EXPECT_LT(Divergence(none[i], exact[i]), 0.02) << i;
}

// J03: every naming of the same scales is the same model; a scale that nobody knows is refused.
TEST(KvCacheCases, J03_NamesOfScales) {
  const std::vector<std::vector<std::string>> namings = {
      {"self_attn.kv_scale"},
      {"self_attn.k_scale", "self_attn.v_scale"},
      {"self_attn.attn.k_scale", "self_attn.attn.v_scale"},
      {"self_attn.k_proj.k_scale", "self_attn.v_proj.v_scale"},
      {"self_attn.k_proj.output_scale", "self_attn.v_proj.output_scale"}};
  RandomLlama plain(16);
  const auto want = LogitsOfEachLength(plain.path(), {.kv_dtype = DType::kI8}, 20);
  for (const auto& names : namings) {
    RandomLlama model(16);
    for (int32_t i = 0; i < 2; ++i) {
      for (const std::string& name : names) {
        model.With(fmt::format("model.layers.{}.{}", i, name), 0.02f);
      }
    }
    const std::string path = model.path();
    EXPECT_EQ(LogitsOfEachLength(path, {.kv_dtype = DType::kI8}, 20), want) << names[0];
    const auto checkpoint = OpenCheckpoint(path);
    ASSERT_TRUE(checkpoint.ok());
    ASSERT_EQ(checkpoint->notes.size(), 1u) << "the operator is not told";
    EXPECT_NE(checkpoint->notes[0].find(fmt::format("{} scales", 2 * names.size())),
              std::string::npos)
        << checkpoint->notes[0];
  }
  for (const char* name : {"model.layers.1.self_attn.k_proj.weight_scale",
                           "model.layers.0.mlp.up_proj.input_scale", "model.layers.0.k_scale",
                           "model.layers.0.mlp.down_proj.weight_scale_inv", "lm_head.scale"}) {
    RandomLlama model(16);
    const auto opened = ModelHarness::Open(model.With(name, 0.02f).path(), {});
    ExpectRefused(opened.status(), absl::StatusCode::kUnimplemented, {name, "model.safetensors"});
  }
}

// J05: a fork in the middle of a block, and its copies on write: each child is what it is alone.
TEST(KvCacheCases, J05_ForksInTheMiddleOfABlock) {
  RandomLlama model(80);
  const std::string path = model.path();
  const HarnessOptions options{.kv_dtype = DType::kI8};
  auto h = ModelHarness::Open(path, options);
  ASSERT_TRUE(h.ok()) << h.status();
  const std::vector<TokenId> prompt = Prompt(37, 2);
  auto parent = (*h)->NewSequence(prompt);
  (*h)->Generate(*parent, 1);
  std::vector<std::unique_ptr<Sequence>> children;
  std::vector<Sequence*> together;
  for (int32_t c = 0; c < 4; ++c) {
    auto child = (*h)->NewSequence(prompt);
    child->tables = (*h)->blocks().Fork(parent->tables);
    child->num_computed_tokens = 37;
    child->tokens.push_back(100 + c);
    together.push_back(child.get());
    children.push_back(std::move(child));
  }
  std::vector<std::vector<float>> forked(4);
  for (int32_t step = 0; step < 20; ++step) {
    const std::vector<float> logits = (*h)->Step(together, {1, 1, 1, 1}, true);
    for (size_t c = 0; c < 4; ++c) {
      forked[c].insert(forked[c].end(), logits.begin() + static_cast<int64_t>(c) * kVocab,
                       logits.begin() + static_cast<int64_t>(c + 1) * kVocab);
    }
  }
  for (int32_t c = 0; c < 4; ++c) {
    auto fresh = ModelHarness::Open(path, options);
    ASSERT_TRUE(fresh.ok());
    std::vector<TokenId> own = prompt;
    own.push_back(100 + c);
    auto alone = (*fresh)->NewSequence(own);
    std::vector<float> logits;
    for (const auto& row : (*fresh)->Generate(*alone, 20)) {
      logits.insert(logits.end(), row.begin(), row.end());
    }
    EXPECT_EQ(alone->tokens, together[static_cast<size_t>(c)]->tokens);
    EXPECT_EQ(logits, forked[static_cast<size_t>(c)]) << "child " << c;
  }
}

}  // namespace
}  // namespace quire
