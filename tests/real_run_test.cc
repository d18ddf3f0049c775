// A simulation's other side, on a tiny real model: measured steps and runs in real time. What they
// take is not looked at here.
#include "bench/simulation/real_run.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "bench/simulation/measure_steps.h"
#include "bench/simulation/trace_generator.h"

namespace quire {
namespace {

std::unique_ptr<ModelRuntime> Tiny(int32_t num_blocks) {
  RuntimeOptions options;
  options.model = std::string(QUIRE_TEST_REFERENCE) + "/models/llama";
  options.num_threads = 1;
  options.max_num_seqs = 8;
  options.max_num_batched_tokens = 64;
  options.memory.num_blocks = num_blocks;
  auto runtime = ModelRuntime::Load(options);
  EXPECT_TRUE(runtime.ok()) << runtime.status();
  return *std::move(runtime);
}

SimulationConfig TinyConfig(const ModelRuntime& runtime) {
  SimulationConfig config;
  config.scheduler.max_num_seqs = 8;
  config.scheduler.max_num_batched_tokens = 64;
  config.scheduler.max_model_len = runtime.max_model_len();
  config.scheduler.enable_prefix_caching = false;
  return config;
}

TEST(MeasureSteps, EachSequenceHasPagesOfItsOwnForAllItsTokens) {
  const std::unique_ptr<ModelRuntime> runtime = Tiny(400);
  const PagePool& pool = runtime->block_manager().pools()[0];
  const int64_t taken_before = pool.stats().taken;
  const auto steps = MeasureSteps(
      *runtime,
      {.max_num_seqs = 8, .max_num_batched_tokens = 64, .max_context = 300, .repeats = 1});
  ASSERT_TRUE(steps.ok()) << steps.status();
  // Decodes of 1, 2, 3, 4, 6, 8 sequences after 32 and 256 tokens, chunks of 16, 32, 64 at the
  // start, two chunks of 32, and decodes with copies.
  EXPECT_EQ(steps->size(), 6u * 2 + 3 + 1 + 2);
  int64_t pages = 0;
  bool copies = false;
  for (const MeasuredStep& step : *steps) {
    EXPECT_GT(step.us, 0);
    copies = copies || step.shape.copies > 0;
    const bool is_decode = step.shape.decode_tokens > 0;
    // Of equal sequences the keys of one tell their length.
    const double keys = step.shape.decode_keys / step.shape.seqs;
    const double tokens = is_decode ? keys : step.shape.prefill_tokens / step.shape.seqs;
    pages += static_cast<int64_t>(step.shape.seqs) * ((static_cast<int64_t>(tokens) + 15) / 16);
  }
  EXPECT_TRUE(copies);
  EXPECT_EQ(pool.stats().taken - taken_before, pages);
  EXPECT_EQ(pool.num_active(), 0);
}

TEST(RunForReal, RequestsAnswerAndStepsAddUp) {
  const std::unique_ptr<ModelRuntime> runtime = Tiny(200);
  const SimulationConfig config = TinyConfig(*runtime);
  const TraceSpec spec{.requests = 30,
                       .rate = 2000,
                       .prompt_min = 10,
                       .prompt_max = 100,
                       .output_min = 1,
                       .output_max = 20};
  const auto run = RunForReal(config, *runtime, **GenerateTrace(spec));
  ASSERT_TRUE(run.ok()) << run.status();
  ASSERT_EQ(run->traces.size(), 30u);
  const std::unique_ptr<TraceSource> again = *GenerateTrace(spec);
  int64_t tokens = 0, rows = 0;
  TraceRequest r;
  for (const RequestTrace& trace : run->traces) {
    ASSERT_TRUE(*again->Next(r));
    EXPECT_EQ(trace.prompt_tokens, NumPromptTokens(r));
    EXPECT_EQ(trace.token_us.size(), static_cast<size_t>(r.output_tokens));
    EXPECT_EQ(trace.sent_us, r.arrival_us);
    EXPECT_GE(trace.token_us.front(), trace.sent_us);
    tokens += trace.prompt_tokens + r.output_tokens - 1;
    rows += r.output_tokens;
  }
  for (const MeasuredStep& step : run->steps) {
    tokens -= static_cast<int64_t>(step.shape.prefill_tokens + step.shape.decode_tokens);
    rows -= static_cast<int64_t>(step.shape.rows);
    EXPECT_GT(step.us, 0);
  }
  EXPECT_EQ(tokens, 0);
  EXPECT_EQ(rows, 0);
  EXPECT_EQ(runtime->block_manager().pools()[0].num_active(), 0);
}

TEST(RunForReal, ARequestThatCanNeverFitIsAnError) {
  const std::unique_ptr<ModelRuntime> runtime = Tiny(200);
  const TraceSpec spec{.requests = 1, .rate = 1000, .output_min = 1 << 19, .output_max = 1 << 19};
  const auto run = RunForReal(TinyConfig(*runtime), *runtime, **GenerateTrace(spec));
  ASSERT_FALSE(run.ok());
  EXPECT_NE(Message(run.status()).find("max_tokens=524288"), std::string::npos) << run.status();
}

}  // namespace
}  // namespace quire
