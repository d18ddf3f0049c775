// server/edge/branch_text.cc -- see branch_text.h.
#include "server/edge/branch_text.h"

#include <utility>

namespace quire {

BranchText::BranchText(const Tokenizer& tokenizer, const Generation& generation)
    : generation_(generation),
      want_logprobs_(!generation.hide_logprobs &&
                     (generation.request->sampling.num_logprobs >= 0 ||
                      !generation.request->sampling.logprob_token_ids.empty())),
      detokenizer_(tokenizer, generation.skip_special_tokens),
      matcher_(generation.stop_strings, generation.include_stop_in_output) {}

const std::string& BranchText::stop_string() const {
  return generation_.stop_strings[static_cast<size_t>(matcher_.matched())];
}

bool BranchText::Push(const Sampled& sampled, bool is_stop, Delta& delta) {
  std::string piece;
  if (!is_stop || generation_.include_stop_in_output) piece = detokenizer_.Push(sampled.token);
  text_bytes_ += static_cast<int64_t>(piece.size());
  held_.push_back({sampled, text_bytes_});
  PushText(piece, delta);
  Emit(delta);
  return stopped();
}

bool BranchText::Flush(Delta& delta) {
  if (!stopped()) {
    const std::string piece = detokenizer_.Flush();
    text_bytes_ += static_cast<int64_t>(piece.size());
    if (!held_.empty()) held_.back().text_end = text_bytes_;
    PushText(piece, delta);
  }
  if (!stopped()) {
    std::string rest = matcher_.Flush();
    delivered_bytes_ += static_cast<int64_t>(rest.size());
    if (generation_.want_text) delta.text += rest;
  }
  if (!stopped()) delivered_bytes_ = text_bytes_;  // nothing more to wait for
  Emit(delta);
  return stopped();
}

void BranchText::PushText(const std::string& piece, Delta& delta) {
  if (piece.empty()) return;
  // Before min_tokens nothing may end the branch, so that text isn't searched.
  if (num_tokens() <= generation_.request->sampling.min_tokens) {
    unmatched_bytes_ += static_cast<int64_t>(piece.size());
    delivered_bytes_ += static_cast<int64_t>(piece.size());
    if (generation_.want_text) delta.text += piece;
    return;
  }
  StopMatcher::Out out = matcher_.Push(piece);
  delivered_bytes_ += static_cast<int64_t>(out.text.size());
  if (generation_.want_text) delta.text += out.text;
}

void BranchText::Emit(Delta& delta) {
  if (stopped()) {
    CutBehindMatch();
    while (!held_.empty()) EmitFront(delta);
  } else {
    while (!held_.empty() && held_.front().text_end <= delivered_bytes_) EmitFront(delta);
  }
}

void BranchText::EmitFront(Delta& delta) {
  Held& front = held_.front();
  if (generation_.want_token_ids) delta.token_ids.push_back(front.sampled.token);
  logprob_sum_ += front.sampled.logprob;
  if (want_logprobs_) delta.logprobs.push_back(std::move(front.sampled));
  held_.pop_front();
  ++num_emitted_;
}

void BranchText::CutBehindMatch() {
  const int64_t match_end = unmatched_bytes_ + matcher_.match_end();
  // The last token to keep is the first whose text reaches the end of the match.
  size_t keep = 0;
  while (keep < held_.size() && held_[keep].text_end < match_end) ++keep;
  if (keep < held_.size()) held_.resize(keep + 1);
}

}  // namespace quire
