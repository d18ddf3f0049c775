// A workload through a tiny real model: what the decoder and the executor tell the profile.
#include "bench/ops_run.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

namespace quire {
namespace {

using kernels::Op;
using kernels::StepKind;

std::unique_ptr<ModelRuntime> Tiny(const std::string& model) {
  RuntimeOptions options;
  options.model = std::string(QUIRE_TEST_REFERENCE) + "/models/" + model;
  options.num_threads = 2;
  options.max_num_seqs = 8;
  options.max_num_batched_tokens = 64;
  options.memory.num_blocks = 400;
  auto runtime = ModelRuntime::Load(options);
  EXPECT_TRUE(runtime.ok()) << runtime.status();
  return *std::move(runtime);
}

Workload TwoPrompts() {
  return {.name = "two",
          .prompts = {std::vector<TokenId>(20, 7), std::vector<TokenId>(30, 9)},
          .max_tokens = 5,
          .concurrency = 2};
}

constexpr OpsRunOptions kOptions = {.max_num_seqs = 8, .max_num_batched_tokens = 64};

TEST(OpsRun, EveryOperationOfEveryLayerIsThere) {
  const std::unique_ptr<ModelRuntime> runtime = Tiny("llama");
  kernels::OpProfile profile(2);
  const auto done = RunOps(TwoPrompts(), kOptions, *runtime, &profile);
  ASSERT_TRUE(done.ok()) << done.status();
  EXPECT_EQ(done->prompt_tokens, 50);
  EXPECT_EQ(done->output_tokens, 10);
  // Both prompts fit one step; its rows give the first tokens.
  EXPECT_EQ(profile.steps(StepKind::kPrefill).steps, 1);
  EXPECT_EQ(profile.steps(StepKind::kPrefill).tokens, 50);
  EXPECT_EQ(profile.steps(StepKind::kDecode).steps, 4);
  EXPECT_EQ(profile.steps(StepKind::kDecode).tokens, 8);
  const auto layers = static_cast<int64_t>(runtime->config().layers.size());
  for (const StepKind kind : {StepKind::kPrefill, StepKind::kDecode}) {
    const int64_t steps = profile.steps(kind).steps;
    for (const Op op :
         {Op::kQkv, Op::kRope, Op::kWriteKv, Op::kAttention, Op::kO, Op::kGateUp, Op::kDown}) {
      EXPECT_EQ(profile.totals(kind, op).calls, layers * steps) << NameOf(op);
    }
    for (const Op op : {Op::kCopyPages, Op::kEmbed, Op::kRopeAngles, Op::kHead, Op::kSampling}) {
      EXPECT_EQ(profile.totals(kind, op).calls, steps) << NameOf(op);
    }
    int64_t ns = 0;
    for (size_t i = 0; i < kernels::kNumOps; ++i) {
      if (static_cast<Op>(i) != Op::kSchedule) ns += profile.totals(kind, static_cast<Op>(i)).ns;
    }
    EXPECT_EQ(ns, profile.steps(kind).ns);
  }
}

// hidden 48, heads 4 x 16, kv heads 2, mlp 64, vocabulary 200, float32: by the model's config.json.
TEST(OpsRun, BytesAndOperationsAreTheModels) {
  const std::unique_ptr<ModelRuntime> runtime = Tiny("llama");
  kernels::OpProfile profile(2);
  ASSERT_TRUE(RunOps(TwoPrompts(), kOptions, *runtime, &profile).ok());
  const auto cost = [&](Op op) { return profile.totals(StepKind::kDecode, op).cost; };
  const double layer_steps = 3 * 4;  // layers x decode steps
  EXPECT_EQ(cost(Op::kQkv).operations(), layer_steps * 2 * 2 * 48 * (64 + 32 + 32));
  EXPECT_EQ(cost(Op::kO).operations(), layer_steps * 2 * 2 * 64 * 48);
  EXPECT_EQ(cost(Op::kGateUp).operations(), layer_steps * 2 * 2 * 48 * 128);
  EXPECT_EQ(cost(Op::kDown).weight_bytes, layer_steps * 64 * 64 * 4);  // 48 columns in panels of 64
  EXPECT_EQ(cost(Op::kHead).operations(), 4 * 2 * 2 * 48 * 200);
  // Of 20 + 30 prompt tokens; the four decode steps see 21..24 and 31..34.
  const double keys = 3 * (21 + 22 + 23 + 24 + 31 + 32 + 33 + 34);
  EXPECT_EQ(cost(Op::kAttention).kv_bytes, keys * 2 * 32 * 4);
  EXPECT_EQ(cost(Op::kAttention).operations(), 2 * keys * 4 * 32);
}

TEST(OpsRun, OffTellsNothingAndChangesNothing) {
  const std::unique_ptr<ModelRuntime> runtime = Tiny("gemma3");
  kernels::OpProfile profile(2);
  ASSERT_TRUE(RunOps(TwoPrompts(), kOptions, *runtime, &profile).ok());
  const int64_t calls = profile.totals(StepKind::kDecode, Op::kRope).calls;
  EXPECT_EQ(calls, 4 * static_cast<int64_t>(runtime->config().layers.size()));
  EXPECT_EQ(profile.totals(StepKind::kDecode, Op::kAddRows).calls, 2 * calls);
  ASSERT_TRUE(RunOps(TwoPrompts(), kOptions, *runtime, nullptr).ok());
  EXPECT_EQ(profile.totals(StepKind::kDecode, Op::kRope).calls, calls);
}

TEST(OpsRun, ARequestThatCanNeverFitIsAnError) {
  const std::unique_ptr<ModelRuntime> runtime = Tiny("llama");
  Workload workload = TwoPrompts();
  workload.max_tokens = 1 << 20;
  const auto done = RunOps(workload, kOptions, *runtime, nullptr);
  ASSERT_FALSE(done.ok());
  EXPECT_NE(Message(done.status()).find("max_tokens=1048576"), std::string::npos) << done.status();
}

}  // namespace
}  // namespace quire
