#include "models/draft_proposer.h"

#include <algorithm>
#include <utility>

#include "kernels/attention_choice.h"
#include "models/checkpoint.h"
#include "models/model_weights.h"
#include "models/pool_sizes.h"
#include "models/rope_config.h"
#include "sampling/selection.h"
#include "scheduler/root_key.h"

namespace quire {
namespace {

absl::Status Check(const DraftModelOptions& o) {
  if (o.num_blocks < 1) {
    return InvalidArgument("draft_num_blocks={} must be 1 or more", o.num_blocks);
  }
  if (o.max_num_seqs < 1 || o.max_step_tokens < o.max_num_seqs) {
    return InvalidArgument("draft max_step_tokens={} must be at least max_num_seqs={}, and that 1",
                           o.max_step_tokens, o.max_num_seqs);
  }
  if (o.max_draft_tokens < 1 || o.max_draft_tokens > 1024) {
    return InvalidArgument("max_draft_tokens={} must be in [1, 1024]", o.max_draft_tokens);
  }
  return absl::OkStatus();
}

// What the draft needs of the target's request: what decides samples, and nothing about outputs.
std::shared_ptr<const Request> DraftRequestOf(const Request& target) {
  auto request = std::make_shared<Request>(target);
  request->sampling.num_logprobs = -1;
  request->sampling.logprob_token_ids.clear();
  request->prompt_logprobs = -1;
  request->grammar = nullptr;
  request->retention = nullptr;
  return request;
}

// Tokens that a state goes back at most: guesses, and the last known one.
int32_t MostTakenBack(const DraftModelOptions& o) { return o.max_draft_tokens + 1; }

bool Ends(const Request& request, TokenId token) {
  const auto in = [&](const std::vector<TokenId>& ids) {
    return std::find(ids.begin(), ids.end(), token) != ids.end();
  };
  return in(request.stop.eos_token_ids) || in(request.stop.stop_token_ids);
}

}  // namespace

absl::StatusOr<std::unique_ptr<DraftModelProposer>> DraftModelProposer::Load(
    const DraftModelOptions& options, const ModelConfig& target, ThreadPool& threads) {
  auto proposer = std::unique_ptr<DraftModelProposer>(new DraftModelProposer);
  RETURN_IF_ERROR(proposer->Init(options, target, threads));
  return proposer;
}

absl::Status DraftModelProposer::Init(const DraftModelOptions& options, const ModelConfig& target,
                                      ThreadPool& threads) {
  RETURN_IF_ERROR(Check(options));
  options_ = options;
  ASSIGN_OR_RETURN(LoadedCheckpoint loaded, OpenCheckpoint(options.model));
  config_ = loaded.config;
  if (config_.vocab_size != target.vocab_size) {
    return InvalidArgument(
        "draft_model={} has vocab_size={}, the target's is {}; give a model with the same "
        "tokenizer",
        options.model, config_.vocab_size, target.vocab_size);
  }
  ASSIGN_OR_RETURN(const kernels::AttentionChoice attention,
                   kernels::ParseAttention(options.attention));
  ASSIGN_OR_RETURN(const ModelWeights weights, BindWeights(config_, *loaded.weights));
  ASSIGN_OR_RETURN(model_, Decoder::Create(config_, weights,
                                           {.attention = attention.full,
                                            .sliding_attention = attention.sliding,
                                            .compute = options.compute,
                                            .quantization = options.quantization,
                                            .kv_dtype = options.kv_dtype,
                                            .attention_dot = options.attention_dot,
                                            .block_size = options.block_size},
                                           threads));

  const CacheLayout& layout = model_->cache_layout();
  const PoolMix mix{.max_model_len = LongestSequence(config_),
                    .max_num_seqs = options.max_num_seqs,
                    .max_step_tokens = options.max_step_tokens};
  const std::vector<int32_t> pages = PoolPages(layout, mix, options.num_blocks);
  max_model_len_ = LongestInPools(layout, mix, pages);
  if (max_model_len_ < 1) {
    return InvalidArgument("draft_num_blocks={} holds no sequence; raise it", options.num_blocks);
  }
  const int64_t bytes = static_cast<int64_t>(model_->weight_bytes()) + BytesOfPools(layout, pages);
  if (bytes > options.max_bytes) {
    return Error(absl::StatusCode::kResourceExhausted,
                 "draft_num_blocks={} and the weights take {} MiB, {} MiB are there; lower it",
                 options.num_blocks, bytes >> 20, std::max<int64_t>(options.max_bytes, 0) >> 20);
  }
  for (const int32_t n : pages) pools_.emplace_back(n, layout.block_size);
  ASSIGN_OR_RETURN(storage_, PageStorage::Create(layout, pages));
  blocks_ = std::make_unique<BlockManager>(
      layout, pools_,
      BlockManagerOptions{.max_step_tokens = options.max_step_tokens,
                          .max_truncate_tokens = MostTakenBack(options)});

  BatchBuilder builder;
  Arena dry;
  PageStorage none;
  for (const auto& [tokens, seqs] : {std::pair{options.max_step_tokens, options.max_num_seqs},
                                     {options.max_step_tokens, 1},
                                     {options.max_num_seqs, options.max_num_seqs},
                                     {1, 1}}) {
    dry.Reset();
    RETURN_IF_ERROR(
        model_->Forward(builder.BuildDry(tokens, seqs, max_model_len_, layout), none, dry)
            .status());
  }
  executor_ = std::make_unique<ModelExecutor>(*model_, *blocks_, *storage_, threads, dry.peak());
  memory_bytes_ = static_cast<int64_t>(model_->weight_bytes()) + BytesOfPools(layout, pages) +
                  static_cast<int64_t>(dry.peak());
  return absl::OkStatus();
}

DraftModelProposer::State& DraftModelProposer::StateOf(const Sequence& target) {
  std::unique_ptr<State>& state = states_[target.id];
  if (state == nullptr) {
    state = std::make_unique<State>();
    state->seq.id = target.id;
    state->seq.branch = target.branch;
    state->seq.request = DraftRequestOf(*target.request);
    state->by_use = by_use_.insert(by_use_.end(), state.get());
  }
  by_use_.splice(by_use_.end(), by_use_, state->by_use);
  return *state;
}

void DraftModelProposer::Drop(State& state) {
  by_use_.erase(state.by_use);
  states_.erase(SequenceId{state.seq.id});
}

void DraftModelProposer::OnEnd(SequenceId seq) {
  const auto it = states_.find(seq);
  if (it != states_.end()) Drop(*it->second);
}

int32_t DraftModelProposer::NumBehind(const Sequence& target) const {
  const auto known = static_cast<int32_t>(target.tokens.size());
  const auto it = states_.find(target.id);
  if (it == states_.end()) return known - 1;
  return std::max(0, known - 1 - it->second->seq.num_computed_tokens);
}

void DraftModelProposer::Follow(State& state, const Sequence& target) {
  Sequence& seq = state.seq;
  const auto same = std::mismatch(seq.tokens.begin(), seq.tokens.end(), target.tokens.begin(),
                                  target.tokens.end())
                        .first -
                    seq.tokens.begin();
  seq.tokens.resize(static_cast<size_t>(same));
  seq.tokens.insert(seq.tokens.end(), target.tokens.begin() + same, target.tokens.end());
  if (state.known == 0) return;
  // The row of the last known token is computed anew: its logits are wanted.
  const auto known = static_cast<int32_t>(target.tokens.size());
  int32_t keep = std::min({static_cast<int32_t>(same), seq.num_computed_tokens, known - 1});
  if (seq.num_computed_tokens - keep > MostTakenBack(options_)) {
    state.known = 0;
    seq.num_computed_tokens = 0;
    seq.tables = SequenceTables{};
    return;
  }
  if (keep < seq.num_computed_tokens) {
    keep = blocks_->ResumePoint(seq.tables, seq.num_computed_tokens, keep);
  }
  stats_.reused += std::max(0, keep - state.known);
  blocks_->Truncate(seq.tables, keep);
  const auto full = static_cast<size_t>(keep / blocks_->block_size());
  seq.page_hashes.resize(std::min(seq.page_hashes.size(), full));
  seq.num_computed_tokens = keep;
}

// With what the cache has of it.
void DraftModelProposer::Begin(State& state) {
  Sequence& seq = state.seq;
  const Request& request = *seq.request;
  const bool shared = !request.bypass_prefix_cache;
  const std::string key = RootKeyOf({.fingerprint = "draft",
                                     .cache_salt = request.cache_salt,
                                     .rope_regime = RopeRegime(config_, seq.num_prompt_tokens()),
                                     .private_to = shared ? 0 : request.id});
  const RootId root = blocks_->InternRoot(key, shared, request.cache_salt);
  seq.page_hashes.clear();
  blocks_->ExtendChain(root, seq.tokens, seq.page_hashes);
  PrefixHit hit = blocks_->MatchPrefix(root, seq.tokens, seq.page_hashes,
                                       {.prompt_tokens = seq.num_prompt_tokens()});
  seq.tables = std::move(hit.tables);
  seq.num_computed_tokens = hit.num_tokens;
  ++stats_.begun;
}

// Whether a sequence that begins, and will have num_tokens tokens, fits beside those in use. Others
// go for it; a state is not begun to be thrown out half way.
bool DraftModelProposer::MakeRoom(const Sequence& seq, int32_t num_tokens) {
  PageNeed need = blocks_->WorstCasePages(num_tokens, 1, 1);
  const std::vector<GroupLayout>& groups = blocks_->layout().groups;
  for (size_t g = 0; g < groups.size(); ++g) {
    const std::span<const PageId> held = seq.tables.groups[g].ids();
    need[static_cast<size_t>(groups[g].pool)] -= static_cast<int32_t>(
        std::count_if(held.begin(), held.end(), [](PageId page) { return page != kNullPage; }));
  }
  const auto fits = [&] {
    for (size_t i = 0; i < need.size(); ++i) {
      if (need[i] > pools_[i].num_available()) return false;
    }
    return true;
  };
  while (!fits()) {
    if (by_use_.size() <= num_in_use_) return false;
    Drop(*by_use_.front());
    ++stats_.evicted;
  }
  return true;
}

bool DraftModelProposer::Grow(const Running& r, std::vector<PageCopy>& copies) {
  Sequence& seq = r.state->seq;
  const int32_t first = seq.num_computed_tokens;
  while (!blocks_->Grow(seq.tables, first, first + r.compute, copies)) {
    if (by_use_.size() <= num_in_use_) return false;
    Drop(*by_use_.front());
    ++stats_.evicted;
  }
  return true;
}

// The first forward: what each sequence misses, as far as the budget goes, those first that miss
// least.
std::vector<DraftModelProposer::Running> DraftModelProposer::PlanFirst(
    std::span<DraftRequest> requests, ScheduledBatch& batch) {
  std::vector<std::pair<int32_t, DraftRequest*>> order;
  for (DraftRequest& request : requests) {
    request.chains.clear();
    const auto known = static_cast<int32_t>(request.seq->tokens.size());
    if (request.max_tokens < 1 || request.max_chains < 1 || known > max_model_len_) continue;
    order.emplace_back(NumBehind(*request.seq), &request);
    // All that is taken back is so before the step's first page is announced.
    Follow(StateOf(*request.seq), *request.seq);
  }
  std::stable_sort(order.begin(), order.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<Running> running;
  num_in_use_ = 0;
  for (const auto& entry : order) {
    DraftRequest& request = *entry.second;
    if (running.size() == static_cast<size_t>(options_.max_num_seqs) ||
        batch.num_tokens == options_.max_step_tokens) {
      break;
    }
    Running r{.request = &request, .known = static_cast<int32_t>(request.seq->tokens.size())};
    // The row of a guess is at a position that the model has, too; the last guess has no row.
    const int32_t most =
        std::min({request.max_tokens, options_.max_draft_tokens, max_model_len_ - r.known + 1});
    r.state = &StateOf(*request.seq);
    Sequence& seq = r.state->seq;
    ++num_in_use_;
    const bool begins = r.state->known == 0;
    if (begins) {
      seq.tokens = request.seq->tokens;  // those before it in order may have thrown it out by now
      Begin(*r.state);
      if (!MakeRoom(seq, r.known + most)) {
        Drop(*r.state);
        --num_in_use_;
        continue;
      }
    }
    const int32_t left = r.known - seq.num_computed_tokens;
    r.compute = std::min(left, options_.max_step_tokens - batch.num_tokens);
    r.length = r.compute == left ? most : 0;
    if (!Grow(r, batch.copies)) {
      if (begins) {
        Drop(*r.state);
        --num_in_use_;
      }
      continue;  // its place in use keeps what it has
    }
    r.state->known = r.known;
    blocks_->Announce(seq.tables, seq.tokens, seq.num_computed_tokens + r.compute, seq.page_hashes);
    batch.seqs.push_back({.seq = &seq,
                          .first_pos = seq.num_computed_tokens,
                          .num_tokens = r.compute,
                          .num_samples = r.length > 0 ? 1 : 0});
    batch.num_tokens += r.compute;
    running.push_back(r);
  }
  return running;
}

void DraftModelProposer::Propose(std::span<DraftRequest> requests) {
  ScheduledBatch batch;
  std::vector<Running> running = PlanFirst(requests, batch);
  bool first = true;
  while (!batch.empty()) {
    const absl::StatusOr<StepOutput> out = executor_->Run(batch);
    if (!out.ok()) {
      Fail(out.status(), running);
      return;
    }
    blocks_->Publish();
    stats_.computed += batch.num_tokens;
    for (const Running& r : running) {
      Sequence& seq = r.state->seq;
      seq.num_computed_tokens += r.compute;
      // Guesses are not sealed: most are taken back.
      if (first) {
        blocks_->Commit(seq.tables, seq.tokens, seq.num_computed_tokens, seq.page_hashes);
      }
    }
    const auto vocab = static_cast<size_t>(config_.vocab_size);
    std::vector<Running> going_on;
    size_t row = 0;
    for (Running& r : running) {
      if (r.length == 0) continue;
      CHECK(row < out->rows.size(), "{} rows of the draft model", out->rows.size());
      Sequence& seq = r.state->seq;
      const TokenId token = out->rows[row].sampled.token;
      seq.tokens.push_back(token);
      if (first) r.request->chains.emplace_back();
      std::vector<TokenId>& chain = r.request->chains[0].tokens;
      chain.push_back(token);
      if (first) {
        AddAlternatives(*r.request, executor_->last_logits().subspan(row * vocab, vocab));
      }
      ++row;
      ++stats_.guessed;
      r.compute = 1;
      if (static_cast<int32_t>(r.request->chains[0].tokens.size()) == r.length) continue;
      if (!Ends(*seq.request, token)) going_on.push_back(r);
    }
    first = false;
    running.clear();
    batch = ScheduledBatch{};
    for (const Running& r : going_on) {
      if (!Grow(r, batch.copies)) continue;  // then the chain ends here
      const Sequence& seq = r.state->seq;
      batch.seqs.push_back(
          {.seq = &seq, .first_pos = seq.num_computed_tokens, .num_tokens = 1, .num_samples = 1});
      ++batch.num_tokens;
      running.push_back(r);
    }
  }
}

void DraftModelProposer::AddAlternatives(DraftRequest& request,
                                         std::span<const float> logits) const {
  if (request.max_chains < 2) return;
  std::vector<TokenLogprob> best;
  SelectTop(logits, static_cast<size_t>(request.max_chains), best);
  const TokenId sampled = request.chains[0].tokens[0];
  for (const TokenLogprob& b : best) {
    if (request.chains.size() == static_cast<size_t>(request.max_chains)) return;
    if (b.token != sampled) request.chains.push_back({{b.token}});
  }
}

// Everything in the forward is in doubt; the requests go on without guesses.
void DraftModelProposer::Fail(const absl::Status& why, const std::vector<Running>& running) {
  blocks_->Abandon();
  for (const Running& r : running) {
    r.request->chains.clear();
    Drop(*r.state);
  }
  ++stats_.failures;
  stats_.last_failure = why;
}

absl::Status DraftModelProposer::Audit() const {
  std::vector<const SequenceTables*> live;
  for (const auto& [id, state] : states_) live.push_back(&state->seq.tables);
  return blocks_->Audit(live);
}

}  // namespace quire
