// tests/plan_transformers_test.cc -- `--rule transformers` against what transformers itself gave
// (tests/reference/paged/memory.json): batch tokens, blocks and footprint of every case.
#include <gtest/gtest.h>

#include "models/plan/plan.h"
#include "models/plan/shape_readers.h"
#include "models/plan/transformers_rule.h"
#include "tests/support/golden_file.h"

namespace quire {
namespace {

int64_t Int(const Json& j, const char* key) { return j[key].as_int().value_or(0); }

TransformersInputs InputsOf(const Json& c) {
  return {.num_heads = Int(c, "num_attention_heads"),
          .num_kv_heads = Int(c, "num_key_value_heads"),
          .head_dim = Int(c, "head_dim"),
          .hidden_dim = Int(c, "hidden_size"),
          .vocab_size = Int(c, "vocab_size"),
          .element_bytes = Int(c, "dtype_bytes"),
          .available_memory = Int(c, "available_memory"),
          .block_size = Int(c, "block_size"),
          .num_groups = Int(c, "num_groups"),
          .group_size = Int(c, "group_size"),
          .num_masks = Int(c, "num_attention_masks"),
          .async_batching = Int(c, "io_multiplier") == 2,
          .logprobs = Int(c, "num_output_rows") == 2,
          .max_blocks_per_request = Int(c, "max_blocks_per_request"),
          .max_batch_tokens = Int(c, "given_max_batch_tokens"),
          .num_blocks = Int(c, "given_num_blocks")};
}

Json Cases() { return ReadGoldenJson(std::string(QUIRE_TEST_REFERENCE) + "/paged/memory.json"); }

TEST(PlanTransformers, EveryRecordedCase) {
  const Json cases = Cases();
  ASSERT_EQ(cases.size(), 16u);
  int refused = 0;
  for (size_t i = 0; i < cases.size(); ++i) {
    SCOPED_TRACE(fmt::format("case {}", i));
    const Json c = cases.at(i);
    const absl::StatusOr<TransformersPlan> plan = PlanByTransformers(InputsOf(c));
    if (c["error"].is_string()) {
      ++refused;
      EXPECT_EQ(plan.status().code(), absl::StatusCode::kResourceExhausted);
      // The footprint that the error names.
      EXPECT_NE(Message(plan.status()).find("2020220000"), std::string::npos) << plan.status();
      continue;
    }
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_EQ(plan->max_batch_tokens, Int(c, "max_batch_tokens"));
    EXPECT_EQ(plan->num_blocks, Int(c, "num_blocks"));
    EXPECT_EQ(plan->footprint, Int(c, "footprint"));
  }
  EXPECT_EQ(refused, 1);
}

// The same numbers from a config: groups are formed as transformers forms them.
TEST(PlanTransformers, InputsComeFromTheConfig) {
  const Json cases = Cases();
  for (size_t i = 0; i < cases.size(); ++i) {
    SCOPED_TRACE(fmt::format("case {}", i));
    const Json c = cases.at(i);
    const bool mixed = c["layer_pattern"].is_string();
    const int64_t layers = Int(c, "num_hidden_layers");
    JsonWriter w;
    w.BeginObject();
    w.Key("architectures");
    w.BeginArray();
    w.String(mixed ? "Gemma2ForCausalLM" : "LlamaForCausalLM");
    w.EndArray();
    for (const char* key : {"num_hidden_layers", "num_key_value_heads", "num_attention_heads",
                            "head_dim", "hidden_size", "vocab_size"}) {
      w.Key(key);
      w.Int(Int(c, key));
    }
    w.Key("intermediate_size");
    w.Int(1000);
    w.EndObject();
    const auto shape = ReadShape(JsonFields(*Json::Parse(w.text()), "config.json"));
    ASSERT_TRUE(shape.ok()) << shape.status();
    const auto in = TransformersInputsOf(*shape);
    ASSERT_TRUE(in.ok()) << in.status();
    EXPECT_EQ(in->num_groups, Int(c, "num_groups"));
    EXPECT_EQ(in->group_size, Int(c, "group_size"));
    EXPECT_EQ(in->num_groups * in->group_size, layers);
    EXPECT_EQ(in->num_heads, Int(c, "num_attention_heads"));
    EXPECT_EQ(in->num_kv_heads, Int(c, "num_key_value_heads"));
    EXPECT_EQ(in->head_dim, Int(c, "head_dim"));
    EXPECT_EQ(in->hidden_dim, Int(c, "hidden_size"));
    EXPECT_EQ(in->vocab_size, Int(c, "vocab_size"));
    if (Int(c, "num_attention_masks") > 0) {
      EXPECT_EQ(in->num_masks, Int(c, "num_attention_masks"));
    }
  }
}

TEST(PlanTransformers, OtherKindsOfCacheAreRefusedByName) {
  const std::string text =
      R"({"architectures": ["DeepseekV3ForCausalLM"], "hidden_size": 64, "num_hidden_layers": 2,
          "vocab_size": 100, "num_attention_heads": 4, "kv_lora_rank": 16, "qk_nope_head_dim": 16,
          "qk_rope_head_dim": 8, "v_head_dim": 16, "intermediate_size": 64,
          "first_k_dense_replace": 2})";
  const auto shape = ReadShape(JsonFields(*Json::Parse(text), "config.json"));
  ASSERT_TRUE(shape.ok()) << shape.status();
  const auto plan = PlanModel(*shape, {.memory = 1 << 30, .rule = PlanRule::kTransformers});
  ASSERT_TRUE(plan.ok());
  ASSERT_TRUE(plan->by_transformers);
  EXPECT_EQ(plan->by_transformers->status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_NE(Message(plan->by_transformers->status()).find("latent"), std::string::npos);
  EXPECT_FALSE(plan->by_quire);
}

}  // namespace
}  // namespace quire
