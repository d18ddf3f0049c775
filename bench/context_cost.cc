#include "bench/context_cost.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "kernels/profile/op_profile.h"
#include "scheduler/sequence.h"

namespace quire {
namespace {

// A sequence of made-up tokens whose first ones are in the cache.
class CachedSequence {
 public:
  CachedSequence(ModelRuntime& runtime, int32_t prompt_tokens, int32_t max_batched_tokens)
      : runtime_(runtime), max_batched_tokens_(max_batched_tokens) {
    Extend(prompt_tokens);
    auto request = std::make_shared<Request>();
    request->prompt = sequence_.tokens;
    request->sampling.temperature = 0;
    request->stop.max_tokens = 1 << 20;
    sequence_.request = std::move(request);
    sequence_.status = SequenceStatus::kRunning;
    BlockManager& blocks = runtime.block_manager();
    sequence_.tables = blocks.NewTables(blocks.InternRoot("context costs", /*keep=*/false),
                                        {.prompt_tokens = prompt_tokens});
  }

  // Tokens [cached, end), in steps; the last one gives a row of logits.
  absl::Status Compute(int32_t end) {
    Extend(end);
    while (cached_ < end) {
      const int32_t n = std::min(end - cached_, max_batched_tokens_);
      ScheduledBatch batch;
      if (!runtime_.block_manager().Grow(sequence_.tables, cached_, cached_ + n, batch.copies)) {
        return Error(absl::StatusCode::kResourceExhausted,
                     "context={} has no room in the cache; raise num_blocks", end);
      }
      sequence_.num_computed_tokens = cached_;
      batch.num_tokens = n;
      batch.seqs.push_back({.seq = &sequence_,
                            .first_pos = cached_,
                            .num_tokens = n,
                            .num_samples = cached_ + n == end ? 1 : 0});
      RETURN_IF_ERROR(runtime_.executor().Run(batch).status());
      cached_ += n;
    }
    return absl::OkStatus();
  }

  void Truncate(int32_t num_tokens) {
    runtime_.block_manager().Truncate(sequence_.tables, num_tokens);
    sequence_.tokens.resize(static_cast<size_t>(num_tokens));
    cached_ = num_tokens;
  }

 private:
  void Extend(int32_t num_tokens) {
    for (auto i = static_cast<int32_t>(sequence_.tokens.size()); i < num_tokens; ++i) {
      sequence_.tokens.push_back((i * 37 + 11) % runtime_.config().vocab_size);
    }
  }

  ModelRuntime& runtime_;
  const int32_t max_batched_tokens_;
  Sequence sequence_;
  int32_t cached_ = 0;
};

double Micros(Clock::time_point from) {
  return std::chrono::duration<double, std::micro>(Clock::now() - from).count();
}

absl::Status TimeSteps(CachedSequence& sequence, int32_t context, int32_t steps,
                       std::vector<double>* us) {
  for (int32_t i = 1; i <= steps; ++i) {
    const Clock::time_point start = Clock::now();
    RETURN_IF_ERROR(sequence.Compute(context + i));
    if (us != nullptr) us->push_back(Micros(start));
  }
  sequence.Truncate(context);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ContextCosts> MeasureContexts(ModelRuntime& runtime, const ContextCostOptions& o) {
  for (const int32_t context : o.contexts) {
    if (context + o.steps > runtime.max_model_len()) {
      return InvalidArgument("context={} must be at most {} (max_model_len - steps)", context,
                             runtime.max_model_len() - o.steps);
    }
  }
  ContextCosts costs;
  std::vector<std::unique_ptr<CachedSequence>> sequences;
  for (const int32_t context : o.contexts) {
    costs.contexts.push_back({.context = context});
    sequences.push_back(
        std::make_unique<CachedSequence>(runtime, context + o.steps, o.max_batched_tokens));
    RETURN_IF_ERROR(sequences.back()->Compute(context));
  }
  kernels::OpProfile profile(runtime.num_threads());
  for (int32_t round = 0; round < o.rounds; ++round) {
    for (size_t i = 0; i < sequences.size(); ++i) {
      ContextCost& cost = costs.contexts[i];
      RETURN_IF_ERROR(TimeSteps(*sequences[i], cost.context, o.steps, &cost.step_us));
      profile.Reset();
      runtime.set_profile(&profile);
      const absl::Status status = TimeSteps(*sequences[i], cost.context, o.steps, nullptr);
      runtime.set_profile(nullptr);
      RETURN_IF_ERROR(status);
      const kernels::OpTotals& attention =
          profile.totals(kernels::StepKind::kDecode, kernels::Op::kAttention);
      cost.attention_us.push_back(static_cast<double>(attention.ns) * 1e-3 / o.steps);
      cost.kv_bytes = attention.cost.kv_bytes / o.steps;
    }
    if (o.recompute_tokens > 0) {
      CachedSequence sequence(runtime, o.recompute_tokens, o.max_batched_tokens);
      const Clock::time_point start = Clock::now();
      RETURN_IF_ERROR(sequence.Compute(o.recompute_tokens));
      costs.recompute_us.push_back(Micros(start));
    }
  }
  return costs;
}

ContextFit FitContexts(const ContextCosts& costs) {
  std::vector<Point> step, attention, bytes;
  for (const ContextCost& c : costs.contexts) {
    step.push_back({static_cast<double>(c.context), Median(c.step_us)});
    attention.push_back({static_cast<double>(c.context), Median(c.attention_us)});
    bytes.push_back({static_cast<double>(c.context), c.kv_bytes});
  }
  ContextFit fit{.step_us = FitLine(step), .attention_us = FitLine(attention)};
  fit.kv_bytes_per_token = FitLine(bytes).slope;
  fit.slope_gb_s = fit.kv_bytes_per_token / fit.step_us.slope * 1e-3;
  fit.attention_gb_s = fit.kv_bytes_per_token / fit.attention_us.slope * 1e-3;
  return fit;
}

}  // namespace quire
