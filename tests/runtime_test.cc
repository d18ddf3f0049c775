// tests/runtime_test.cc -- from a checkpoint's path to a sized pool: the profile adds up, a real
// worst-case step stays within it (contract C4), and what cannot work is refused by name.
#include "models/runtime.h"

#include <gtest/gtest.h>

#include "models/executor.h"
#include "scheduler/scheduler.h"

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
  for (const char* attention : {"flash", "eager"}) {
    RuntimeOptions o = Small();
    o.attention = attention;
    o.memory.num_blocks = 300;
    auto loaded = ModelRuntime::Load(o);
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    ModelRuntime& runtime = **loaded;
    SchedulerOptions options;
    options.max_num_seqs = o.max_num_seqs;
    options.max_num_batched_tokens = o.max_num_batched_tokens;
    options.max_model_len = runtime.max_model_len();
    options.enable_prefix_caching = false;
    Scheduler scheduler(options, runtime.block_manager());
    std::vector<TokenEvent> events;
    // Prompts as long as the model allows, all at once: steps of a full budget beside long
    // contexts, then eight rows of logits over the longest contexts.
    for (RequestId id = 1; id <= 8; ++id) {
      auto request = std::make_shared<Request>();
      request->id = id;
      request->prompt.assign(static_cast<size_t>(runtime.max_model_len()) - 200,
                             static_cast<TokenId>(id));
      request->sampling.num_logprobs = 20;
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
      most_rows = std::max(most_rows, out->rows.size());
      scheduler.Commit(batch, *out, events);
    }
    EXPECT_EQ(largest_step, o.max_num_batched_tokens);
    EXPECT_EQ(most_rows, 8u);
    const auto& executor = static_cast<const ModelExecutor&>(runtime.executor());
    EXPECT_LE(static_cast<int64_t>(executor.arena_peak()), runtime.memory().activation_peak);
    EXPECT_GT(static_cast<int64_t>(executor.arena_peak()), runtime.memory().activation_peak / 2);
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
  for (const char* dtype : {"float32", "bfloat16", "float16"}) {
    RuntimeOptions o = Small();
    o.kv_cache_dtype = dtype;
    const auto runtime = ModelRuntime::Load(o);
    ASSERT_TRUE(runtime.ok()) << runtime.status();
    EXPECT_EQ((*runtime)->kv_cache_dtype(), dtype);
    EXPECT_EQ((*runtime)->memory().bytes_per_token,
              3 * 2 * 2 * 16 * (std::string(dtype) == "float32" ? 4 : 2));
  }
}

}  // namespace
}  // namespace quire
