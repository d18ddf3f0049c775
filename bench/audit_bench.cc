// bench/audit_bench.cc -- what checking every invariant after a step costs beside the step.
//
//   audit_bench <SmolLM2 GGUF> [blocks] [steps]
//
// 64 sequences decode on the real model, while the rest of the pool is full of cached pages: with
// short sequences, so that steps are as cheap as they get, and with longer ones. Printed are
// medians of wall time in ms. What the engine pays in a build with QUIRE_DEBUG_CHECKS is the audit
// divided by StepsPerAudit. Build it in the dev preset to see the audit at that build's cost.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "bench/statistics.h"
#include "models/runtime.h"
#include "scheduler/engine.h"

namespace quire {
namespace {

constexpr int32_t kSeqs = 64;

double Ms(Clock::time_point from) {
  return std::chrono::duration<double, std::milli>(Clock::now() - from).count();
}

void Measure(ModelRuntime& runtime, int32_t prompt_len, int32_t num_steps) {
  BlockManager& blocks = runtime.block_manager();
  blocks.Flush();
  SchedulerOptions options;
  options.max_model_len = runtime.max_model_len();
  options.max_num_seqs = kSeqs;
  Scheduler scheduler(options, blocks);
  std::mt19937 rng(1);
  const auto random = [&](int32_t n) {
    std::vector<TokenId> tokens(static_cast<size_t>(n));
    for (TokenId& t : tokens) t = static_cast<TokenId>(rng() % 40'000);
    return tokens;
  };
  std::vector<TokenEvent> events;
  std::vector<std::shared_ptr<const Request>> requests;
  for (int32_t i = 0; i < kSeqs; ++i) {
    auto request = std::make_shared<Request>();
    request->id = i + 1;
    request->prompt = random(prompt_len);
    // Long enough for the first to be there still when the last prompt is computed.
    request->stop.max_tokens = num_steps + 16 + 2 * kSeqs * prompt_len / 512;
    requests.push_back(request);
  }
  // Fills the pool with cached pages of others (their content was never computed, but nobody asks).
  std::vector<PageCopy> copies;
  const auto fill = [&](const std::vector<TokenId>& tokens, RootId root) {
    std::vector<PrefixHash> chain;
    SequenceTables t = blocks.NewTables(root);
    const auto n = static_cast<int32_t>(tokens.size());
    if (!blocks.Grow(t, 0, n, copies)) std::abort();
    blocks.Commit(t, tokens, n, chain);
  };
  const RootId others = blocks.InternRoot("others");
  const int32_t chunk = 300 * blocks.block_size();
  while (blocks.pools()[0].num_blank() > 300) fill(random(chunk), others);
  for (const auto& request : requests) scheduler.Apply(Submit{request}, events);
  std::vector<double> step, audit;
  int32_t decoded = 0;
  while (decoded < num_steps) {
    const Clock::time_point start = Clock::now();
    const ScheduledBatch batch = scheduler.Schedule(events);
    const auto output = runtime.executor().Run(batch);
    if (!output.ok()) std::abort();
    scheduler.Commit(batch, *output, events);
    const double ms = Ms(start);
    const Clock::time_point audited = Clock::now();
    const absl::Status sound = scheduler.Audit();
    const double audit_ms = Ms(audited);
    if (!sound.ok()) std::abort();
    if (batch.num_tokens != kSeqs || batch.seqs.size() != kSeqs) continue;  // still in prompts
    ++decoded;
    step.push_back(ms);
    audit.push_back(audit_ms);
  }
  const PagePool& pool = blocks.pools()[0];
  const double every = static_cast<double>(StepsPerAudit(blocks));
  std::printf("%7d %7d %7d %6d %9.2f %9.3f %7.2f%% %6.0f %9.2f%%\n", pool.num_usable(),
              pool.num_active(), pool.num_cached(), prompt_len, Median(step), Median(audit),
              100 * Median(audit) / Median(step), every,
              100 * Median(audit) / every / Median(step));
  std::fflush(stdout);
  scheduler.EndAll(FinishReason::kCancelled, absl::OkStatus(), events);
}

int Main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "audit_bench <GGUF file> [blocks] [steps]\n");
    return 2;
  }
  RuntimeOptions options;
  options.model = argv[1];
  options.kv_cache_dtype = "bfloat16";
  options.memory.num_blocks = argc > 2 ? std::atoi(argv[2]) : 20'000;
  const int32_t steps = argc > 3 ? std::atoi(argv[3]) : 16;
  auto runtime = ModelRuntime::Load(options);
  if (!runtime.ok()) {
    std::fprintf(stderr, "%s\n", Message(runtime.status()).c_str());
    return 1;
  }
#ifdef QUIRE_DEBUG_CHECKS
  std::printf("checked build, ");
#endif
  std::printf("%d sequences, %d threads; ms\n", kSeqs, (*runtime)->num_threads());
  std::printf("  pages  in use  cached prompt      step     audit   share  one in  costs\n");
  for (const int32_t prompt : {16, 256}) Measure(**runtime, prompt, steps);
  return 0;
}

}  // namespace
}  // namespace quire

int main(int argc, char** argv) { return quire::Main(argc, argv); }
