// tests/plan_gguf_test.cc -- caches from GGUF metadata: files with keys and tensor descriptions as
// published checkpoints have them, written here byte by byte.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "models/plan/plan.h"
#include "models/plan/shape_source.h"
#include "tests/weight_files.h"

namespace quire {
namespace {

// Metadata under one architecture's prefix, and a token embedding of 100 x 64.
class Gguf {
 public:
  explicit Gguf(const std::string& architecture, bool with_mlp = true)
      : prefix_(architecture + ".") {
    parts_.Entry("general.architecture", 8, Bytes().Str(architecture).text());
    parts_.Tensor("token_embd.weight", {64, 100}, 0, 0);
    parts_.data.resize(64 * 100 * 4);
    Int("embedding_length", 64).Int("context_length", 2048);
    if (with_mlp) Int("feed_forward_length", 128);
  }
  Gguf& Int(const std::string& key, uint32_t value) {
    parts_.Entry(prefix_ + key, 4, Bytes().U32(value).text());
    return *this;
  }
  Gguf& Ints(const std::string& key, const std::vector<uint32_t>& values) {
    Bytes list;
    list.U32(4).U64(values.size());
    for (const uint32_t v : values) list.U32(v);
    parts_.Entry(prefix_ + key, 9, list.text());
    return *this;
  }
  absl::StatusOr<ModelShape> Load(const TempDir& dir) const {
    return LoadShape(dir.Write("model.gguf", parts_.Build()));
  }

 private:
  std::string prefix_;
  GgufParts parts_;
};

Gguf Decoder(const std::string& architecture, uint32_t layers) {
  return std::move(Gguf(architecture)
                       .Int("block_count", layers)
                       .Int("attention.head_count", 8)
                       .Int("attention.head_count_kv", 2)
                       .Int("attention.key_length", 16));
}

TEST(PlanGguf, FullLayers) {
  const TempDir dir;
  const auto shape = Decoder("qwen3", 3).Load(dir);
  ASSERT_TRUE(shape.ok()) << shape.status();
  EXPECT_EQ(shape->architecture, "qwen3");
  EXPECT_EQ(shape->parameters, 6400);
  EXPECT_EQ(shape->weight_bytes, 6400 * 4);
  EXPECT_EQ(shape->weight_type, "F32");
  EXPECT_EQ(shape->activations.vocab_size, 100);
  const auto groups = GroupParts(*shape);
  ASSERT_EQ(groups.size(), 1u);
  EXPECT_EQ(groups[0].num_layers, 3);
  EXPECT_EQ(ElementsPerEntry(groups[0].part), 2 * 2 * 16);
}

// The pattern is an architecture's own unless the file has one.
TEST(PlanGguf, WindowsByPattern) {
  const struct {
    const char* architecture;
    int64_t sliding;  // of 12 layers
  } kRows[] = {{"gemma2", 6}, {"gemma3", 10}, {"gpt-oss", 6}, {"cohere2", 9},
               {"llama", 12}, {"phi3", 12},   {"qwen3", 0}};
  for (const auto& row : kRows) {
    SCOPED_TRACE(row.architecture);
    const TempDir dir;
    const auto shape =
        std::move(Decoder(row.architecture, 12).Int("attention.sliding_window", 32)).Load(dir);
    ASSERT_TRUE(shape.ok()) << shape.status();
    int64_t sliding = 0;
    for (const PartGroup& group : GroupParts(*shape)) {
      if (group.part.kind != PartKind::kSliding) continue;
      EXPECT_EQ(group.part.window, 32);
      sliding += group.num_layers;
    }
    EXPECT_EQ(sliding, row.sliding);
  }
  const TempDir dir;
  const auto shape = Decoder("gemma3", 12)
                         .Int("attention.sliding_window", 32)
                         .Int("attention.sliding_window_pattern", 3)
                         .Load(dir);
  ASSERT_TRUE(shape.ok()) << shape.status();
  EXPECT_EQ(GroupParts(*shape)[0].num_layers, 8);
}

// Files say the sizes of the absorbed form (one head of 576 and 512) and those of the heads.
TEST(PlanGguf, Latents) {
  const TempDir dir;
  const auto shape = Gguf("deepseek2")
                         .Int("block_count", 61)
                         .Int("attention.head_count", 128)
                         .Int("attention.head_count_kv", 1)
                         .Int("attention.key_length", 576)
                         .Int("attention.value_length", 512)
                         .Int("attention.key_length_mla", 192)
                         .Int("attention.value_length_mla", 128)
                         .Int("attention.kv_lora_rank", 512)
                         .Int("rope.dimension_count", 64)
                         .Load(dir);
  ASSERT_TRUE(shape.ok()) << shape.status();
  const auto plan = PlanModel(*shape, {});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->published_per_token, 70272);
  EXPECT_EQ(plan->plain_per_token, 4997120);
}

// Layers without key-value heads are recurrent.
TEST(PlanGguf, Hybrids) {
  const TempDir dir;
  const auto shape = Gguf("jamba")
                         .Int("block_count", 4)
                         .Int("attention.head_count", 4)
                         .Ints("attention.head_count_kv", {0, 0, 2, 0})
                         .Int("ssm.inner_size", 128)
                         .Int("ssm.state_size", 16)
                         .Int("ssm.conv_kernel", 4)
                         .Load(dir);
  ASSERT_TRUE(shape.ok()) << shape.status();
  ASSERT_EQ(shape->layers[2].parts.size(), 1u);
  EXPECT_EQ(shape->layers[2].parts[0].kind, PartKind::kFull);
  EXPECT_EQ(shape->layers[2].parts[0].key_dim, 64 / 4);
  for (const size_t i : {0, 1, 3}) {
    ASSERT_EQ(shape->layers[i].parts.size(), 1u);
    EXPECT_EQ(shape->layers[i].parts[0].kind, PartKind::kState);
    EXPECT_EQ(shape->layers[i].parts[0].conv_channels, 128);
  }

  // Where some layers are plain feed-forward blocks, only those have a width for it.
  const auto mixed = Gguf("nemotron_h", false)
                         .Int("block_count", 3)
                         .Int("attention.head_count", 4)
                         .Ints("attention.head_count_kv", {0, 0, 2})
                         .Ints("feed_forward_length", {0, 128, 0})
                         .Int("ssm.inner_size", 128)
                         .Int("ssm.state_size", 16)
                         .Int("ssm.conv_kernel", 4)
                         .Load(dir);
  ASSERT_TRUE(mixed.ok()) << mixed.status();
  EXPECT_EQ(mixed->layers[0].parts[0].kind, PartKind::kState);
  EXPECT_TRUE(mixed->layers[1].parts.empty());
  EXPECT_EQ(mixed->layers[2].parts[0].kind, PartKind::kFull);

  const auto mamba = Gguf("mamba2")
                         .Int("block_count", 2)
                         .Int("ssm.inner_size", 128)
                         .Int("ssm.state_size", 16)
                         .Int("ssm.conv_kernel", 4)
                         .Int("ssm.group_count", 2)
                         .Load(dir);
  ASSERT_TRUE(mamba.ok()) << mamba.status();
  ASSERT_EQ(mamba->layers.size(), 2u);
  ASSERT_EQ(mamba->layers[0].parts.size(), 1u);
  EXPECT_EQ(mamba->layers[0].parts[0].recurrent_elements, 128 * 16);
  EXPECT_EQ(mamba->layers[0].parts[0].conv_channels, 128 + 2 * 2 * 16);
}

TEST(PlanGguf, RefusedByName) {
  const TempDir dir;
  ExpectRefused(Gguf("newmodel").Load(dir).status(), absl::StatusCode::kUnimplemented,
                {"general.architecture=\"newmodel\"", "known:", "llama", "deepseek2"});
  ExpectRefused(Gguf("llama").Load(dir).status(), absl::StatusCode::kNotFound,
                {"model.gguf", "llama.block_count"});
  ExpectRefused(Decoder("llama", 5000).Load(dir).status(), absl::StatusCode::kInvalidArgument,
                {"llama.block_count=5000", "4096"});
  ExpectRefused(std::move(Gguf("llama")
                              .Int("block_count", 1)
                              .Int("attention.head_count", 2)
                              .Int("attention.head_count_kv", 4))
                    .Load(dir)
                    .status(),
                absl::StatusCode::kInvalidArgument, {"4 key-value heads", "at most 2"});
}

}  // namespace
}  // namespace quire
