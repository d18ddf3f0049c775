// tests/plan_test.cc -- the figures of `quire plan` against published ones, hand arithmetic and the
// running daemon's own profile.
#include "models/plan/plan.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include "base/json.h"
#include "models/plan/formula.h"
#include "models/plan/render.h"
#include "models/plan/shape_readers.h"
#include "models/plan/shape_source.h"
#include "models/plan/units.h"
#include "models/runtime.h"

namespace quire {
namespace {

ModelPlan Plan(const std::string& model, const PlanOptions& options = {}) {
  absl::StatusOr<ModelShape> shape = LoadShape(model);
  CHECK(shape.ok(), "{}", shape.status().ToString());
  absl::StatusOr<ModelPlan> plan = PlanModel(*shape, options);
  CHECK(plan.ok(), "{}", plan.status().ToString());
  return *plan;
}

// Published or hand-computed sizes, and the text that must show each.
struct Figure {
  const char* model;
  int64_t context;
  const char* kv_dtype;
  double bytes_per_token;
  double uncompressed;
  int64_t uncapped;  // whole context
  std::vector<const char*> shown;
};

const Figure kFigures[] = {
    {"llama-2-7b",
     4096,
     "bf16",
     524288,
     524288,
     int64_t{2} << 30,
     {"524,288 B (512 KiB)", "32 layers x 2 (k, v) x 32 heads x 128 x 2 B", "2.00 GiB",
      "13.48 GB (12.55 GiB)", "6,738,415,616 parameters x 2 B", "at 25,705 tokens"}},
    {"llama-2-70b",
     4096,
     "bf16",
     327680,
     327680,
     int64_t{5} << 28,
     {"327,680 B (320 KiB)", "80 layers x 2 (k, v) x 8 heads x 128 x 2 B", "1.25 GiB"}},
    {"deepseek-v3",
     4096,
     "bf16",
     70272,
     4997120,
     int64_t{70272} * 4096,
     {"70,272 B", "61 layers x (512 latent + 64 rope) x 2 B", "4,997,120 B",
      "61 layers x 128 heads x 320 (k + v) x 2 B"}},
    {"qwen3.5-35b-a3b",
     262144,
     "bf16",
     20480,
     20480,
     int64_t{5} << 30,
     {"20,480 B (20.00 KiB)", "10 layers x 2 (k, v) x 2 heads x 256 x 2 B", "5.37 GB"}},
    {"deepseek-v4-flash",
     1 << 20,
     "bf16",
     7584,
     44032,
     int64_t{7584} << 20,
     {"7,584 B", "2 layers x 512 (k = v) x 2 B", "21 layers x 512 (k = v) x 2 B / 4 tokens",
      "20 layers x 512 (k = v) x 2 B / 128 tokens", "44,032 B", "7.95 GB", "5.81 GB"}},
    {"gpt2",
     1024,
     "f32",
     73728,
     73728,
     int64_t{72} << 20,
     {"73,728 B (72.00 KiB)", "12 layers x 2 (k, v) x 12 heads x 64 x 4 B", "72.00 MiB"}},
    {"qwen3-30b-a3b", 4096, "bf16", 98304, 98304, int64_t{98304} * 4096, {"(96.00 KiB)"}},
};

TEST(Plan, PublishedFiguresComeOutAndAreShownWithTheirFormula) {
  for (const Figure& f : kFigures) {
    SCOPED_TRACE(f.model);
    const ModelPlan plan = Plan(f.model, {.context = f.context, .kv_dtype = f.kv_dtype});
    EXPECT_EQ(plan.published_per_token, f.bytes_per_token);
    EXPECT_EQ(plan.plain_per_token, f.uncompressed);
    EXPECT_EQ(plan.published_at_context, f.uncapped);
    const std::string text = PlanText({plan});
    for (const char* part : f.shown) EXPECT_NE(text.find(part), std::string::npos) << part << text;
  }
}

// 24 GiB hold five sequences of 4K beside the weights of a 7B model if nothing is reserved, and
// four once a step's activations and a reserve are set aside.
TEST(Plan, SevenBillionOn24GiB) {
  const ModelPlan plan = Plan("llama-2-7b", {.memory = int64_t{24} << 30, .context = 4096});
  EXPECT_EQ(plan.weights, 13476831232);
  EXPECT_EQ(plan.outgrown_at, 13476831232 / 524288);
  ASSERT_TRUE(plan.nothing_reserved && plan.by_quire);
  EXPECT_EQ(plan.nothing_reserved->sequences, 5);
  EXPECT_EQ(plan.nothing_reserved->pool, (int64_t{24} << 30) - 13476831232);
  const RoomPlan& room = *plan.by_quire;
  EXPECT_EQ(room.sequences, 4);
  EXPECT_EQ(room.pool, room.budget - room.weights - room.activations - room.reserve);
  ASSERT_EQ(room.pools.size(), 1u);
  EXPECT_EQ(room.pools[0].num_blocks, room.pool / (16 * 524288));
  EXPECT_EQ(room.pools[0].per_sequence, 4096 / 16);
  int64_t sum = 0;
  for (const RoomPlan::Named& part : room.activation_parts) sum += part.bytes;
  EXPECT_EQ(sum, room.activations);
  const std::string text = PlanText({plan});
  EXPECT_NE(text.find("24.00 GiB with nothing reserved"), std::string::npos);
  EXPECT_NE(text.find("24.00 GiB by Quire's rule"), std::string::npos);
}

// With windows capped at their last 127 past tokens: compressed entries and windows are 5.81 GB at
// 2^20 tokens, indexer keys 1.41 GB more.
TEST(Plan, CompressedEntriesWithWindowsCapped) {
  const ModelPlan plan = Plan("deepseek-v4-flash", {.context = 1 << 20});
  int64_t windows = 0, compressed = 0, indexer = 0, total = 0;
  for (const PartPlan& part : plan.parts) {
    const int64_t entries = part.held - part.fixed_bytes;
    total += part.held;
    if (part.part.kind == PartKind::kSliding) windows += entries;
    if (part.part.kind == PartKind::kCompressed) compressed += entries;
    if (part.part.kind == PartKind::kIndexer) indexer += entries;
  }
  EXPECT_EQ(windows, 43 * 127 * 1024);
  EXPECT_EQ(compressed, (21 * 1024 / 4 + 20 * 1024 / 128) * (int64_t{1} << 20));
  EXPECT_EQ(indexer, 21 * 256 / 4 * (int64_t{1} << 20));
  EXPECT_EQ(DecimalText(compressed + windows), "5.81 GB");
  EXPECT_EQ(plan.held_at_context, total);
}

// Sizes as their makers publish them, to the digits published (text models, no draft layers).
TEST(Plan, ParametersOfBuiltInModels) {
  const struct {
    const char* model;
    double billions;
    double digits;  // half a unit of the last published one
  } kRows[] = {
      {"llama-2-7b", 6.738, 0.0005},     {"llama-2-70b", 68.98, 0.005},
      {"llama-3.1-8b", 8.03, 0.005},     {"llama-3.1-70b", 70.6, 0.05},
      {"mistral-7b-v0.1", 7.24, 0.005},  {"gpt2", 0.1244, 0.00005},
      {"smollm2-135m", 0.1345, 0.00005}, {"deepseek-v3", 671, 0.5},
      {"qwen3-30b-a3b", 30.5, 0.05},     {"gpt-oss-120b", 116.8, 0.05},
      {"gemma-3-27b", 27.0, 0.05},       {"jamba-v0.1", 51.6, 0.05},
      {"deepseek-v4-flash", 284, 0.5},
  };
  for (const auto& row : kRows) {
    EXPECT_NEAR(static_cast<double>(Plan(row.model).shape.parameters) / 1e9, row.billions,
                row.digits)
        << row.model;
  }
  for (const BuiltInConfig& config : BuiltInConfigs()) {
    EXPECT_TRUE(LoadShape(std::string(config.name)).ok()) << config.name;
  }
}

// HARD-CASES K04: per-token memory of mixed layers, each kind by hand.
TEST(Plan, K04_MixedLayersAreCountedByTheirKind) {
  const auto read = [](const std::string& more) {
    const std::string text =
        R"({"architectures": ["Gemma3ForCausalLM"], "hidden_size": 64, "num_hidden_layers": 6,
            "vocab_size": 100, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
            "intermediate_size": 128, )" +
        more + "}";
    const absl::StatusOr<ModelShape> shape =
        ReadShape(JsonFields(*Json::Parse(text), "config.json"));
    CHECK(shape.ok(), "{}", shape.status().ToString());
    absl::StatusOr<ModelPlan> plan = PlanModel(*shape, {.context = 1000, .kv_dtype = "f32"});
    CHECK(plan.ok(), "{}", plan.status().ToString());
    return *plan;
  };
  constexpr int64_t kToken = 2 * 2 * 16 * 4;  // of one layer
  const std::string all_full =
      R"("layer_types": ["full_attention","full_attention","full_attention","full_attention",
                         "full_attention","full_attention"])";
  const std::string all_sliding =
      R"("layer_types": ["sliding_attention","sliding_attention","sliding_attention",
                         "sliding_attention","sliding_attention","sliding_attention"])";
  EXPECT_EQ(read(all_full).held_at_context, 6 * 1000 * kToken);
  EXPECT_EQ(read(all_sliding + R"(, "sliding_window": 64)").held_at_context, 6 * 63 * kToken);
  // Pattern absent: every sixth layer is full, as transformers has it.
  const ModelPlan mixed = read(R"("sliding_window": 64)");
  EXPECT_EQ(mixed.held_at_context, (5 * 63 + 1000) * kToken);
  EXPECT_EQ(mixed.published_at_context, 6 * 1000 * kToken);
  EXPECT_EQ(mixed.growth_per_token, kToken);
  // In pages of 16: 63 of 1,000 tokens, and a window of 64 may touch five pages.
  EXPECT_EQ(mixed.paged_at_context, (5 * 5 * 16 + 63 * 16) * kToken);
  // A window longer than the context caps nothing.
  const ModelPlan wide = read(R"("sliding_window": 4096)");
  EXPECT_EQ(wide.held_at_context, 6 * 1000 * kToken);
  EXPECT_EQ(wide.paged_at_context, 6 * 63 * 16 * kToken);
  EXPECT_EQ(Plan("deepseek-v3").published_per_token, (512 + 64) * 61 * 2);
}

// What a window keeps is what the next query will see of the past.
TEST(Plan, CappedEntriesAreWhatTheNextQuerySees) {
  for (const int64_t window : {1, 2, 5, 8}) {
    for (int64_t tokens = 0; tokens < 30; ++tokens) {
      int64_t seen = 0;
      for (int64_t j = 0; j < tokens; ++j) seen += j > tokens - window ? 1 : 0;
      const CachePart sliding{.kind = PartKind::kSliding, .key_dim = 1, .window = window};
      EXPECT_EQ(EntriesAt(sliding, tokens), seen) << window << " " << tokens;
      EXPECT_EQ(EntriesAt(sliding, tokens, false), tokens);
    }
  }
}

// A memory with exactly so much in it.
class FixedMemory : public DeviceMemory {
 public:
  explicit FixedMemory(int64_t bytes) : bytes_(bytes) {}
  absl::StatusOr<MemoryInfo> Read() const override {
    return MemoryInfo{
        .limit = bytes_, .limit_source = "fixed", .available = bytes_, .available_source = "fixed"};
  }

 private:
  int64_t bytes_;
};

// The daemon and a plan with equal room for pages take equal blocks in every pool.
TEST(Plan, BlocksAreThoseTheDaemonTakes) {
  for (const char* name : {"llama", "mistral", "gemma3"}) {
    SCOPED_TRACE(name);
    const std::string path = std::string(QUIRE_TEST_REFERENCE) + "/models/" + name;
    const FixedMemory memory(int64_t{300} << 20);
    RuntimeOptions o;
    o.model = path;
    o.num_threads = 2;
    o.max_num_seqs = 8;
    o.max_num_batched_tokens = 64;
    o.max_model_len = 400;
    o.memory.memory_utilization = 1;
    o.device_memory = &memory;
    const auto runtime = ModelRuntime::Load(o);
    ASSERT_TRUE(runtime.ok()) << runtime.status();
    const MemoryProfile& p = (*runtime)->memory();
    PlanOptions options{.memory = int64_t{300} << 20,
                        .context = 400,
                        .kv_dtype = "f32",
                        .max_num_batched_tokens = 64,
                        .max_num_seqs = 8,
                        .num_threads = (*runtime)->num_threads(),
                        .memory_utilization = 1};
    options.memory += Plan(path, options).weights - p.weights;  // packed weights are padded
    const ModelPlan plan = Plan(path, options);
    EXPECT_EQ(plan.by_quire->pool, p.budget - p.weights - p.activation_peak - p.reserve);
    ASSERT_EQ(plan.by_quire->pools.size(), p.pools.size());
    for (size_t i = 0; i < p.pools.size(); ++i) {
      EXPECT_EQ(plan.by_quire->pools[i].num_blocks, p.pools[i].num_blocks) << i;
      EXPECT_EQ(plan.by_quire->pools[i].block_bytes, p.pools[i].block_bytes) << i;
    }
  }
}

// The daemon's own profile of the same model: activations by purpose, reserve and bytes per token.
TEST(Plan, IsWhatTheDaemonMeasures) {
  for (const char* name : {"llama", "mistral", "gemma3"}) {
    SCOPED_TRACE(name);
    const std::string path = std::string(QUIRE_TEST_REFERENCE) + "/models/" + name;
    RuntimeOptions o;
    o.model = path;
    o.num_threads = 2;
    o.max_num_seqs = 8;
    o.max_num_batched_tokens = 64;
    o.memory.num_blocks = 40;
    const auto runtime = ModelRuntime::Load(o);
    ASSERT_TRUE(runtime.ok()) << runtime.status();
    const MemoryProfile& p = (*runtime)->memory();
    const ModelPlan plan = Plan(path, {.memory = int64_t{1} << 30,
                                       .context = 512,
                                       .kv_dtype = "f32",
                                       .max_num_batched_tokens = 64,
                                       .max_num_seqs = 8,
                                       .num_threads = (*runtime)->num_threads()});
    EXPECT_EQ(plan.by_quire->activations, p.activation_peak);
    EXPECT_EQ(plan.by_quire->reserve, p.reserve);
    EXPECT_EQ(plan.growth_per_token, static_cast<double>(p.bytes_per_token));
  }
}

TEST(Plan, AGgufFileGivesWhatItsConfigGives) {
  const std::string folder = std::string(QUIRE_TEST_REFERENCE) + "/models/";
  const ModelPlan gguf = Plan(folder + "llama-gguf/model.gguf");
  const ModelPlan config = Plan(folder + "llama");
  EXPECT_EQ(gguf.shape.parameters, config.shape.parameters);
  EXPECT_EQ(gguf.published_per_token, config.published_per_token);
  EXPECT_EQ(gguf.context, config.context);
  EXPECT_EQ(gguf.shape.activations.mlp_dim, config.shape.activations.mlp_dim);
  EXPECT_EQ(gguf.shape.activations.vocab_size, config.shape.activations.vocab_size);
  EXPECT_EQ(gguf.weights, gguf.shape.parameters * 4);  // float32 in the file
}

TEST(Plan, FormatsOfWeightsAndCache) {
  const auto bytes = [](const char* kv) {
    return Plan("llama-2-7b", {.kv_dtype = kv}).published_per_token;
  };
  EXPECT_EQ(bytes("f32"), 2 * bytes("bf16"));
  EXPECT_EQ(bytes("float16"), bytes("bf16"));
  EXPECT_EQ(bytes("fp8"), bytes("bf16") / 2);
  EXPECT_EQ(bytes("int8"), bytes("fp8") + 32 * 2 * 32 * 2);  // a scale per head's key and value
  const auto weights = [](const char* type) {
    return Plan("llama-2-7b", {.weight_dtype = type}).weights;
  };
  EXPECT_EQ(weights("int8"), weights("f32") / 128 * 34);  // 32 values and a scale of 2 bytes
  EXPECT_EQ(weights("int4"), weights("f32") / 128 * 18);
  EXPECT_EQ(Plan("deepseek-v3").weights, 671026404352);  // its config says fp8
}

TEST(Plan, SeveralModelsAreColumns) {
  const std::string text =
      PlanText({Plan("llama-2-7b"), Plan("deepseek-v3"), Plan("qwen3.5-35b-a3b")});
  const std::string first = text.substr(0, text.find('\n'));
  for (const char* name : {"llama-2-7b", "deepseek-v3", "qwen3.5-35b-a3b"}) {
    EXPECT_NE(first.find(name), std::string::npos);
  }
  // A kind that only some have is a line with gaps.
  const size_t latent = text.find("\n  latent");
  ASSERT_NE(latent, std::string::npos);
  const std::string line = text.substr(latent + 1, text.find('\n', latent + 1) - latent - 1);
  EXPECT_NE(line.find("70,272 B"), std::string::npos);
  EXPECT_NE(line.find(" - "), std::string::npos);
}

TEST(Plan, JsonHasTheSameNumbers) {
  const ModelPlan plan = Plan("llama-2-7b", {.memory = int64_t{24} << 30, .concurrency = 5});
  const absl::StatusOr<Json> json = Json::Parse(PlanJson({plan, Plan("gpt2")}));
  ASSERT_TRUE(json.ok()) << json.status();
  ASSERT_EQ(json->size(), 2u);
  const Json first = json->at(0);
  EXPECT_EQ(first["bytes_per_token"].as_int(), 524288);
  EXPECT_EQ(first["weight_bytes"].as_int(), plan.weights);
  EXPECT_EQ(first["parts"].at(0)["formula"].as_string(), plan.parts[0].formula);
  EXPECT_EQ(first["concurrency"].as_int(), 5);
  EXPECT_EQ(first["all_sequences_bytes"].as_int(), int64_t{5} << 31);
  EXPECT_EQ(first["nothing_reserved"]["sequences"].as_int(), 5);
  EXPECT_EQ(first["nothing_reserved"]["fits"].as_bool(), true);
  EXPECT_EQ(first["quire"]["sequences"].as_int(), 4);
  EXPECT_EQ(first["quire"]["fits"].as_bool(), false);
  EXPECT_TRUE(json->at(1)["quire"].is_null());  // no memory given to that one
}

TEST(Plan, StatesNeverOutgrowTheWeights) {
  const std::string text =
      R"({"architectures": ["Mamba2ForCausalLM"], "hidden_size": 64, "num_hidden_layers": 2,
          "vocab_size": 100, "num_heads": 4, "state_size": 16})";
  const auto shape = ReadShape(JsonFields(*Json::Parse(text), "config.json"));
  ASSERT_TRUE(shape.ok()) << shape.status();
  const auto plan = PlanModel(*shape, {.memory = 1 << 30});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->outgrown_at, 0);
  // 128 channels x 16, float32; 160 convolved ones x 3 columns, 2 bytes; two layers.
  EXPECT_EQ(plan->held_at_context, 2 * (128 * 16 * 4 + 160 * 3 * 2));
  EXPECT_EQ(plan->nothing_reserved->sequences,
            plan->nothing_reserved->pool / plan->held_at_context);
  // The daemon keeps snapshots beside the state it works on.
  EXPECT_GT(plan->paged_at_context, plan->held_at_context);
  EXPECT_LT(plan->by_quire->sequences, plan->nothing_reserved->sequences);
  EXPECT_NE(PlanText({*plan}).find("never"), std::string::npos);
}

TEST(Plan, WrongOptionsAreNamed) {
  const absl::StatusOr<ModelShape> shape = LoadShape("llama-2-7b");
  ASSERT_TRUE(shape.ok());
  const struct {
    PlanOptions options;
    const char* names;
  } kRows[] = {
      {{.kv_dtype = "int3"}, "kv_dtype=int3"},
      {{.weight_dtype = "q9"}, "weight_dtype=q9"},
      {{.memory_utilization = 1.5}, "memory_utilization=1.5"},
      {{.max_num_batched_tokens = 0}, "max_num_batched_tokens=0"},
      {{.context = -1}, "context=-1"},
  };
  for (const auto& row : kRows) {
    const auto plan = PlanModel(*shape, row.options);
    ASSERT_FALSE(plan.ok()) << row.names;
    EXPECT_EQ(plan.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(Message(plan.status()).find(row.names), std::string::npos) << plan.status();
  }
  const auto missing = LoadShape("no-such-model");
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kNotFound);
  EXPECT_NE(Message(missing.status()).find("llama-2-7b"), std::string::npos);
}

TEST(PlanUnits, ReadAndWritten) {
  EXPECT_EQ(*ParseBytes("memory", "24GiB"), int64_t{24} << 30);
  EXPECT_EQ(*ParseBytes("memory", "80 GB"), 80000000000);
  EXPECT_EQ(*ParseBytes("memory", "1.5TiB"), int64_t{3} << 39);
  EXPECT_EQ(*ParseBytes("memory", "4096"), 4096);
  for (const char* text : {"", "GiB", "-1GiB", "24Gib", "1e400", "0", "nan", "9999999TiB"}) {
    EXPECT_FALSE(ParseBytes("memory", text).ok()) << text;
  }
  EXPECT_EQ(*ParseTokens("context", "256K"), 262144);
  EXPECT_EQ(*ParseTokens("context", "1M"), 1048576);
  EXPECT_EQ(*ParseTokens("context", "4096"), 4096);
  for (const char* text : {"", "K", "0", "1.0001", "4096x", "1025M"}) {
    EXPECT_FALSE(ParseTokens("context", text).ok()) << text;
  }
  EXPECT_EQ(WithCommas(1234567), "1,234,567");
  EXPECT_EQ(WithCommas(-999), "-999");
  EXPECT_EQ(BytesText(524288), "524,288 B (512 KiB)");
  EXPECT_EQ(BytesText(int64_t{2} << 30), "2.00 GiB (2.15 GB)");
}

}  // namespace
}  // namespace quire
