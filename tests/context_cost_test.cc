// Bytes and counts of a token over context, on a tiny model; the fit on made-up times.
#include "bench/context_cost.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

namespace quire {
namespace {

std::unique_ptr<ModelRuntime> Tiny(int32_t num_blocks) {
  RuntimeOptions options;
  options.model = std::string(QUIRE_TEST_REFERENCE) + "/models/llama";
  options.num_threads = 2;
  options.max_num_seqs = 8;
  options.max_num_batched_tokens = 64;
  options.memory.num_blocks = num_blocks;
  auto runtime = ModelRuntime::Load(options);
  EXPECT_TRUE(runtime.ok()) << runtime.status();
  return *std::move(runtime);
}

// 3 layers of 2 kv heads of 16 dimensions in float32, by the model's config.json: a token has
// 3 x 2 x 32 x 4 bytes of keys and values.
TEST(ContextCost, ReadsWhatIsInTheCacheAndTheTokenItself) {
  const std::unique_ptr<ModelRuntime> runtime = Tiny(200);
  // 200 is more than a step's 64 tokens; steps cross a page's end.
  const auto costs = MeasureContexts(*runtime, {.contexts = {5, 62, 200},
                                                .recompute_tokens = 100,
                                                .rounds = 2,
                                                .steps = 3,
                                                .max_batched_tokens = 64});
  ASSERT_TRUE(costs.ok()) << costs.status();
  ASSERT_EQ(costs->contexts.size(), 3u);
  EXPECT_EQ(costs->recompute_us.size(), 2u);
  for (const ContextCost& c : costs->contexts) {
    EXPECT_EQ(c.step_us.size(), 6u) << c.context;
    EXPECT_EQ(c.attention_us.size(), 2u) << c.context;
    // The mean of context + 1, + 2, + 3 keys.
    EXPECT_DOUBLE_EQ(c.kv_bytes, (c.context + 2) * 3 * 2 * 32 * 4) << c.context;
  }
  EXPECT_NEAR(FitContexts(*costs).kv_bytes_per_token, 3 * 2 * 32 * 4, 1e-9);
  EXPECT_EQ(std::as_const(runtime->block_manager()).pools()[0].num_active(), 0);
}

TEST(ContextCost, RefusesWhatDoesNotFit) {
  const std::unique_ptr<ModelRuntime> runtime = Tiny(20);
  const int32_t most = runtime->max_model_len();
  const auto too_long = MeasureContexts(*runtime, {.contexts = {most}, .steps = 1});
  EXPECT_EQ(too_long.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(too_long.status().message().find("context=" + std::to_string(most)), std::string::npos);
  const auto no_room = MeasureContexts(*runtime, {.contexts = {100, 200, 210},
                                                  .recompute_tokens = 0,
                                                  .rounds = 1,
                                                  .steps = 1,
                                                  .max_batched_tokens = 64});
  EXPECT_EQ(no_room.status().code(), absl::StatusCode::kResourceExhausted) << no_room.status();
  EXPECT_EQ(std::as_const(runtime->block_manager()).pools()[0].num_active(), 0);
}

TEST(ContextCost, TheRateIsBytesByTheSlope) {
  ContextCosts costs;
  for (const int32_t context : {100, 200, 400}) {
    // 2000 bytes a token; a step grows by 0.5 us, its attention by 0.4 us. One step was disturbed.
    costs.contexts.push_back({.context = context,
                              .step_us = {900.0 + 0.5 * context, 900.0 + 0.5 * context, 9e6},
                              .attention_us = {50 + 0.4 * context},
                              .kv_bytes = 2000.0 * (context + 1)});
  }
  const ContextFit fit = FitContexts(costs);
  EXPECT_NEAR(fit.step_us.slope, 0.5, 1e-9);
  EXPECT_NEAR(fit.step_us.intercept, 900, 1e-6);
  EXPECT_NEAR(fit.kv_bytes_per_token, 2000, 1e-9);
  EXPECT_NEAR(fit.slope_gb_s, 4, 1e-9);      // 2000 bytes in 0.5 us
  EXPECT_NEAR(fit.attention_gb_s, 5, 1e-9);  // in 0.4 us
}

}  // namespace
}  // namespace quire
