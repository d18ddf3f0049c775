// tests/support/model_harness.h -- a real model, real pages and the real executor, driven by hand:
// what the scheduler does, without its decisions.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/attention_choice.h"
#include "models/checkpoint.h"
#include "models/decoder.h"
#include "models/executor.h"
#include "models/rope_config.h"
#include "paged_cache/block_manager.h"
#include "paged_cache/page_storage.h"
#include "scheduler/sequence.h"

namespace quire {

struct HarnessOptions {
  std::string attention = "flash";
  DType kv_dtype = DType::kF32;
  int32_t num_threads = 1;
  int32_t block_size = 16;
  int32_t num_blocks = 64;           // of every pool
  std::vector<int32_t> pool_blocks;  // of each pool, instead
  int32_t host_blocks = 0;           // slots of the host tier for each pool; 0 = no tier
  int32_t max_tokens_per_step = 512;
  int32_t max_seqs = 16;
  bool poison = false;  // fill all pages with NaN first, and each again when it is given back
};

class ModelHarness {
 public:
  static absl::StatusOr<std::unique_ptr<ModelHarness>> Open(const std::string& checkpoint,
                                                            const HarnessOptions& options) {
    auto h = std::make_unique<ModelHarness>();
    h->options_ = options;
    ASSIGN_OR_RETURN(LoadedCheckpoint loaded, OpenCheckpoint(checkpoint));
    h->config_ = loaded.config;
    h->threads_ = std::make_unique<ThreadPool>(options.num_threads);
    ASSIGN_OR_RETURN(const ModelWeights weights, BindWeights(loaded.config, *loaded.weights));
    ASSIGN_OR_RETURN(const kernels::AttentionChoice attention,
                     kernels::ParseAttention(options.attention));
    ASSIGN_OR_RETURN(h->model_, Decoder::Create(loaded.config, weights,
                                                {.attention = attention.full,
                                                 .sliding_attention = attention.sliding,
                                                 .kv_dtype = options.kv_dtype,
                                                 .block_size = options.block_size},
                                                *h->threads_));
    const CacheLayout& layout = h->model_->cache_layout();
    std::vector<int32_t> num_pages;
    for (size_t i = 0; i < layout.pools.size(); ++i) {
      num_pages.push_back(options.pool_blocks.empty() ? options.num_blocks
                                                      : options.pool_blocks[i]);
      h->pools_.emplace_back(num_pages[i], layout.block_size,
                             PagePoolOptions{.record_freed = options.poison});
    }
    std::vector<int32_t> num_host;
    for (size_t i = 0; i < layout.pools.size() && options.host_blocks > 0; ++i) {
      num_host.push_back(options.host_blocks);
      h->host_.emplace_back(options.host_blocks, layout.block_size);
    }
    ASSIGN_OR_RETURN(h->storage_, PageStorage::Create(layout, num_pages, {}, num_host));
    if (options.poison) {
      for (size_t i = 0; i < layout.pools.size(); ++i) {
        std::memset(h->storage_->base(static_cast<int32_t>(i)), 0xff,
                    static_cast<size_t>(num_pages[i] + 1) * layout.pools[i].page_bytes);
      }
    }
    h->blocks_ = std::make_unique<BlockManager>(
        layout, h->pools_, BlockManagerOptions{.max_step_tokens = options.max_tokens_per_step},
        h->host_);
    BatchBuilder builder;
    Arena dry;
    PageStorage none;
    for (int32_t seqs : {1, options.max_seqs}) {
      dry.Reset();
      RETURN_IF_ERROR(h->model_
                          ->Forward(builder.BuildDry(options.max_tokens_per_step, seqs,
                                                     LongestSequence(loaded.config), layout),
                                    none, dry)
                          .status());
    }
    h->executor_ = std::make_unique<ModelExecutor>(*h->model_, *h->blocks_, *h->storage_,
                                                   *h->threads_, dry.peak());
    return h;
  }

  // Of schedulers that are stepped by hand.
  std::chrono::steady_clock::time_point now{std::chrono::hours(1)};

  const ModelConfig& config() const { return config_; }
  Decoder& model() { return *model_; }
  BlockManager& blocks() { return *blocks_; }
  ModelExecutor& executor() { return *executor_; }

  // With `poison`: overwrites the pages that became blank and that nobody has taken since, but for
  // sources of copies to come. Returns how many.
  int64_t PoisonFreed(const std::vector<PageCopy>& copies) {
    int64_t count = 0;
    for (size_t i = 0; i < pools_.size(); ++i) {
      for (const PageId id : pools_[i].DrainFreed()) {
        const bool needed = std::any_of(copies.begin(), copies.end(), [&](const PageCopy& c) {
          return c.pool == static_cast<int32_t>(i) && c.src == id;
        });
        if (needed || pools_[i].refs(id) > 0 || pools_[i].IsSealed(id)) continue;
        storage_->Poison(static_cast<int32_t>(i), id);
        ++count;
      }
    }
    return count;
  }

  // Pages of windowed groups that `tables` have given back.
  int64_t NumGivenBack(const SequenceTables& tables) const {
    int64_t count = 0;
    for (size_t g = 0; g < tables.groups.size(); ++g) {
      if (blocks_->layout().groups[g].group.window == 0) continue;
      const std::span<const PageId> ids = tables.groups[g].ids();
      count += std::count(ids.begin(), ids.end(), kNullPage);
    }
    return count;
  }

  // A sequence that has computed nothing yet.
  std::unique_ptr<Sequence> NewSequence(std::vector<TokenId> prompt) {
    auto request = std::make_shared<Request>();
    request->prompt = prompt;
    request->sampling.temperature = 0;
    request->stop.max_tokens = LongestSequence(config_);
    auto seq = std::make_unique<Sequence>();
    seq->request = std::move(request);
    seq->tokens = std::move(prompt);
    seq->tables = blocks_->NewTables(blocks_->InternRoot("test"));
    return seq;
  }

  // Computes the next `count` known tokens of each sequence in one step; with `sample`, the token
  // after the last one is appended. Returns the logits of the sampled rows, [n, vocab].
  std::vector<float> Step(const std::vector<Sequence*>& seqs, const std::vector<int32_t>& counts,
                          bool sample) {
    ScheduledBatch batch;
    for (size_t i = 0; i < seqs.size(); ++i) {
      Sequence& s = *seqs[i];
      CHECK(blocks_->Grow(s.tables, s.num_computed_tokens, s.num_computed_tokens + counts[i],
                          batch.copies),
            "harness pool is too small");
      batch.seqs.push_back({.seq = &s,
                            .first_pos = s.num_computed_tokens,
                            .num_tokens = counts[i],
                            .num_samples = sample ? 1 : 0});
      batch.num_tokens += counts[i];
    }
    const absl::StatusOr<StepOutput> out = executor_->Run(batch);
    CHECK(out.ok(), "{}", out.status().ToString());
    for (size_t i = 0; i < seqs.size(); ++i) {
      Sequence& s = *seqs[i];
      s.num_computed_tokens += counts[i];
      blocks_->Commit(s.tables, s.tokens, s.num_computed_tokens, s.page_hashes);
    }
    for (const SampledRow& row : out->rows) {
      seqs[static_cast<size_t>(row.seq_index)]->tokens.push_back(row.sampled.token);
    }
    const std::span<const float> logits = executor_->last_logits();
    return {logits.begin(), logits.end()};
  }

  // Prefills in chunks of `chunk` tokens (0 = whole), then decodes until `new_tokens` are sampled.
  // Returns the logits of each sampled position, [new_tokens][vocab].
  std::vector<std::vector<float>> Generate(Sequence& s, int32_t new_tokens, int32_t chunk = 0) {
    std::vector<std::vector<float>> logits;
    while (static_cast<int32_t>(logits.size()) < new_tokens) {
      const int32_t left = s.num_tokens() - s.num_computed_tokens;
      const int32_t count = chunk > 0 ? std::min(chunk, left) : left;
      std::vector<float> row = Step({&s}, {count}, count == left);
      if (count == left) logits.push_back(std::move(row));
    }
    return logits;
  }

 private:
  HarnessOptions options_;
  ModelConfig config_;
  std::unique_ptr<ThreadPool> threads_;
  std::unique_ptr<Decoder> model_;
  std::vector<PagePool> pools_;
  std::vector<PagePool> host_;
  std::unique_ptr<PageStorage> storage_;
  std::unique_ptr<BlockManager> blocks_;
  std::unique_ptr<ModelExecutor> executor_;
};

}  // namespace quire
