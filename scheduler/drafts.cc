// scheduler/drafts.cc -- guesses: into the batch after everybody was served, and out of it.
#include <algorithm>

#include "absl/container/inlined_vector.h"
#include "sampling/grammar.h"
#include "scheduler/scheduler.h"

namespace quire {
namespace {

// Copying a sequence's tokens, hashes and tables for a further chain.
constexpr double kForkUsPerToken = 0.002;
constexpr int32_t kFewRows = 3;

}  // namespace

void Scheduler::SetProposer(SpeculationMethod method, Proposer* proposer) {
  proposers_[static_cast<size_t>(method)] = proposer;
}

SpeculationMethod Scheduler::MethodFor(const Request& request) const {
  const SpeculationMethod asked = request.speculation.method;
  return asked == SpeculationMethod::kServerDefault ? default_speculation_ : asked;
}

// Guesses take rows, tokens and pages that nobody else wants; they preempt nobody. Steps with
// prompts have enough to compute. States can't be taken back to any token.
void Scheduler::PlanDrafts(ScheduledBatch& batch) {
  if (blocks_.has_state()) return;
  for (size_t i = 0; i < batch.seqs.size(); ++i) AddForced(i, batch);
  if (options_.num_speculative_tokens == 0) return;
  if (cost_.us_per_token() <= 0) return;  // no step was measured yet
  draft_plans_.clear();
  double dearest = 0;
  int32_t longest = 0;
  bool any = false;
  for (size_t i = 0; i < batch.seqs.size(); ++i) {
    const ScheduledSeq& s = batch.seqs[i];
    if (s.num_samples != 1 || s.num_tokens != 1 + s.num_drafts) return;
    DraftPlan& plan = draft_plans_.emplace_back(DraftPlan{.seq = s.seq->id});
    const Request& request = *s.seq->request;
    const Proposer* const proposer = proposers_[static_cast<size_t>(MethodFor(request))];
    if (s.num_candidates > 0 || s.num_drafts > 0 || proposer == nullptr) continue;
    plan.start_us =
        proposer->NumBehind(*s.seq) * us_per_draft_[static_cast<size_t>(MethodFor(request))];
    const SpeculationParams& asked = request.speculation;
    // The step's own sample is a token, too.
    plan.max_tokens = std::min({options_.num_speculative_tokens,
                                asked.num_tokens > 0 ? asked.num_tokens : kMaxSpeculativeTokens,
                                request.stop.max_tokens - s.seq->num_output_tokens() - 1,
                                max_rows_ - rows_used_, step_budget_ - batch.num_tokens});
    // The chain of most right guesses wins, which would bias a choice by chance.
    plan.max_chains =
        asked.rejection_sampling ? 1 : std::clamp(asked.branching_factor, 1, kMaxDraftChains);
    dearest = std::max(dearest, us_per_draft_[static_cast<size_t>(MethodFor(request))]);
    longest = std::max(longest, s.seq->num_tokens());
    any = any || plan.max_tokens > 0;
  }
  if (!any) return;
  // The straight line through a step without guesses and one with a few; where it bends, Trim cuts.
  const auto n = static_cast<int32_t>(draft_plans_.size());
  const double base_us = cost_.DecodeUs(n);
  const double row_us =
      std::max({(cost_.DecodeUs(n + kFewRows) - base_us) / kFewRows, base_us * 1e-3, 1e-3});
  draft_control_.Plan(draft_plans_,
                      {.fixed_us = std::max(0.0, base_us - n * row_us),
                       .per_token_us = row_us,
                       .per_draft_us = dearest,
                       .per_chain_us = cost_.us_per_page_op() + longest * kForkUsPerToken});
  draft_control_.Trim(
      draft_plans_, [this](int32_t rows) { return cost_.DecodeUs(rows); }, dearest);
  for (size_t m = 0; m < proposers_.size(); ++m) {
    if (proposers_[m] != nullptr) Propose(static_cast<SpeculationMethod>(m), batch);
  }
}

// What the grammar forces is as good as known, though not how it is cut into tokens: it is guessed
// whatever the cost of a row. Uses no proposer, and is no evidence for any.
void Scheduler::AddForced(size_t index, ScheduledBatch& batch) {
  const ScheduledSeq& s = batch.seqs[index];
  const Sequence& seq = *s.seq;
  if (seq.grammar == nullptr || token_text_.encode == nullptr) return;
  if (s.num_samples != 1 || s.num_tokens != 1 || s.num_candidates > 0) return;
  const int32_t most =
      std::min({kMaxSpeculativeTokens, max_rows_ - rows_used_, step_budget_ - batch.num_tokens,
                seq.request->stop.max_tokens - seq.num_output_tokens() - 1});
  if (most <= 0 || seq.request->speculation.method == SpeculationMethod::kNone) return;
  const std::string forced = seq.grammar->ForcedText();
  if (forced.empty()) return;
  const std::span<const TokenId> output =
      std::span<const TokenId>(seq.tokens).subspan(seq.request->prompt.size());
  const DraftChain chain{ForcedTokens(forced, output, most, token_text_)};
  if (chain.tokens.empty()) return;
  const int64_t before = counters_.draft_tokens;
  AddDrafts(index, {&chain, 1}, batch);
  counters_.forced_draft_tokens += counters_.draft_tokens - before;
  in_flight_[index].forced = batch.seqs[index].num_drafts > 0;
}

void Scheduler::Propose(SpeculationMethod method, ScheduledBatch& batch) {
  draft_requests_.clear();
  draft_indices_.clear();
  int32_t num_asked = 0;
  for (size_t i = 0; i < draft_plans_.size(); ++i) {
    const DraftPlan& plan = draft_plans_[i];
    const Sequence* const seq = batch.seqs[i].seq;
    if (plan.lengths[0] <= 0 || MethodFor(*seq->request) != method) continue;
    int32_t chains = 0;
    while (chains < plan.max_chains && plan.lengths[static_cast<size_t>(chains)] > 0) ++chains;
    draft_requests_.push_back({.seq = seq, .max_tokens = plan.lengths[0], .max_chains = chains});
    draft_indices_.push_back(i);
    num_asked += plan.lengths[0];
  }
  if (draft_requests_.empty()) return;
  const Clock::time_point before = now_();
  proposers_[static_cast<size_t>(method)]->Propose(draft_requests_);
  const double us = std::chrono::duration<double, std::micro>(now_() - before).count();
  propose_us_ += us;
  double& per_draft = us_per_draft_[static_cast<size_t>(method)];
  per_draft += 0.1 * (us / num_asked - per_draft);
  for (size_t k = 0; k < draft_requests_.size(); ++k) {
    std::vector<DraftChain>& chains = draft_requests_[k].chains;
    const std::span<const int32_t> lengths = draft_plans_[draft_indices_[k]].lengths;
    for (size_t c = 0; c < chains.size(); ++c) {
      const size_t length = std::min(chains[c].tokens.size(), static_cast<size_t>(lengths[c]));
      chains[c].tokens.resize(length);
    }
    AddDrafts(draft_indices_[k], chains, batch);
  }
}

// The first chain goes behind the sequence itself; each other one behind a fork of it that lives
// for this step and computes the last known token once more. What doesn't fit is left out, the last
// chains first.
void Scheduler::AddDrafts(size_t index, std::span<const DraftChain> chains, ScheduledBatch& batch) {
  Sequence& main = *in_flight_[index].seq;
  const int32_t known = main.num_tokens();
  const int32_t first = batch.seqs[index].first_pos;
  const auto room = [&] {
    return std::min(max_rows_ - rows_used_, step_budget_ - batch.num_tokens);
  };
  const auto length_of = [&](size_t c) { return static_cast<int32_t>(chains[c].tokens.size()); };
  if (chains.empty()) return;
  const int32_t num_drafts = std::min(length_of(0), room());
  if (num_drafts <= 0) return;
  // Forks are made before the sequence is given pages for its guesses, which they must not share. A
  // token that completes a block is announced by the sequence, so a fork could not write it again.
  std::vector<std::unique_ptr<Sequence>> forks(chains.size());
  int32_t left = room() - num_drafts;
  for (size_t c = 1; c < chains.size() && known % blocks_.block_size() != 0; ++c) {
    if (length_of(c) == 0 || length_of(c) + 1 > left) continue;
    left -= length_of(c) + 1;
    forks[c] = ForkSequence(*in_flight_[index].live, main, main.branch);
  }
  for (size_t c = 1; c < chains.size(); ++c) {
    if (forks[c] != nullptr &&
        !blocks_.Grow(forks[c]->tables, first, known + length_of(c), batch.copies)) {
      forks[c] = nullptr;
    }
  }
  if (!blocks_.Grow(main.tables, known, known + num_drafts, batch.copies)) return;
  main.tokens.insert(main.tokens.end(), chains[0].tokens.begin(),
                     chains[0].tokens.begin() + num_drafts);
  main.num_drafts = num_drafts;
  batch.seqs[index].num_tokens += num_drafts;
  batch.seqs[index].num_drafts = num_drafts;
  batch.num_tokens += num_drafts;
  rows_used_ += num_drafts;
  counters_.draft_tokens += num_drafts;
  for (size_t c = 1; c < chains.size(); ++c) {
    if (forks[c] == nullptr) continue;
    Sequence& fork = *forks[c];
    fork.tokens.insert(fork.tokens.end(), chains[c].tokens.begin(), chains[c].tokens.end());
    fork.num_drafts = length_of(c);
    batch.seqs.push_back({.seq = &fork,
                          .first_pos = first,
                          .num_tokens = fork.num_drafts + 1,
                          .num_samples = 1,
                          .num_drafts = fork.num_drafts});
    in_flight_.push_back({.live = in_flight_[index].live,
                          .seq = &fork,
                          .main = &main,
                          .chain = static_cast<int32_t>(c)});
    batch.num_tokens += fork.num_drafts + 1;
    rows_used_ += fork.num_drafts + 1;
    counters_.draft_tokens += fork.num_drafts;
    ++counters_.draft_chains;
    draft_forks_.push_back(std::move(forks[c]));
  }
}

namespace {

// Guesses of `seq` that equal what was sampled where they stand; rows: of the last known token and
// of each guess.
int32_t CountRight(const Sequence& seq, std::span<const SampledRow> rows) {
  const auto known = static_cast<size_t>(seq.num_tokens());
  int32_t right = 0;
  while (right < seq.num_drafts && rows[static_cast<size_t>(right)].sampled.token ==
                                       seq.tokens[known + static_cast<size_t>(right)]) {
    ++right;
  }
  return right;
}

}  // namespace

// The chain with the most right guesses goes on: the right ones, and the sample after the last of
// them. Wrong ones are taken back from the tables, as if they had never been there.
void Scheduler::CommitDrafts(std::span<const InFlight> in_flight, size_t index,
                             const std::function<std::span<const SampledRow>(size_t)>& rows_of,
                             std::vector<TokenEvent>& events) {
  Sequence& main = *in_flight[index].seq;
  LiveRequest& live = *in_flight[index].live;
  std::span<const SampledRow> rows = rows_of(index);
  int32_t right = CountRight(main, rows);
  int32_t num_computed = main.num_drafts;
  absl::InlinedVector<int32_t, kMaxDraftChains> drafted = {main.num_drafts};
  int32_t chain = 0;
  Sequence* winner = &main;
  for (size_t i = index + 1; i < in_flight.size(); ++i) {
    if (in_flight[i].main != &main) continue;
    Sequence& fork = *in_flight[i].seq;
    num_computed += fork.num_drafts;
    drafted.resize(static_cast<size_t>(in_flight[i].chain) + 1);
    drafted.back() = fork.num_drafts;
    const int32_t count = CountRight(fork, rows_of(i));
    if (count <= right) continue;
    right = count;
    chain = in_flight[i].chain;
    winner = &fork;
    rows = rows_of(i);
  }
  const auto known = static_cast<size_t>(main.num_tokens());
  if (winner != &main) {
    std::swap(main.tables, winner->tables);
    std::swap(main.tokens, winner->tokens);
    std::swap(main.num_drafts, winner->num_drafts);
  }
  const int32_t computed = static_cast<int32_t>(known) + right;
  main.tokens.resize(static_cast<size_t>(computed));
  if (main.num_drafts > right) blocks_.Truncate(main.tables, computed);
  main.num_drafts = 0;
  main.num_computed_tokens = computed;
  blocks_.Commit(main.tables, main.tokens, computed, main.page_hashes);
  main.tokens.resize(known);

  live.stats.draft_tokens += num_computed;
  if (!in_flight[index].forced) draft_control_.OnVerified(main.id, drafted, chain, right);
  // The last token may end the branch, and with it the request.
  const SequenceId id = main.id;
  const int32_t branch = main.branch;
  for (int32_t k = 0; k <= right; ++k) {
    if (k < right) {
      ++live.stats.accepted_draft_tokens;
      ++counters_.accepted_draft_tokens;
    }
    const LiveBranch& b = live.branches[static_cast<size_t>(branch)];
    const bool last_branch = live.num_open == 1;
    AppendToken({&live, &main}, rows[static_cast<size_t>(k)].sampled, events);
    if (last_branch && requests_.find(events.back().request) == requests_.end()) return;
    if (b.seq == nullptr || b.seq->id != id) return;  // ended before the last of them
  }
}

}  // namespace quire
