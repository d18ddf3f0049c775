#include "scheduler/beam.h"

#include <algorithm>
#include <cmath>

namespace quire {

BeamSearch::BeamSearch(const BeamParams& params, const StopConditions& stop)
    : params_(params),
      max_tokens_(stop.max_tokens),
      width_(static_cast<size_t>(params.beam_width / std::max(1, params.num_groups))),
      end_tokens_(stop.eos_token_ids),
      groups_(static_cast<size_t>(params.num_groups)) {
  CHECK(params.on() && params.num_groups > 0 && params.beam_width % params.num_groups == 0,
        "beam_width={} num_groups={}", params.beam_width, params.num_groups);
  CHECK(stop.max_tokens > 0, "max_tokens={}", stop.max_tokens);
  end_tokens_.insert(end_tokens_.end(), stop.stop_token_ids.begin(), stop.stop_token_ids.end());
  std::sort(end_tokens_.begin(), end_tokens_.end());
  end_tokens_.erase(std::unique(end_tokens_.begin(), end_tokens_.end()), end_tokens_.end());

  // Among so many there are width_ without an end token; and as many more as can be pushed out,
  // which are at most the tokens that the groups before the last one have taken.
  size_t count = width_ + end_tokens_.size();
  if (params.diversity_rate > 0) count += width_ * (groups_.size() - 1);
  num_candidates_ = static_cast<int32_t>(count);
  for (Group& group : groups_) group.open.push_back({});
}

int32_t BeamSearch::num_rows() const {
  if (length_ == 0) return 1;
  size_t count = 0;
  for (const Group& group : groups_) count += group.open.size();
  return static_cast<int32_t>(count);
}

bool BeamSearch::Stops(TokenId token) const {
  return std::binary_search(end_tokens_.begin(), end_tokens_.end(), token);
}

double BeamSearch::Score(double sum, int32_t length) const {
  // 0 stays 0 where the power underflows.
  return sum == 0 ? 0 : sum / std::pow(double{1} * length, double{params_.length_penalty});
}

std::vector<NextBeam> BeamSearch::Advance(std::span<const std::vector<TokenLogprob>> rows) {
  CHECK(!done(), "the search has ended");
  CHECK(static_cast<int32_t>(rows.size()) == num_rows(), "{} rows, {} expected", rows.size(),
        num_rows());
  const bool first = length_ == 0;
  ++length_;
  taken_.clear();
  std::vector<NextBeam> next;
  size_t beam = 0;
  for (Group& group : groups_) {
    // All groups start from the one row of the prompt.
    const size_t count = group.open.size();
    AdvanceGroup(group, rows.subspan(beam, count), static_cast<int32_t>(beam), next);
    if (!first) beam += count;
  }
  return next;
}

void BeamSearch::Collect(const Group& group, std::span<const std::vector<TokenLogprob>> rows) {
  candidates_.clear();
  for (size_t beam = 0; beam < group.open.size(); ++beam) {
    for (const TokenLogprob& next : rows[beam]) {
      double penalty = 0;
      if (!taken_.empty()) {
        const auto [low, high] = std::equal_range(taken_.begin(), taken_.end(), next.token);
        penalty = double{params_.diversity_rate} * static_cast<double>(high - low);
      }
      candidates_.push_back({.sum = group.open[beam].sum + (double{next.logprob} - penalty),
                             .beam = static_cast<int32_t>(beam),
                             .next = next});
    }
  }
}

void BeamSearch::AdvanceGroup(Group& group, std::span<const std::vector<TokenLogprob>> rows,
                              int32_t first_beam, std::vector<NextBeam>& next) {
  if (group.open.empty()) return;
  Collect(group, rows);
  const auto better = [](const Candidate& a, const Candidate& b) {
    if (a.sum != b.sum) return a.sum > b.sum;
    return a.beam != b.beam ? a.beam < b.beam : a.next.token < b.next.token;
  };
  const auto sort_best = [&] {
    const size_t count = std::min(width_, candidates_.size());
    std::partial_sort(candidates_.begin(), candidates_.begin() + static_cast<ptrdiff_t>(count),
                      candidates_.end(), better);
    return count;
  };
  const bool last = length_ == max_tokens_;
  const size_t num_looked_at = sort_best();
  for (size_t i = 0; i < num_looked_at; ++i) {
    if (last || Stops(candidates_[i].next.token)) Keep(group, candidates_[i]);
  }
  // What goes on. In the last step nothing does, but the groups behind still avoid these tokens.
  std::erase_if(candidates_, [&](const Candidate& c) { return Stops(c.next.token); });
  const size_t num_open = sort_best();
  if (params_.diversity_rate > 0) {
    for (size_t i = 0; i < num_open; ++i) taken_.push_back(candidates_[i].next.token);
    std::sort(taken_.begin(), taken_.end());
  }
  const std::vector<OpenBeam> before = std::move(group.open);
  group.open.clear();
  if (last) return;
  const size_t first_node = nodes_.size();
  for (size_t i = 0; i < num_open; ++i) {
    const Candidate& c = candidates_[i];
    group.open.push_back({.node = static_cast<int64_t>(nodes_.size()), .sum = c.sum});
    nodes_.push_back({.parent = before[static_cast<size_t>(c.beam)].node,
                      .token = c.next.token,
                      .logprob = c.next.logprob});
  }
  if (!CanImprove(group)) {
    group.open.clear();
    nodes_.resize(first_node);
    return;
  }
  for (size_t i = 0; i < num_open; ++i) {
    next.push_back({.parent = first_beam + candidates_[i].beam,
                    .token = candidates_[i].next.token,
                    .logprob = candidates_[i].next.logprob});
  }
}

void BeamSearch::Keep(Group& group, const Candidate& candidate) {
  const double score = Score(candidate.sum, length_);
  const auto place =
      std::upper_bound(group.kept.begin(), group.kept.end(), score,
                       [](double value, const Kept& kept) { return value > kept.score; });
  const bool full = group.kept.size() == width_;
  if (full && place == group.kept.end()) return;
  const auto node = static_cast<int64_t>(nodes_.size());
  nodes_.push_back({.parent = group.open[static_cast<size_t>(candidate.beam)].node,
                    .token = candidate.next.token,
                    .logprob = candidate.next.logprob});
  group.kept.insert(place, {.node = node, .score = score, .stopped = Stops(candidate.next.token)});
  if (full) group.kept.pop_back();
}

bool BeamSearch::CanImprove(const Group& group) const {
  if (group.open.empty()) return false;
  if (group.kept.size() < width_) return true;
  if (params_.early_stopping == EarlyStopping::kFirst || params_.beam_width == 1) return false;
  // A positive penalty favours length: with the sum as it is, the longest would be the best.
  const bool longest =
      params_.early_stopping == EarlyStopping::kNever && params_.length_penalty > 0;
  const double attainable = Score(group.open[0].sum, longest ? max_tokens_ : length_);
  return attainable > group.kept.back().score;
}

std::vector<Hypothesis> BeamSearch::Best() const {
  std::vector<Kept> all;
  for (const Group& group : groups_) all.insert(all.end(), group.kept.begin(), group.kept.end());
  std::stable_sort(all.begin(), all.end(),
                   [](const Kept& a, const Kept& b) { return a.score > b.score; });
  all.resize(std::min(all.size(), static_cast<size_t>(params_.num_return_sequences)));
  std::vector<Hypothesis> best;
  for (const Kept& kept : all) {
    Hypothesis& h = best.emplace_back();
    h.score = static_cast<float>(kept.score);
    for (int64_t i = kept.node; i >= 0; i = nodes_[static_cast<size_t>(i)].parent) {
      h.tokens.push_back(nodes_[static_cast<size_t>(i)].token);
      h.logprobs.push_back(nodes_[static_cast<size_t>(i)].logprob);
    }
    std::reverse(h.tokens.begin(), h.tokens.end());
    std::reverse(h.logprobs.begin(), h.logprobs.end());
    if (!kept.stopped) continue;
    h.finish = FinishReason::kStop;
    h.stop_token = h.tokens.back();
  }
  return best;
}

}  // namespace quire
