// models/draft_proposer.h -- guesses by a second, smaller model of the same vocabulary.
//
// The draft model has a cache of its own: pool, storage, block manager and arena. For each sequence
// that it has served it keeps tables in step with the target's tokens: what was guessed wrong is
// truncated, what is missing is computed ("catching up"), at most max_step_tokens of all sequences
// together in one call, so that a long prompt does not hold up the others' step. A sequence that is
// not up to date yet gets no guess in this step. Then all that are go on together, token by token.
//
// A guess is what the target would sample if it thought like the draft model: the same parameters,
// seed, branch and position, hence the same uniform. So a seeded output is guessed right whenever
// both models put that uniform on the same token, not only when the draft's favourite wins.
// Further chains are one token each: the best of the first row beside the sampled one.
//
// If the pool is full, the states used longest ago are dropped; if that is not enough, there is no
// guess. A failed forward drops the states in it and is told by stats(); it never fails a request.
// Prefixes are shared inside a cache salt, as in the target's cache.
//
// Thread: engine thread; kernels fan out over the target's thread pool, between its steps.
// Source: arXiv:2211.17192, section 2; draft and target sampling with common random numbers.
#pragma once

#include <list>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "base/arena.h"
#include "base/thread_pool.h"
#include "models/config.h"
#include "models/decoder.h"
#include "models/executor.h"
#include "paged_cache/block_manager.h"
#include "paged_cache/page_storage.h"
#include "scheduler/speculative.h"

namespace quire {

struct DraftModelOptions {
  std::string model;  // as RuntimeOptions::model
  std::string attention = "flash";
  kernels::ComputeType compute = kernels::ComputeType::kF32;
  kernels::Quantization quantization = kernels::Quantization::kNone;
  DType kv_dtype = DType::kF32;
  DType attention_dot = DType::kF32;
  int32_t block_size = 16;
  int32_t num_blocks = 0;         // of the main pool of its cache; at least 1
  int32_t max_num_seqs = 64;      // that get guesses in one step
  int32_t max_step_tokens = 512;  // computed in one forward; at least max_num_seqs
  int32_t max_draft_tokens = 16;  // per chain
  int64_t max_bytes = INT64_MAX;  // of weights and pools
};

class DraftModelProposer : public Proposer {
 public:
  struct Stats {
    int64_t guessed = 0;   // tokens
    int64_t computed = 0;  // rows, guesses and catching up
    int64_t reused = 0;    // guesses that became history and were not computed again
    int64_t begun = 0;     // states, the first time or again
    int64_t evicted = 0;   // states dropped for others' pages
    int64_t failures = 0;  // forwards that failed
    absl::Status last_failure;
  };

  // Opens the checkpoint and packs its weights. `threads` outlives the proposer.
  // ERRORS: as OpenCheckpoint; kInvalidArgument if the vocabulary has another size than the
  // target's, or an option is out of its range; kResourceExhausted beyond max_bytes. That equal ids
  // are equal text is for the caller to check, who has both tokenizers; if they are not, guesses
  // are never right, outputs stay so.
  static absl::StatusOr<std::unique_ptr<DraftModelProposer>> Load(const DraftModelOptions& options,
                                                                  const ModelConfig& target,
                                                                  ThreadPool& threads);

  std::string_view name() const override { return "draft"; }
  void Propose(std::span<DraftRequest> requests) override;
  void OnEnd(SequenceId seq) override;

  // Known tokens of `seq` that a guess now would first have to compute, the last one not counted:
  // DraftPlan::start_us is that times the cost of a row.
  int32_t NumBehind(const Sequence& seq) const override;

  const ModelConfig& config() const { return config_; }
  const Stats& stats() const { return stats_; }
  size_t num_sequences() const { return states_.size(); }
  const BlockManager& blocks() const { return *blocks_; }
  int64_t memory_bytes() const { return memory_bytes_; }  // weights, pools and arena

  // Every page is where the states say. ERRORS: as BlockManager::Audit.
  absl::Status Audit() const;

 private:
  // The draft's own sequence of the same tokens; its request is the target's without what only
  // outputs need.
  struct State {
    Sequence seq;
    int32_t known = 0;  // the target's tokens at the last forward; 0 = it has not begun
    std::list<State*>::iterator by_use;
  };
  struct Running {
    State* state = nullptr;
    DraftRequest* request = nullptr;
    int32_t known = 0;    // tokens of the target
    int32_t compute = 0;  // of these, in this forward
    int32_t length = 0;   // guesses wanted; 0: it only catches up
  };

  DraftModelProposer() = default;
  absl::Status Init(const DraftModelOptions& options, const ModelConfig& target,
                    ThreadPool& threads);
  State& StateOf(const Sequence& target);
  void Drop(State& state);
  // Makes the state's tokens the target's and cuts its tables to what they have in common.
  void Follow(State& state, const Sequence& target);
  void Begin(State& state);
  // Room at the cost of states that are not in use now.
  bool MakeRoom(const Sequence& seq, int32_t num_tokens);
  bool Grow(const Running& r, std::vector<PageCopy>& copies);
  std::vector<Running> PlanFirst(std::span<DraftRequest> requests, ScheduledBatch& batch);
  void Fail(const absl::Status& why, const std::vector<Running>& running);
  void AddAlternatives(DraftRequest& request, std::span<const float> logits) const;

  DraftModelOptions options_;
  ModelConfig config_;
  int32_t max_model_len_ = 0;
  int64_t memory_bytes_ = 0;
  std::unique_ptr<Decoder> model_;
  std::vector<PagePool> pools_;
  std::unique_ptr<PageStorage> storage_;
  std::unique_ptr<BlockManager> blocks_;
  std::unique_ptr<ModelExecutor> executor_;
  absl::flat_hash_map<SequenceId, std::unique_ptr<State>> states_;
  std::list<State*> by_use_;  // least recently used first
  size_t num_in_use_ = 0;     // of these, the last ones: planned in the call that is going on
  Stats stats_;
};

}  // namespace quire
