// models/executor.h -- runs a scheduled batch: page copies, forward, sampling.
//
// Thread: engine thread. All buffers are sized once for the worst-case step; a step allocates
// nothing that grows with the context.
#pragma once

#include <memory>
#include <vector>

#include "base/arena.h"
#include "base/thread_pool.h"
#include "kernels/profile/op_profile.h"
#include "models/forward_batch.h"
#include "models/model.h"
#include "paged_cache/block_manager.h"
#include "paged_cache/page_storage.h"
#include "paged_cache/pool_toucher.h"
#include "sampling/sampler.h"
#include "scheduler/executor.h"

namespace quire {

// The flat arrays of one step, rebuilt in place from a ScheduledBatch.
class BatchBuilder {
 public:
  // `batch` and the tables of its sequences stay unchanged while the result is in use.
  const ForwardBatch& Build(const ScheduledBatch& batch, const BlockManager& blocks);
  // A worst-case step for the memory profile: `num_seqs` sequences that share `num_tokens` tokens,
  // each with `context` keys. The tables name the null page; only a dry run may use it.
  // num_rows: of logits, at least one for each sequence; the first has the others. 0 = no others.
  const ForwardBatch& BuildDry(int32_t num_tokens, int32_t num_seqs, int32_t context,
                               const CacheLayout& layout, int32_t num_rows = 0);

 private:
  void Finish(const CacheLayout& layout, int32_t max_pages);

  std::vector<TokenId> token_ids_;
  std::vector<int32_t> positions_;
  std::vector<int32_t> rope_lengths_;
  std::vector<int32_t> logit_rows_;
  std::vector<int32_t> cu_seqlens_q_;
  std::vector<int32_t> seqlens_k_;
  std::vector<std::vector<int32_t>> read_tables_;   // per group
  std::vector<std::vector<int64_t>> write_tables_;  // per group
  std::vector<kernels::AttentionMetadata> groups_;
  ForwardBatch batch_;
};

class ModelExecutor : public Executor {
 public:
  // All outlive the executor. `arena_bytes`: the memory profile's activation peak.
  ModelExecutor(Model& model, const BlockManager& blocks, PageStorage& storage, ThreadPool& pool,
                size_t arena_bytes);

  // ERRORS: kInternal from the model.
  absl::StatusOr<StepOutput> Run(const ScheduledBatch& batch) override;

  // Logits of the last Run's rows, [rows, vocab]: tests and `--raw` tools.
  std::span<const float> last_logits() const { return last_logits_; }
  size_t arena_peak() const { return arena_.peak(); }
  // Null: no profile. It outlives the executor.
  void set_profile(kernels::OpProfile* profile) { profile_ = profile; }
  // It is told of each step; null: none. It outlives the executor.
  void set_toucher(PoolToucher* toucher) { toucher_ = toucher; }

 private:
  // A row of logits, and what is made of it.
  struct SampleTask {
    size_t row = 0;
    size_t out = 0;  // into StepOutput::rows or prompt_rows
    bool is_prompt = false;
    size_t mask = 0;        // into masks_
    size_t mask_words = 0;  // 0: everything is allowed
    bool must_end = false;  // the grammar allows nothing but an end
  };
  size_t AddPromptTasks(const ScheduledSeq& s, int32_t seq_index, size_t row, StepOutput& output);
  size_t AddSampleTasks(const ScheduledSeq& s, int32_t seq_index, size_t row, StepOutput& output);
  void RunTask(const ScheduledBatch& batch, const SampleTask& task, SamplerScratch& scratch,
               StepOutput& output);

  Model& model_;
  const BlockManager& blocks_;
  PageStorage& storage_;
  ThreadPool& pool_;
  Arena arena_;
  BatchBuilder builder_;
  std::vector<SamplerScratch> scratch_;  // per worker
  std::vector<SampleTask> tasks_;        // of a step; reused
  std::vector<int32_t> masks_;           // of a step's rows with a grammar; reused
  std::span<const float> last_logits_;
  kernels::OpProfile* profile_ = nullptr;
  PoolToucher* toucher_ = nullptr;
};

}  // namespace quire
