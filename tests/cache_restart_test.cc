// tests/cache_restart_test.cc -- the whole cache on a real model: a restart that loads the cache,
// pools that change size while serving, preemption by swap. Outputs are those of a run without any
// of it, bit by bit.
#include <gtest/gtest.h>

#include <bit>
#include <filesystem>
#include <map>
#include <thread>

#include "models/runtime.h"
#include "scheduler/scheduler.h"
#include "tests/weight_files.h"

namespace quire {
namespace {

struct Output {
  std::vector<TokenId> tokens;
  std::vector<uint32_t> logprob_bits;
  friend bool operator==(const Output&, const Output&) = default;
};

struct Daemon {
  std::unique_ptr<ModelRuntime> runtime;
  std::unique_ptr<Scheduler> scheduler;
  std::map<RequestId, Output> outputs;
  std::map<RequestId, RequestStats> stats;
  std::vector<TokenEvent> events;
  RequestId next_id = 1;

  explicit Daemon(RuntimeOptions options, PreemptionMode preemption = PreemptionMode::kRecompute) {
    options.num_threads = 2;
    absl::StatusOr<std::unique_ptr<ModelRuntime>> loaded = ModelRuntime::Load(options);
    CHECK(loaded.ok(), "{}", Message(loaded.status()));
    runtime = *std::move(loaded);
    SchedulerOptions s{.max_num_seqs = options.max_num_seqs,
                       .max_num_batched_tokens = options.max_num_batched_tokens,
                       .max_model_len = runtime->max_model_len(),
                       .preemption = preemption,
                       .fingerprint = "test"};
    scheduler = std::make_unique<Scheduler>(s, runtime->block_manager());
  }
  RequestId Submit(std::vector<TokenId> prompt, int32_t max_tokens) {
    auto r = std::make_shared<Request>();
    r->id = next_id++;
    r->prompt = std::move(prompt);
    r->stop.max_tokens = max_tokens;
    r->sampling.temperature = 0.8f;
    r->seed = 7 * r->id;
    scheduler->Apply(quire::Submit{r}, events);
    return r->id;
  }
  bool Step() {
    const ScheduledBatch batch = scheduler->Schedule(events);
    if (!batch.empty()) {
      const absl::StatusOr<StepOutput> out = runtime->executor().Run(batch);
      CHECK(out.ok(), "{}", Message(out.status()));
      scheduler->Commit(batch, *out, events);
    }
    for (const TokenEvent& e : events) {
      CHECK(e.error.ok(), "{}", Message(e.error));
      if (e.request_done) stats[e.request] = e.stats;
      if (e.kind != TokenEvent::Kind::kToken) continue;
      outputs[e.request].tokens.push_back(e.sampled.token);
      outputs[e.request].logprob_bits.push_back(std::bit_cast<uint32_t>(e.sampled.logprob));
    }
    events.clear();
    const absl::Status audit = scheduler->Audit();
    CHECK(audit.ok(), "{}", Message(audit));
    return !scheduler->idle();
  }
  void RunUntilIdle() {
    while (Step()) {
    }
  }
};

std::string Llama() { return QUIRE_TEST_REFERENCE "/models/llama"; }

std::vector<TokenId> Prompt(int32_t n, int32_t seed, int32_t vocab) {
  std::vector<TokenId> tokens;
  for (int32_t i = 0; i < n; ++i)
    tokens.push_back((i * i * 31 + 7 * i + seed * 13) % (vocab - 8) + 4);
  return tokens;
}

void RestartServesThePrefixFromFiles(const std::string& model, int32_t prefix_tokens,
                                     int32_t num_blocks, const std::string& kv_dtype = "auto") {
  const TempDir dir;
  RuntimeOptions options{
      .model = model, .kv_cache_dtype = kv_dtype, .cache_directory = dir.File("cache")};
  options.memory.num_blocks = num_blocks;
  const std::string saved = dir.File("cache") + "/saved";
  std::filesystem::create_directories(dir.File("cache"));
  std::vector<TokenId> prompt;
  Output cold;
  {
    Daemon d(options);
    prompt = Prompt(prefix_tokens + 5, 3, d.runtime->config().vocab_size);
    const RequestId id = d.Submit(prompt, 6);
    d.RunUntilIdle();
    cold = d.outputs[id];
    EXPECT_EQ(d.stats[id].cached_tokens, 0);
    const absl::StatusOr<CacheTransfer> done = d.runtime->SaveCache(saved);
    ASSERT_TRUE(done.ok()) << done.status();
    EXPECT_GE(done->tokens, prefix_tokens);
  }
  {
    Daemon d(options);
    const absl::StatusOr<CacheTransfer> done = d.runtime->LoadCache(saved);
    ASSERT_TRUE(done.ok()) << done.status();
    EXPECT_GE(done->tokens, prefix_tokens);
    EXPECT_EQ(done->dropped, 0);
    const RequestId id = d.Submit(prompt, 6);
    d.next_id = 100;
    d.RunUntilIdle();
    EXPECT_GE(d.stats[id].cached_tokens, prefix_tokens);
    EXPECT_EQ(d.outputs[id], cold);
  }
  // Pages of another dtype are none of ours, and are left alone.
  RuntimeOptions other = options;
  other.kv_cache_dtype = "float16";
  Daemon d(other);
  const absl::StatusOr<CacheTransfer> done = d.runtime->LoadCache(saved);
  ASSERT_TRUE(done.ok()) << done.status();
  EXPECT_EQ(done->entries, 0);
  d.Submit(prompt, 2);
  d.RunUntilIdle();
  EXPECT_EQ(d.stats[1].cached_tokens, 0);
  Daemon again(options);
  const absl::StatusOr<CacheTransfer> loaded = again.runtime->LoadCache(saved);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_GE(loaded->tokens, prefix_tokens);
}

TEST(CacheRestart, TinyModel) { RestartServesThePrefixFromFiles(Llama(), 160, 64); }
TEST(CacheRestart, Int8PagesFromFiles) {
  RestartServesThePrefixFromFiles(Llama(), 160, 64, "int8");
}
#ifdef QUIRE_TEST_REAL_MODEL
TEST(CacheRestart, SmolLM2ServesTwoThousandTokensFromFiles) {
  RestartServesThePrefixFromFiles(QUIRE_TEST_SMOLLM2, 2000, 200);
}
#endif

// More than the pool holds runs at a time; what is preempted is saved and loaded, not computed.
TEST(CacheRestart, SwappedSequencesGoOnBitByBit) {
  RuntimeOptions options{.model = Llama(), .max_num_seqs = 8};
  options.memory.num_blocks = 64;
  std::map<RequestId, Output> expected;
  {
    Daemon d(options);
    const int32_t vocab = d.runtime->config().vocab_size;
    for (int32_t i = 0; i < 6; ++i) d.Submit(Prompt(30 + i, i, vocab), 60);
    d.RunUntilIdle();
    expected = d.outputs;
    ASSERT_EQ(d.scheduler->stats().preemptions, 0);
  }
  options.memory.num_blocks = 14;
  options.host_cache_memory_bytes = 8 << 20;
  Daemon d(options, PreemptionMode::kSwap);
  const int32_t vocab = d.runtime->config().vocab_size;
  for (int32_t i = 0; i < 6; ++i) d.Submit(Prompt(30 + i, i, vocab), 60);
  d.RunUntilIdle();
  const SchedulerStats stats = d.scheduler->stats();
  EXPECT_GE(stats.preemptions, 3);
  EXPECT_EQ(stats.swapped_preemptions, stats.preemptions);
  EXPECT_EQ(stats.swap_ins, stats.preemptions);
  EXPECT_GT(d.runtime->block_manager().stats().loaded, 0);
  EXPECT_EQ(d.outputs, expected);
  // Nothing was computed twice: each prompt and each sampled token but the last, once.
  EXPECT_EQ(stats.scheduled_tokens, 6 * 30 + 15 + 6 * 59);
}

// The pool shrinks below what runs and grows beyond its first size, under load.
TEST(CacheRestart, APoolThatChangesSizeChangesNoOutput) {
  RuntimeOptions options{.model = Llama(), .max_num_seqs = 8, .max_num_blocks = 128};
  options.memory.num_blocks = 64;
  std::map<RequestId, Output> expected;
  {
    Daemon d(options);
    const int32_t vocab = d.runtime->config().vocab_size;
    for (int32_t i = 0; i < 8; ++i) d.Submit(Prompt(30, i, vocab), 50);
    d.RunUntilIdle();
    expected = d.outputs;
  }
  Daemon d(options);
  const int32_t vocab = d.runtime->config().vocab_size;
  for (int32_t i = 0; i < 8; ++i) d.Submit(Prompt(30, i, vocab), 50);
  for (int i = 0; i < 20; ++i) d.Step();
  BlockManager& blocks = d.runtime->block_manager();
  const absl::Status refused = d.runtime->SetNumBlocks(*d.scheduler, 4);
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << refused;
  EXPECT_NE(Message(refused).find("num_blocks=4"), std::string::npos) << refused;
  EXPECT_EQ(d.runtime->SetNumBlocks(*d.scheduler, 129).code(), absl::StatusCode::kInvalidArgument);
  ASSERT_TRUE(d.runtime->SetNumBlocks(*d.scheduler, 12).ok());
  EXPECT_EQ(blocks.pools()[0].num_usable(), 12);
  EXPECT_GT(blocks.pools()[0].num_to_retire(), 0) << "more is in use than fits now";
  for (int i = 0; i < 30; ++i) d.Step();
  EXPECT_EQ(blocks.pools()[0].num_to_retire(), 0);
  EXPECT_LE(blocks.pools()[0].num_active(), 12);
  EXPECT_GT(d.scheduler->stats().preemptions, 0);
  ASSERT_TRUE(d.runtime->SetNumBlocks(*d.scheduler, 128).ok());
  d.RunUntilIdle();
  EXPECT_EQ(blocks.pools()[0].num_usable(), 128);
  EXPECT_EQ(d.outputs, expected);
}

}  // namespace
}  // namespace quire
