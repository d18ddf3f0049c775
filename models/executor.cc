#include "models/executor.h"

#include <algorithm>
#include <chrono>

#include "sampling/grammar.h"
#include "sampling/rejection.h"
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
    // Rows of logits: of asked prompt tokens, then after the last known token and each guess.
    const int32_t start = end - s.num_tokens - s.first_pos;  // where position 0 would be
    for (int32_t i = 0; i < s.num_prompt_logprobs; ++i) {
      logit_rows_.push_back(start + s.first_prompt_logprob + i);
    }
    for (int32_t i = 0; i <= s.num_drafts && s.num_samples > 0; ++i) {
      logit_rows_.push_back(end - 1 - s.num_drafts + i);
    }
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
                                           const CacheLayout& layout, int32_t num_rows) {
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
    const int32_t rows = i == 0 ? std::clamp(num_rows - num_seqs + 1, 1, own) : 1;
    for (int32_t r = rows; r > 0; --r) logit_rows_.push_back(cu_seqlens_q_.back() - r);
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
  StepOutput output;
  const kernels::StepScope step(profile_, batch.num_tokens,
                                static_cast<int32_t>(batch.seqs.size()));
  const PoolToucher::StepScope touched(toucher_, blocks_.pools());
  const auto before = std::chrono::steady_clock::now();
  storage_.Copy(batch.copies, blocks_.fills());
  output.page_ops_us =
      std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - before).count();
  arena_.Reset();
  BeginOp(profile_, kernels::Op::kBatch);
  ASSIGN_OR_RETURN(const ForwardOutput forward,
                   model_.Forward(builder_.Build(batch, blocks_), storage_, arena_));
  last_logits_ = forward.logits;
  BeginOp(profile_, kernels::Op::kSampling,
          kernels::RowWork{1, static_cast<int64_t>(last_logits_.size()), 1, 1});
  tasks_.clear();
  masks_.clear();
  size_t row = 0;
  for (size_t i = 0; i < batch.seqs.size(); ++i) {
    const ScheduledSeq& s = batch.seqs[i];
    row = AddPromptTasks(s, static_cast<int32_t>(i), row, output);
    if (s.num_samples > 0) row = AddSampleTasks(s, static_cast<int32_t>(i), row, output);
  }
  pool_.ParallelFor(static_cast<int64_t>(tasks_.size()), [&](int64_t task, int32_t worker) {
    RunTask(batch, tasks_[static_cast<size_t>(task)], scratch_[static_cast<size_t>(worker)],
            output);
  });
  return output;
}

// Both return the row after those of the sequence.
size_t ModelExecutor::AddPromptTasks(const ScheduledSeq& s, int32_t seq_index, size_t row,
                                     StepOutput& output) {
  for (int32_t i = 0; i < s.num_prompt_logprobs; ++i) {
    tasks_.push_back({.row = row++, .out = output.prompt_rows.size(), .is_prompt = true});
    output.prompt_rows.push_back(
        {.seq_index = seq_index, .position = s.first_prompt_logprob + i + 1});
  }
  return row;
}

// Several samples of one row, or one sample of each of several rows: after the last known token and
// after each guess as if it were known. What a grammar allows is found here, on one thread, as its
// matcher goes along the guesses and back.
size_t ModelExecutor::AddSampleTasks(const ScheduledSeq& s, int32_t seq_index, size_t row,
                                     StepOutput& output) {
  GrammarMatcher* const grammar = s.seq->grammar.get();
  const size_t words = (static_cast<size_t>(model_.vocab_size()) + 31) / 32;
  int32_t accepted = 0;
  for (int32_t d = 0; d <= s.num_drafts; ++d) {
    SampleTask task{.row = row + static_cast<size_t>(d)};
    if (grammar != nullptr && d > 0 && accepted == d - 1) {
      const auto at = static_cast<size_t>(s.seq->num_tokens() + d - 1);
      accepted += grammar->Accept(s.seq->tokens[at]);
    }
    // After a guess that the grammar forbids nothing is sampled that could be kept.
    if (grammar != nullptr && accepted == d) {
      task.mask = masks_.size();
      task.mask_words = words;
      masks_.resize(masks_.size() + words);
      grammar->FillMask(std::span(masks_).subspan(task.mask, words));
      // Where nothing but an end fits, min_tokens gives way.
      task.must_end = s.seq->num_output_tokens() + d < s.seq->request->sampling.min_tokens &&
                      grammar->MustEnd();
    }
    for (int32_t k = 0; k < s.num_samples; ++k) {
      task.out = output.rows.size();
      tasks_.push_back(task);
      output.rows.push_back({.seq_index = seq_index, .branch = s.seq->branch + k, .draft = d});
    }
  }
  if (accepted > 0) grammar->Rollback(accepted);
  return row + static_cast<size_t>(1 + s.num_drafts);
}

void ModelExecutor::RunTask(const ScheduledBatch& batch, const SampleTask& task,
                            SamplerScratch& scratch, StepOutput& output) {
  const auto vocab = static_cast<size_t>(model_.vocab_size());
  const std::span<const float> logits = last_logits_.subspan(task.row * vocab, vocab);
  if (task.is_prompt) {
    PromptRow& out = output.prompt_rows[task.out];
    const Sequence& seq = *batch.seqs[static_cast<size_t>(out.seq_index)].seq;
    ScoreToken(logits, seq.tokens[static_cast<size_t>(out.position)],
               static_cast<size_t>(std::max(0, seq.request->prompt_logprobs)), out.logprob);
    return;
  }
  SampledRow& out = output.rows[task.out];
  const ScheduledSeq& s = batch.seqs[static_cast<size_t>(out.seq_index)];
  const Sequence& seq = *s.seq;
  const std::span<const TokenId> tokens =
      std::span(seq.tokens)
          .first(static_cast<size_t>(seq.num_tokens()) + static_cast<size_t>(out.draft));
  const auto prompt = static_cast<size_t>(seq.num_prompt_tokens());
  const SampleRow row{
      .logits = logits,
      .params = &seq.request->sampling,
      .stop = task.must_end ? nullptr : &seq.request->stop,
      .prompt = tokens.first(prompt),
      .output = tokens.subspan(prompt),
      .seed = seq.request->seed,
      .branch = out.branch,
      .allowed_mask = std::span<const int32_t>(masks_).subspan(task.mask, task.mask_words)};
  if (s.num_candidates > 0) {
    Candidates(row, static_cast<size_t>(s.num_candidates), scratch, out.sampled);
  } else if (seq.request->speculation.rejection_sampling && out.draft < s.num_drafts &&
             !seq.request->sampling.greedy()) {
    const TokenId guess =
        seq.tokens[static_cast<size_t>(seq.num_tokens()) + static_cast<size_t>(out.draft)];
    const DraftVerdict verdict = VerifyPointDraft(DistributionOf(row, scratch), guess, row.seed,
                                                  row.branch, static_cast<uint32_t>(tokens.size()));
    out.sampled = SampleKnown(row, verdict.token);
  } else {
    out.sampled = Sample(row, scratch);
  }
}

}  // namespace quire
