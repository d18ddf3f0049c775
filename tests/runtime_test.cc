// tests/runtime_test.cc -- from a checkpoint's path to a sized pool: the profile adds up, a real
// worst-case step stays within it (contract C4), and what cannot work is refused by name.
#include "models/runtime.h"

#include <gtest/gtest.h>

#include <limits>

#include "models/executor.h"
#include "scheduler/scheduler.h"
#include "tests/support/edited_model.h"

namespace quire {
namespace {

std::string Model(const std::string& name) {
  return std::string(QUIRE_TEST_REFERENCE) + "/models/" + name;
}

RuntimeOptions Small() {
  RuntimeOptions o;
  o.model = Model("llama");
  o.num_threads = 2;
  o.max_num_seqs = 8;
  o.max_num_batched_tokens = 64;
  o.memory.num_blocks = 40;
  return o;
}

TEST(Runtime, ProfileAddsUp) {
  RuntimeOptions o = Small();
  o.memory = {.memory_utilization = 0.25};
  const auto runtime = ModelRuntime::Load(o);
  ASSERT_TRUE(runtime.ok()) << runtime.status();
  const MemoryProfile& p = (*runtime)->memory();
  // 3 layers, keys and values, 2 heads of 16, float32.
  EXPECT_EQ(p.bytes_per_token, 3 * 2 * 2 * 16 * 4);
  EXPECT_EQ(p.block_bytes, p.bytes_per_token * 16);
  EXPECT_EQ(p.kv_pool, p.num_blocks * p.block_bytes);
  EXPECT_LE(p.budget, p.limit / 4);
  const int64_t room = p.budget - p.weights - p.activation_peak - p.reserve;
  EXPECT_LE(p.kv_pool, room);
  EXPECT_GT(p.kv_pool + p.block_bytes, room);
  EXPECT_EQ((*runtime)->block_manager().pools()[0].num_usable(), p.num_blocks);
  for (const char* part : {"weights", "activations", "reserve", "kv pool"}) {
    EXPECT_NE(p.ToString().find(part), std::string::npos) << part;
  }
}

TEST(Runtime, OverridesAreTakenAsTheyAre) {
  RuntimeOptions o = Small();
  auto runtime = ModelRuntime::Load(o);
  ASSERT_TRUE(runtime.ok()) << runtime.status();
  EXPECT_EQ((*runtime)->memory().num_blocks, 40);
  EXPECT_EQ((*runtime)->max_model_len(), 512);  // min(the model's 512, 40 * 16)
  o.memory = {.kv_cache_memory_bytes = 10 * 16 * 768};
  runtime = ModelRuntime::Load(o);
  ASSERT_TRUE(runtime.ok()) << runtime.status();
  EXPECT_EQ((*runtime)->memory().num_blocks, 10);
  EXPECT_EQ((*runtime)->max_model_len(), 160);  // capped by the pool
}

// The worst step that the options allow, run for real in an arena of the profile's size. The arena
// aborts beyond its capacity, so finishing is the proof; the peak shows that the figure is not
// slack.
TEST(Runtime, AWorstCaseStepStaysWithinTheProfile) {
  for (const auto& [model, attention] : {std::pair{"llama", "flash"},
                                         {"llama", "eager"},
                                         {"llama", "sdpa"},
                                         {"llama", "flex"},
                                         {"mistral", "sdpa"},
                                         {"mistral", "flash"},
                                         {"gemma3", "flash"},
                                         {"gemma3", "eager"}}) {
    SCOPED_TRACE(fmt::format("{} {}", model, attention));
    RuntimeOptions o = Small();
    o.model = Model(model);
    o.attention = attention;
    o.memory.num_blocks = 600;  // room for all, in every group
    o.max_logit_rows = 24;
    auto loaded = ModelRuntime::Load(o);
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    ModelRuntime& runtime = **loaded;
    SchedulerOptions options;
    options.max_num_seqs = o.max_num_seqs;
    options.max_num_batched_tokens = o.max_num_batched_tokens;
    options.max_logit_rows = o.max_logit_rows;
    options.max_model_len = runtime.max_model_len();
    options.enable_prefix_caching = false;
    Scheduler scheduler(options, runtime.block_manager());
    std::vector<TokenEvent> events;
    // Prompts as long as the model allows, all at once: steps of a full budget beside long
    // contexts, then eight rows of logits over the longest contexts. One asks for logprobs of its
    // prompt, which fill all rows.
    for (RequestId id = 1; id <= 8; ++id) {
      auto request = std::make_shared<Request>();
      request->id = id;
      request->prompt.assign(static_cast<size_t>(runtime.max_model_len()) - 200,
                             static_cast<TokenId>(id));
      request->sampling.num_logprobs = 20;
      request->prompt_logprobs = id == 8 ? 20 : -1;
      request->stop.max_tokens = 200;
      scheduler.Apply(Submit{request}, events);
    }
    int32_t largest_step = 0;
    size_t most_rows = 0;
    while (!scheduler.idle()) {
      const ScheduledBatch batch = scheduler.Schedule(events);
      const absl::StatusOr<StepOutput> out = runtime.executor().Run(batch);
      ASSERT_TRUE(out.ok()) << out.status();
      largest_step = std::max(largest_step, batch.num_tokens);
      most_rows = std::max(most_rows, out->rows.size() + out->prompt_rows.size());
      scheduler.Commit(batch, *out, events);
    }
    EXPECT_EQ(largest_step, o.max_num_batched_tokens);
    EXPECT_EQ(most_rows, 24u);
    const auto& executor = static_cast<const ModelExecutor&>(runtime.executor());
    EXPECT_LE(static_cast<int64_t>(executor.arena_peak()), runtime.memory().activation_peak);
    EXPECT_GT(static_cast<int64_t>(executor.arena_peak()), runtime.memory().activation_peak / 2);
  }
}

// Bytes and capacity by hand, per kind of model. A page of one layer has keys and values of 2 heads
// of 16 in float32 for 16 tokens: 4,096 bytes. A step computes up to 64 tokens, so a window of w
// touches at most (w - 1 + 64 + 15) / 16 + 1 pages, and no more than the sequence has.
struct Capacity {
  const char* name;
  std::string model;
  int32_t num_blocks;
  int64_t block_bytes;
  int64_t kv_pool;
  int64_t bytes_per_token;  // that grow with the sequence
  int32_t max_model_len;
};

TEST(Runtime, K04_MixedLayersAreCountedAsTheyAreHeld) {
  const Capacity rows[] = {
      // 3 full layers in one group: 10 blocks are 160 tokens.
      {"all full", Model("llama"), 10, 3 * 4096, 10 * 3 * 4096, 3 * 256, 160},
      // 3 layers of window 16: never more than 6 pages, so the model's own limit stands.
      {"all windowed", Model("mistral"), 10, 3 * 4096, 10 * 3 * 4096, 0, 512},
      {"all windowed, least", Model("mistral"), 6, 3 * 4096, 6 * 3 * 4096, 0, 512},
      {"all windowed, less", Model("mistral"), 5, 3 * 4096, 5 * 3 * 4096, 0, 80},
      // 5 layers of window 12 and a full one, groups of one layer each in one pool: 40 blocks are
      // 10
      // full pages and 5 times 6 of the windows.
      {"five to one", Model("gemma3"), 40, 4096, 40 * 4096, 256, 160},
      {"five to one, short", Model("gemma3"), 30, 4096, 30 * 4096, 256, 80},
      // No sequence outgrows a window of 4,096: the layers are full ones.
      {"window beyond the longest", EditedModel("mistral", "wide", {{"sliding_window", "4096"}}),
       10, 3 * 4096, 10 * 3 * 4096, 3 * 256, 160},
      // 9 layers of window 12, 2 full ones: 10 pages of 2 layers are 160 tokens; of the windows' 9
      // the longest sequence needs 6, but the mix is 8 sequences of a block or two, which is more:
      // 8 times 1, and one step's 4.
      {"two pools",
       EditedModel("gemma3", "two-pools", {{"layer_types", ""}, {"sliding_window_pattern", "5"}},
                   11),
       10, 2 * 4096, 10 * 2 * 4096 + (8 + 4) * 9 * 4096, 2 * 256, 160},
  };
  for (const Capacity& row : rows) {
    SCOPED_TRACE(row.name);
    RuntimeOptions o = Small();
    o.model = row.model;
    o.memory.num_blocks = row.num_blocks;
    const auto loaded = ModelRuntime::Load(o);
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    ModelRuntime& runtime = **loaded;
    EXPECT_EQ(runtime.memory().num_blocks, row.num_blocks);
    EXPECT_EQ(runtime.memory().block_bytes, row.block_bytes);
    EXPECT_EQ(runtime.memory().kv_pool, row.kv_pool);
    EXPECT_EQ(runtime.memory().bytes_per_token, row.bytes_per_token);
    ASSERT_EQ(runtime.max_model_len(), row.max_model_len);

    SchedulerOptions options;
    options.max_num_seqs = o.max_num_seqs;
    options.max_num_batched_tokens = o.max_num_batched_tokens;
    options.max_model_len = 512;
    Scheduler scheduler(options, runtime.block_manager());
    std::vector<TokenEvent> events;
    const auto submit = [&](RequestId id, int32_t tokens) {
      auto request = std::make_shared<Request>();
      request->id = id;
      request->prompt.assign(static_cast<size_t>(tokens) - 8, 7);
      request->stop.max_tokens = 8;
      scheduler.Apply(Submit{request}, events);
    };
    submit(1, row.max_model_len);
    EXPECT_TRUE(events.empty()) << "not refused";
    int32_t most_used = 0;
    while (!scheduler.idle()) {
      const ScheduledBatch batch = scheduler.Schedule(events);
      const absl::StatusOr<StepOutput> out = runtime.executor().Run(batch);
      ASSERT_TRUE(out.ok()) << out.status();
      most_used = std::max(most_used, runtime.block_manager().pools()[0].num_active());
      scheduler.Commit(batch, *out, events);
    }
    EXPECT_EQ(scheduler.stats().num_finished(FinishReason::kLength), 1);
    EXPECT_EQ(scheduler.stats().preemptions, 0);
    EXPECT_GT(most_used, 0);
    if (row.max_model_len == 512) continue;
    events.clear();
    submit(2, row.max_model_len + 1);
    ASSERT_EQ(events.size(), 1u);
    EXPECT_EQ(events[0].error.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(Message(events[0].error).find("num_blocks"), std::string::npos) << events[0].error;
  }
}

TEST(Runtime, SeveralPoolsAddUp) {
  RuntimeOptions o = Small();
  o.model = EditedModel("gemma3", "two-pools",
                        {{"layer_types", ""}, {"sliding_window_pattern", "5"}}, 11);
  o.memory = {.memory_utilization = 0.25};
  const auto runtime = ModelRuntime::Load(o);
  ASSERT_TRUE(runtime.ok()) << runtime.status();
  const MemoryProfile& p = (*runtime)->memory();
  ASSERT_EQ(p.pools.size(), 2u);
  int64_t sum = 0;
  for (size_t i = 0; i < 2; ++i) {
    sum += p.pools[i].num_blocks * p.pools[i].block_bytes;
    EXPECT_EQ((*runtime)->block_manager().pools()[i].num_usable(), p.pools[i].num_blocks);
  }
  EXPECT_EQ(p.kv_pool, sum);
  const int64_t room = p.budget - p.weights - p.activation_peak - p.reserve;
  EXPECT_LE(p.kv_pool, room);
  // One block more of the main pool, and what goes with it in the other, would not fit.
  EXPECT_GT(p.kv_pool + (2 + 9) * 4096, room);
  EXPECT_NE(p.ToString().find("pool 1"), std::string::npos) << p.ToString();
}

TEST(Runtime, APoolForNobodyIsRefused) {
  RuntimeOptions o = Small();
  o.model = Model("gemma3");
  o.memory.num_blocks = 5;  // one token takes a page in each of six groups
  const auto runtime = ModelRuntime::Load(o);
  EXPECT_EQ(runtime.status().code(), absl::StatusCode::kInvalidArgument);
  for (const char* word : {"num_blocks=5", "takes 6", "raise"}) {
    EXPECT_NE(Message(runtime.status()).find(word), std::string::npos) << runtime.status();
  }
}

struct Refusal {
  const char* name;
  void (*edit)(RuntimeOptions&);
  absl::StatusCode code;
  std::vector<std::string> words;  // field, value, limit or remedy
};

TEST(Runtime, RefusesWithFieldValueAndRemedy) {
  const Refusal refusals[] = {
      {"attention",
       [](RuntimeOptions& o) { o.attention = "flahs"; },
       absl::StatusCode::kInvalidArgument,
       {"flahs", "flash", "eager"}},
      {"isa",
       [](RuntimeOptions& o) { o.cpu_isa = "neon"; },
       absl::StatusCode::kInvalidArgument,
       {"neon", "portable"}},
      {"kv dtype",
       [](RuntimeOptions& o) { o.kv_cache_dtype = "fp8"; },
       absl::StatusCode::kInvalidArgument,
       {"kv_cache_dtype=fp8", "float32"}},
      {"block size",
       [](RuntimeOptions& o) { o.block_size = 12; },
       absl::StatusCode::kInvalidArgument,
       {"12"}},
      {"model length",
       [](RuntimeOptions& o) { o.max_model_len = 513; },
       absl::StatusCode::kInvalidArgument,
       {"max_model_len=513", "512"}},
      {"pool",
       [](RuntimeOptions& o) { o.memory.num_blocks = 1 << 30; },
       absl::StatusCode::kResourceExhausted,
       {"num_blocks=1073741824", "MiB", "lower"}},
      {"no room",
       [](RuntimeOptions& o) { o.memory = {.memory_utilization = 1e-9}; },
       absl::StatusCode::kResourceExhausted,
       {"memory_utilization", "raise"}},
      {"no file",
       [](RuntimeOptions& o) { o.model = "no/such/model"; },
       absl::StatusCode::kNotFound,
       {"no/such/model"}},
  };
  for (const Refusal& r : refusals) {
    RuntimeOptions o = Small();
    r.edit(o);
    const auto runtime = ModelRuntime::Load(o);
    EXPECT_EQ(runtime.status().code(), r.code) << r.name << ": " << runtime.status();
    for (const std::string& word : r.words) {
      EXPECT_NE(Message(runtime.status()).find(word), std::string::npos)
          << r.name << ": " << runtime.status() << " lacks " << word;
    }
  }
}

TEST(Runtime, KvCacheTypesServe) {
  // Bytes of a head's key: 16 values, or 16 codes and a scale.
  const std::map<std::string, int> head_bytes = {
      {"float32", 64}, {"bfloat16", 32}, {"float16", 32}, {"int8", 18}};
  for (const auto& [dtype, bytes] : head_bytes) {
    RuntimeOptions o = Small();
    o.kv_cache_dtype = dtype;
    const auto runtime = ModelRuntime::Load(o);
    ASSERT_TRUE(runtime.ok()) << runtime.status();
    EXPECT_EQ((*runtime)->kv_cache_dtype(), dtype);
    EXPECT_EQ((*runtime)->memory().bytes_per_token, 3 * 2 * 2 * bytes);
  }
}

// Of the model's matrices those with rows of 64 values change, those of 48 don't.
TEST(Runtime, QuantizationAtLoad) {
  int64_t last = std::numeric_limits<int64_t>::max();
  for (const char* name : {"none", "int8", "int4"}) {
    RuntimeOptions o = Small();
    o.quantization = name;
    const auto runtime = ModelRuntime::Load(o);
    ASSERT_TRUE(runtime.ok()) << runtime.status();
    EXPECT_LT((*runtime)->memory().weights, last) << name;
    last = (*runtime)->memory().weights;
    EXPECT_EQ(
        (*runtime)->weight_format().find(std::string("loaded as ") + name) != std::string::npos,
        std::string_view(name) != "none")
        << (*runtime)->weight_format();
  }
  RuntimeOptions o = Small();
  o.quantization = "awq";
  EXPECT_NE(Message(ModelRuntime::Load(o).status()).find("quantization=awq"), std::string::npos);
}

}  // namespace
}  // namespace quire
