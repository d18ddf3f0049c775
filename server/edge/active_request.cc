// server/edge/active_request.cc -- see active_request.h.
#include "server/edge/active_request.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

namespace quire {
namespace {

// Held deltas are joined up to this size, so that no message of an answer grows with its length.
constexpr size_t kMaxHeldTokens = 256;
constexpr size_t kMaxHeldBytes = 4 << 10;

void Join(Delta& to, Delta&& more) {
  to.text += more.text;
  to.token_ids.insert(to.token_ids.end(), more.token_ids.begin(), more.token_ids.end());
  std::move(more.logprobs.begin(), more.logprobs.end(), std::back_inserter(to.logprobs));
}

}  // namespace

absl::Status StatusOfReason(FinishReason reason, const absl::Status& error) {
  switch (reason) {
    case FinishReason::kNone:
    case FinishReason::kStop:
    case FinishReason::kLength:
      return absl::OkStatus();
    case FinishReason::kCancelled:
      return error.ok() ? absl::CancelledError("the request was cancelled") : error;
    case FinishReason::kDeadline:
      return error.ok() ? absl::DeadlineExceededError("the request's deadline has passed") : error;
    case FinishReason::kError:
      return error.ok() ? absl::InternalError("the request failed") : error;
  }
  return absl::InternalError("unknown finish reason");
}

ActiveRequest::ActiveRequest(const Tokenizer& tokenizer, Generation generation, StreamSink* sink)
    : generation_(std::move(generation)), sink_(sink) {
  const int32_t n =
      generation_.request->beam.on() ? generation_.num_outputs() : generation_.request->sampling.n;
  branches_.reserve(static_cast<size_t>(n));
  for (int32_t i = 0; i < n; ++i) branches_.push_back({BranchText(tokenizer, generation_)});
  stats_.prompt_tokens = static_cast<int32_t>(generation_.request->prompt.size());
}

int32_t ActiveRequest::CompletionTokens() const {
  int32_t sum = 0;
  for (const Branch& b : branches_) sum += b.text.num_tokens();
  return sum;
}

std::optional<Finish> ActiveRequest::Apply(const TokenEvent& event) {
  if (event.kind == TokenEvent::Kind::kAccepted) {
    accepted_ = true;
    stats_ = event.stats;
    if (sink_ != nullptr) sink_->OnAccepted(event.stats);
    return std::nullopt;
  }
  if (event.kind == TokenEvent::Kind::kPromptLogprobs) {
    if (sink_ != nullptr) sink_->OnPromptLogprobs(event.prompt_logprobs);
    return std::nullopt;
  }
  CHECK(event.branch >= 0 && event.branch < static_cast<int32_t>(branches_.size()), "branch={}",
        event.branch);
  Branch& branch = branches_[static_cast<size_t>(event.branch)];
  const bool is_last = event.finish != FinishReason::kNone;
  std::optional<Finish> finish;
  if (!branch.matched && !branch.ended) {
    Delta delta{.branch = event.branch};
    if (event.kind == TokenEvent::Kind::kToken) {
      branch.matched = branch.text.Push(event.sampled, event.stop_token >= 0, delta);
    }
    // What was held back is the client's, however the branch ended.
    if (is_last && !branch.matched) branch.matched = branch.text.Flush(delta);
    if (branch.matched && !is_last) {
      finish = Finish{event.request, event.branch, branch.text.num_tokens()};
    }
    const bool has_news =
        !delta.text.empty() || !delta.token_ids.empty() || !delta.logprobs.empty();
    if (sink_ != nullptr && has_news) Tell(branch, std::move(delta));
  }
  if (event.request_done) {
    stats_ = event.stats;
    // The engine may have run ahead of a stop string; what overran is nobody's.
    stats_.completion_tokens = CompletionTokens();
  }
  if (is_last && !branch.ended) EndBranch(branch, event);
  if (event.request_done && generation_.told_at_end()) TellHeld();
  if (event.request_done && sink_ != nullptr) {
    StreamSink* const sink = std::exchange(sink_, nullptr);
    sink->OnClosed(outcome_, accepted_, stats_);
  }
  return finish;
}

void ActiveRequest::Tell(Branch& branch, Delta delta) {
  if (!generation_.told_at_end()) {
    sink_->OnDelta(std::move(delta));
  } else if (branch.held.empty() || branch.held.back().text.size() >= kMaxHeldBytes ||
             branch.held.back().token_ids.size() >= kMaxHeldTokens ||
             branch.held.back().logprobs.size() >= kMaxHeldTokens) {
    branch.held.push_back(std::move(delta));
  } else {
    Join(branch.held.back(), std::move(delta));
  }
}

void ActiveRequest::EndBranch(Branch& branch, const TokenEvent& event) {
  branch.ended = true;
  BranchEnd end{.branch = event.branch,
                .reason = event.finish,
                .stop_token = event.stop_token,
                .completion_tokens = branch.text.num_tokens()};
  if (branch.matched) {
    end.reason = FinishReason::kStop;
    end.stop_token = -1;
    end.stop_string = branch.text.stop_string();
  } else if (outcome_.ok()) {
    outcome_ = StatusOfReason(event.finish, event.error);
    // The engine knows of n outputs only.
    if (generation_.num_best > 0 && !accepted_ && absl::IsInvalidArgument(outcome_)) {
      outcome_ = InvalidArgument("{}; n is best_of={} here", Message(outcome_),
                                 generation_.request->sampling.n);
    }
  }
  reason_ = end.reason;
  if (branch.text.num_tokens() > 0) {
    if (generation_.num_best > 0) {
      const double mean = branch.text.logprob_sum() / branch.text.num_tokens();
      if (std::isfinite(mean)) end.score = static_cast<float>(mean);
    } else if (generation_.request->beam.on()) {
      end.score = event.score;
    }
  }
  // An error is told by OnClosed, and so is all that ends before it ran.
  if (sink_ == nullptr || !accepted_ || end.reason == FinishReason::kError) return;
  if (generation_.told_at_end()) {
    branch.end = std::move(end);
  } else {
    sink_->OnBranchEnd(end, event.request_done ? &stats_ : nullptr);
  }
}

// If a branch failed, all of them have: OnClosed tells.
void ActiveRequest::TellHeld() {
  if (sink_ == nullptr) return;
  std::vector<Branch*> order;
  for (Branch& branch : branches_) {
    if (!branch.end) return;
    order.push_back(&branch);
  }
  if (generation_.num_best > 0) {
    // Of equals the first comes first; an output without a score comes last.
    std::stable_sort(order.begin(), order.end(), [](const Branch* a, const Branch* b) {
      return a->end->score > b->end->score;
    });
    order.resize(static_cast<size_t>(generation_.num_best));
  }
  for (size_t i = 0; i < order.size(); ++i) {
    const auto output = static_cast<int32_t>(i);
    for (Delta& delta : order[i]->held) {
      delta.branch = output;
      sink_->OnDelta(std::move(delta));
    }
    order[i]->end->branch = output;
    sink_->OnBranchEnd(*order[i]->end, i + 1 == order.size() ? &stats_ : nullptr);
  }
}

void ActiveRequest::Close(const absl::Status& status) {
  outcome_ = status;
  stats_.completion_tokens = CompletionTokens();
  if (sink_ == nullptr) return;
  StreamSink* const sink = std::exchange(sink_, nullptr);
  sink->OnClosed(status, accepted_, stats_);
}

}  // namespace quire
