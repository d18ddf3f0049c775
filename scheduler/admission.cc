// scheduler/admission.cc -- commands: who may join the queue, and who leaves before the next step.
#include <algorithm>

#include "sampling/grammar.h"
#include "scheduler/beam.h"
#include "scheduler/root_key.h"
#include "scheduler/scheduler.h"

namespace quire {
namespace {

template <typename... Visitors>
struct Overloaded : Visitors... {
  using Visitors::operator()...;
};
template <typename... Visitors>
Overloaded(Visitors...) -> Overloaded<Visitors...>;

}  // namespace

void Scheduler::Apply(Command command, std::vector<TokenEvent>& events) {
  CHECK(in_flight_.empty(), "commands are applied between steps");
  std::visit(Overloaded{
                 [&](Submit& submit) { Admit(std::move(submit), events); },
                 [&](Cancel& cancel) {
                   const auto it = requests_.find(cancel.request);
                   if (it != requests_.end()) {
                     EndRequest(*it->second, cancel.reason, cancel.error, events);
                   }
                 },
                 [&](Finish& finish) { CutBranch(finish, events); },
                 [&](AdminCall& admin) { admin.call(*this); },
             },
             command);
}

// What pools and limits allow at all, whatever else runs. Everything in 64 bits: the sums come from
// clients.
absl::Status Scheduler::CanEverRun(const Request& request) const {
  const int64_t prompt = static_cast<int64_t>(request.prompt.size());
  const int64_t max_tokens = request.stop.max_tokens;
  const int32_t n = NumBranches(request);
  if (prompt < 1) return InvalidArgument("prompt has 0 tokens, must have at least 1");
  if (max_tokens < 1) return InvalidArgument("max_tokens={} must be at least 1", max_tokens);
  if (n < 1 || n > options_.max_num_seqs) {
    return InvalidArgument("{}={} must be in [1, {}] (max_num_seqs)",
                           request.beam.on() ? "beam_width" : "n", n, options_.max_num_seqs);
  }
  if (prompt + max_tokens > options_.max_model_len) {
    if (prompt >= options_.max_model_len) {
      return InvalidArgument(
          "prompt has {} tokens, limit is {} (max_model_len={} less one new token); shorten the "
          "prompt",
          prompt, options_.max_model_len - 1, options_.max_model_len);
    }
    return InvalidArgument(
        "max_tokens={} exceeds {}: the prompt has {} tokens of max_model_len={}; lower it or "
        "shorten the prompt",
        max_tokens, options_.max_model_len - prompt, prompt, options_.max_model_len);
  }
  const PageNeed need = WorstCase(request);
  for (size_t i = 0; i < need.size(); ++i) {
    const int32_t capacity = blocks_.Capacity(i);
    if (need[i] > capacity) {
      return InvalidArgument(
          "request needs {} blocks, the pool has {} (prompt of {} tokens, max_tokens={}, {}={}); "
          "lower max_tokens or {}, or raise num_blocks{}",
          need[i], capacity, prompt, max_tokens, request.beam.on() ? "beam_width" : "n", n,
          request.beam.on() ? "beam_width" : "n",
          blocks_.pinned_pages(i) > 0 ? ", or unpin prefixes" : "");
    }
  }
  return absl::OkStatus();
}

PageNeed Scheduler::WorstCase(const Request& request) const {
  return blocks_.WorstCasePages(static_cast<int32_t>(request.prompt.size()),
                                request.stop.max_tokens, NumBranches(request));
}

// Sequences that the request runs at a time.
int32_t Scheduler::NumBranches(const Request& request) {
  return request.beam.on() ? request.beam.beam_width : request.sampling.n;
}

void Scheduler::Admit(Submit submit, std::vector<TokenEvent>& events) {
  auto live = std::make_unique<LiveRequest>();
  live->request = std::move(submit.request);
  const Request& request = *live->request;
  live->order = next_order_++;
  live->submitted = now_();
  live->branches.resize(static_cast<size_t>(std::max(NumBranches(request), 1)));
  if (request.beam.on()) {
    live->beam = std::make_unique<BeamSearch>(request.beam, request.stop);
  }
  live->num_open = live->n();
  live->stats.prompt_tokens = static_cast<int32_t>(request.prompt.size());
  ++counters_.submitted;
  ++queued_requests_;

  absl::Status fits = CanEverRun(request);
  if (fits.ok() && queued_requests_ > options_.max_queued_requests) {
    fits = Error(absl::StatusCode::kResourceExhausted,
                 "max_queued_requests={} are waiting already; retry later",
                 options_.max_queued_requests);
  }
  const auto inserted = requests_.try_emplace(request.id, std::move(live));
  CHECK(inserted.second, "request id {} is in use", request.id);
  LiveRequest& stored = *inserted.first->second;
  if (request.deadline != Clock::time_point::max()) {
    deadlines_.emplace(request.deadline, request.id);
  }
  if (!fits.ok()) {
    EndRequest(stored, FinishReason::kError, fits, events);
    return;
  }
  auto seq = std::make_unique<Sequence>();
  seq->id = next_sequence_++;
  seq->request = stored.request;
  seq->tokens = request.prompt;
  if (request.grammar != nullptr) {
    seq->grammar = std::make_shared<GrammarMatcher>(request.grammar, request.stop.eos_token_ids);
  }
  stored.branches[0].seq = std::move(seq);
  queue_.Push(stored);
  if (options_.policy != SchedulingPolicy::kFcfs) blocked_.by_pages = false;  // it may be first
}

// The edge saw a stop string end inside the branch's text; tokens after that never happened. They
// may have been sampled since, even up to the branch's own end: then only the count is corrected.
void Scheduler::CutBranch(const Finish& finish, std::vector<TokenEvent>& events) {
  const auto it = requests_.find(finish.request);
  if (it == requests_.end()) return;
  LiveRequest& live = *it->second;
  if (live.beam != nullptr) return;  // its outputs are told whole
  if (!live.forked || finish.branch < 0 || finish.branch >= live.n()) return;  // nothing sampled
  LiveBranch& branch = live.branches[static_cast<size_t>(finish.branch)];
  branch.num_output_tokens = std::clamp(finish.num_output_tokens, 0, branch.num_output_tokens);
  if (branch.finish == FinishReason::kNone) {
    TokenEvent event{.kind = TokenEvent::Kind::kFinished};
    EndBranch(live, finish.branch, FinishReason::kStop, std::move(event), events);
  }
}

bool Scheduler::SharesPrefixes(const Request& request) const {
  return options_.enable_prefix_caching && !request.bypass_prefix_cache;
}

std::string Scheduler::RootKey(const Request& request) const {
  return RootKey(request.cache_salt, static_cast<int32_t>(request.prompt.size()),
                 SharesPrefixes(request) ? 0 : request.id);
}
std::string Scheduler::RootKey(const std::string& cache_salt, int32_t prompt_tokens,
                               RequestId private_to) const {
  return RootKeyOf({.fingerprint = options_.fingerprint,
                    .cache_salt = cache_salt,
                    .rope_regime = options_.rope_regime == nullptr
                                       ? std::string()
                                       : options_.rope_regime(prompt_tokens),
                    .private_to = private_to});
}

}  // namespace quire
