#include "models/executor.h"

#include <algorithm>

#include "scheduler/sequence.h"

namespace quire {

const ForwardBatch& BatchBuilder::Build(const ScheduledBatch& batch, const BlockManager& blocks) {
  const CacheLayout& layout = blocks.layout();
  const auto num_tokens = static_cast<size_t>(batch.num_tokens);
  token_ids_.clear();
  positions_.clear();
  rope_lengths_.clear();
  logit_rows_.clear();
  cu_seqlens_q_.assign(1, 0);
  seqlens_k_.clear();
  int32_t max_pages = 1;
  for (const ScheduledSeq& s : batch.seqs) {
    for (int32_t i = 0; i < s.num_tokens; ++i) {
      const int32_t position = s.first_pos + i;
      token_ids_.push_back(s.seq->tokens[static_cast<size_t>(position)]);
      positions_.push_back(position);
      rope_lengths_.push_back(std::max(s.seq->num_prompt_tokens(), position + 1));
    }
    const auto end = static_cast<int32_t>(token_ids_.size());
    cu_seqlens_q_.push_back(end);
    seqlens_k_.push_back(s.first_pos + s.num_tokens);
    if (s.num_samples > 0) logit_rows_.push_back(end - 1);
    const int32_t pages = (seqlens_k_.back() + layout.block_size - 1) / layout.block_size;
    max_pages = std::max(max_pages, pages);
  }
  CHECK(token_ids_.size() == num_tokens, "scheduled {} tokens, sequences have {}", num_tokens,
        token_ids_.size());

  read_tables_.resize(layout.groups.size());
  write_tables_.resize(layout.groups.size());
  for (size_t g = 0; g < layout.groups.size(); ++g) {
    std::vector<int32_t>& reads = read_tables_[g];
    std::vector<int64_t>& writes = write_tables_[g];
    reads.assign(batch.seqs.size() * static_cast<size_t>(max_pages), kNullPage);
    writes.resize(num_tokens);
    size_t token = 0;
    for (size_t i = 0; i < batch.seqs.size(); ++i) {
      const ScheduledSeq& s = batch.seqs[i];
      const int32_t pages = (seqlens_k_[i] + layout.block_size - 1) / layout.block_size;
      blocks.FillReadRow(s.seq->tables, static_cast<int32_t>(g),
                         {&reads[i * static_cast<size_t>(max_pages)], static_cast<size_t>(pages)});
      blocks.FillWriteSlots(s.seq->tables, static_cast<int32_t>(g), s.first_pos,
                            {&writes[token], static_cast<size_t>(s.num_tokens)});
      token += static_cast<size_t>(s.num_tokens);
    }
  }
  Finish(layout, max_pages);
  return batch_;
}

const ForwardBatch& BatchBuilder::BuildDry(int32_t num_tokens, int32_t num_seqs, int32_t context,
                                           const CacheLayout& layout) {
  num_seqs = std::min(num_seqs, num_tokens);
  token_ids_.assign(static_cast<size_t>(num_tokens), 0);
  positions_.assign(static_cast<size_t>(num_tokens), 0);
  rope_lengths_.assign(static_cast<size_t>(num_tokens), 1);
  logit_rows_.clear();
  cu_seqlens_q_.assign(1, 0);
  seqlens_k_.clear();
  int32_t max_keys = 1;
  for (int32_t i = 0; i < num_seqs; ++i) {
    // Each sequence has its one token; the first takes what is left of the budget.
    const int32_t own = i == 0 ? num_tokens - num_seqs + 1 : 1;
    cu_seqlens_q_.push_back(cu_seqlens_q_.back() + own);
    seqlens_k_.push_back(std::max(context, own));
    max_keys = std::max(max_keys, seqlens_k_.back());
    logit_rows_.push_back(cu_seqlens_q_.back() - 1);
  }
  const int32_t max_pages = (max_keys + layout.block_size - 1) / layout.block_size;
  read_tables_.resize(layout.groups.size());
  write_tables_.resize(layout.groups.size());
  for (size_t g = 0; g < layout.groups.size(); ++g) {
    read_tables_[g].assign(static_cast<size_t>(num_seqs) * static_cast<size_t>(max_pages),
                           kNullPage);
    write_tables_[g].assign(static_cast<size_t>(num_tokens), 0);
  }
  Finish(layout, max_pages);
  return batch_;
}

void BatchBuilder::Finish(const CacheLayout& layout, int32_t max_pages) {
  groups_.clear();
  for (size_t g = 0; g < layout.groups.size(); ++g) {
    groups_.push_back({.num_seqs = static_cast<int32_t>(seqlens_k_.size()),
                       .num_tokens = static_cast<int32_t>(token_ids_.size()),
                       .page_size = layout.block_size,
                       .max_pages_per_seq = max_pages,
                       .cu_seqlens_q = cu_seqlens_q_,
                       .seqlens_k = seqlens_k_,
                       .read_table = read_tables_[g],
                       .write_table = write_tables_[g]});
  }
  batch_ = {.num_tokens = static_cast<int32_t>(token_ids_.size()),
            .token_ids = token_ids_,
            .positions = positions_,
            .rope_lengths = rope_lengths_,
            .logit_rows = logit_rows_,
            .groups = groups_};
}

ModelExecutor::ModelExecutor(Model& model, const BlockManager& blocks, PageStorage& storage,
                             ThreadPool& pool, size_t arena_bytes)
    : model_(model),
      blocks_(blocks),
      storage_(storage),
      pool_(pool),
      arena_(arena_bytes),
      scratch_(static_cast<size_t>(pool.num_threads())) {}

absl::StatusOr<StepOutput> ModelExecutor::Run(const ScheduledBatch& batch) {
  storage_.Copy(batch.copies, blocks_.fills());
  arena_.Reset();
  ASSIGN_OR_RETURN(const ForwardOutput forward,
                   model_.Forward(builder_.Build(batch, blocks_), storage_, arena_));
  last_logits_ = forward.logits;

  StepOutput output;
  std::vector<size_t> logit_row;  // of each output row
  size_t row = 0;
  for (size_t i = 0; i < batch.seqs.size(); ++i) {
    const ScheduledSeq& s = batch.seqs[i];
    for (int32_t k = 0; k < s.num_samples; ++k) {
      output.rows.push_back(
          {.seq_index = static_cast<int32_t>(i), .branch = s.num_samples > 1 ? k : s.seq->branch});
      logit_row.push_back(row);
    }
    if (s.num_samples > 0) ++row;
  }
  const auto vocab = static_cast<size_t>(model_.vocab_size());
  pool_.ParallelFor(static_cast<int64_t>(output.rows.size()), [&](int64_t task, int32_t worker) {
    SampledRow& out = output.rows[static_cast<size_t>(task)];
    const Sequence& seq = *batch.seqs[static_cast<size_t>(out.seq_index)].seq;
    const std::span<const TokenId> tokens = seq.tokens;
    const auto prompt = static_cast<size_t>(seq.num_prompt_tokens());
    out.sampled = Sample(
        {.logits = forward.logits.subspan(logit_row[static_cast<size_t>(task)] * vocab, vocab),
         .params = &seq.request->sampling,
         .stop = &seq.request->stop,
         .prompt = tokens.first(prompt),
         .output = tokens.subspan(prompt),
         .seed = seq.request->seed,
         .branch = out.branch},
        scratch_[static_cast<size_t>(worker)]);
  });
  return output;
}

}  // namespace quire
