// sampling/params.cc -- which sampling parameters are accepted.
//
// Called by the edge before a request is queued; thread: any. A rule that could be read two ways:
// greedy with n > 1 is allowed, and its branches are equal.
#include "sampling/params.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iterator>

namespace quire {
namespace {

// Bounds of work per token that a single request may ask for.
constexpr size_t kMaxBadWords = 1024;
constexpr size_t kMaxBadWordTokens = 256;
constexpr size_t kMaxStopTokenIds = 1024;
constexpr size_t kMaxBeamStopIds = 256;  // each makes the rows of a beam search longer
constexpr size_t kMaxLogprobTokenIds = 128;
constexpr float kMaxBias = 100.0f;  // OpenAI's range

// Params: a struct with VisitFields.
template <typename Params>
absl::Status CheckRanges(const Params& params) {
  absl::Status status;
  Params::VisitFields(params, [&](std::string_view name, auto value, auto min, auto max) {
    if (!status.ok() || (value >= min && value <= max)) return;  // NaN is not in any range
    const Params defaults;
    Params::VisitFields(defaults, [&](std::string_view other, auto fallback, auto, auto) {
      if (other != name) return;
      status = InvalidArgument("{}={} is outside [{}, {}]; the default is {}", name, value, min,
                               max, fallback);
    });
  });
  return status;
}

// Calls fn(name, value, fallback) for each field of VisitFields that is not as by default.
template <typename Params, typename Fn>
void ForEachChanged(const Params& params, Fn fn) {
  Params::VisitFields(params, [&](std::string_view name, auto value, auto, auto) {
    const Params defaults;
    Params::VisitFields(defaults, [&](std::string_view other, auto fallback, auto, auto) {
      if (other == name && value != static_cast<decltype(value)>(fallback)) {
        fn(name, value, fallback);
      }
    });
  });
}

bool InVocab(TokenId id, int32_t vocab_size) { return id >= 0 && id < vocab_size; }

absl::Status CheckBias(const SamplingParams& params, int32_t vocab_size) {
  std::vector<TokenId> ids;
  ids.reserve(params.logit_bias.size());
  for (const auto& [id, bias] : params.logit_bias) {
    if (!InVocab(id, vocab_size)) {
      return InvalidArgument("logit_bias key {} is outside [0, {}]; use ids of this model", id,
                             vocab_size - 1);
    }
    if (!(std::fabs(bias) <= kMaxBias)) {
      return InvalidArgument("logit_bias[{}]={} is outside [-{}, {}]", id, bias, kMaxBias,
                             kMaxBias);
    }
    ids.push_back(id);
  }
  std::sort(ids.begin(), ids.end());
  const auto twin = std::adjacent_find(ids.begin(), ids.end());
  if (twin != ids.end()) {
    return InvalidArgument("logit_bias key {} is given twice; give each id once", *twin);
  }
  return absl::OkStatus();
}

absl::Status CheckIds(std::string_view name, const std::vector<TokenId>& ids, int32_t vocab_size) {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (!InVocab(ids[i], vocab_size)) {
      return InvalidArgument("{}[{}]={} is outside [0, {}]; use ids of this model", name, i, ids[i],
                             vocab_size - 1);
    }
  }
  return absl::OkStatus();
}

absl::Status CheckBadWords(const SamplingParams& params, int32_t vocab_size) {
  if (params.bad_words.size() > kMaxBadWords) {
    return InvalidArgument("bad_words has {} sequences, limit is {}", params.bad_words.size(),
                           kMaxBadWords);
  }
  for (size_t i = 0; i < params.bad_words.size(); ++i) {
    const std::vector<TokenId>& word = params.bad_words[i];
    if (word.empty() || word.size() > kMaxBadWordTokens) {
      return InvalidArgument("bad_words[{}] has {} tokens, must have 1 to {}", i, word.size(),
                             kMaxBadWordTokens);
    }
    RETURN_IF_ERROR(CheckIds(fmt::format("bad_words[{}]", i), word, vocab_size));
  }
  // A set of which nothing can ever be chosen is a mistake that is better told than worked around.
  std::vector<TokenId> banned;
  for (const std::vector<TokenId>& word : params.bad_words) {
    if (word.size() == 1) banned.push_back(word[0]);
  }
  std::sort(banned.begin(), banned.end());
  const std::vector<TokenId>& allowed = params.allowed_token_ids;
  if (!allowed.empty() && std::all_of(allowed.begin(), allowed.end(), [&](TokenId id) {
        return std::binary_search(banned.begin(), banned.end(), id);
      })) {
    return InvalidArgument(
        "allowed_token_ids has {} ids, all of them in bad_words; leave one that may be chosen",
        allowed.size());
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status Validate(const SamplingParams& params, const StopConditions& stop,
                      int32_t vocab_size) {
  CHECK(vocab_size > 0, "vocab_size={}", vocab_size);
  RETURN_IF_ERROR(CheckRanges(params));
  if (stop.max_tokens < 1) {
    return InvalidArgument("max_tokens={} must be at least 1", stop.max_tokens);
  }
  if (params.min_tokens > stop.max_tokens) {
    return InvalidArgument("min_tokens={} is above max_tokens={}; lower it or raise max_tokens",
                           params.min_tokens, stop.max_tokens);
  }
  RETURN_IF_ERROR(CheckBias(params, vocab_size));
  RETURN_IF_ERROR(CheckIds("allowed_token_ids", params.allowed_token_ids, vocab_size));
  RETURN_IF_ERROR(CheckBadWords(params, vocab_size));
  if (params.logprob_token_ids.size() > kMaxLogprobTokenIds) {
    return InvalidArgument("logprob_token_ids has {} ids, limit is {}; ask for fewer",
                           params.logprob_token_ids.size(), kMaxLogprobTokenIds);
  }
  RETURN_IF_ERROR(CheckIds("logprob_token_ids", params.logprob_token_ids, vocab_size));
  if (stop.stop_token_ids.size() > kMaxStopTokenIds) {
    return InvalidArgument("stop_token_ids has {} ids, limit is {}", stop.stop_token_ids.size(),
                           kMaxStopTokenIds);
  }
  return CheckIds("stop_token_ids", stop.stop_token_ids, vocab_size);
}

absl::Status Validate(const BeamParams& beam, const SamplingParams& sampling,
                      const StopConditions& stop) {
  absl::Status status;
  if (!beam.on()) {
    if (beam.beam_width < 0) return CheckRanges(beam);
    ForEachChanged(beam, [&](std::string_view name, auto value, auto) {
      if (status.ok()) {
        status = InvalidArgument("{}={} needs beam search, and beam_width is 0; set beam_width",
                                 name, value);
      }
    });
    if (status.ok() && beam.early_stopping != EarlyStopping::kHeuristic) {
      return InvalidArgument(
          "early_stopping={} needs beam search, and beam_width is 0; set beam_width",
          beam.early_stopping == EarlyStopping::kFirst ? "first" : "never");
    }
    return status;
  }
  RETURN_IF_ERROR(CheckRanges(beam));
  if (beam.num_return_sequences > beam.beam_width) {
    return InvalidArgument(
        "num_return_sequences={} is above beam_width={}; lower it or raise beam_width",
        beam.num_return_sequences, beam.beam_width);
  }
  if (beam.beam_width % beam.num_groups != 0) {
    return InvalidArgument(
        "num_groups={} must divide beam_width={}; raise beam_width to {} or change num_groups",
        beam.num_groups, beam.beam_width,
        (beam.beam_width / beam.num_groups + 1) * beam.num_groups);
  }
  if (beam.num_groups > 1 && beam.diversity_rate == 0) {
    return InvalidArgument(
        "diversity_rate=0 must be above 0 with num_groups={}, or all groups find the same; set it, "
        "or num_groups to 1",
        beam.num_groups);
  }
  if (beam.num_groups == 1 && beam.diversity_rate > 0) {
    return InvalidArgument(
        "diversity_rate={} needs num_groups above 1, which is 1; raise it or leave diversity_rate "
        "out",
        beam.diversity_rate);
  }
  if (sampling.n > 1) {
    return InvalidArgument(
        "n={} must be 1 with beam_width={}; ask for several by num_return_sequences", sampling.n,
        beam.beam_width);
  }
  if (!sampling.greedy() && sampling.temperature != SamplingParams().temperature) {
    return InvalidArgument(
        "temperature={} has no effect on a search with beam_width={}; leave it out or set it to 0",
        sampling.temperature, beam.beam_width);
  }
  if (sampling.num_logprobs > 0) {
    return InvalidArgument(
        "num_logprobs={} must be at most 0 with beam_width={}: only a beam's own tokens are told",
        sampling.num_logprobs, beam.beam_width);
  }
  if (!sampling.logprob_token_ids.empty()) {
    return InvalidArgument(
        "logprob_token_ids has {} ids, limit is 0 with beam_width={}: only a beam's own tokens are "
        "told; leave it out",
        sampling.logprob_token_ids.size(), beam.beam_width);
  }
  // The filters; -1 is another way to leave top_k out.
  ForEachChanged(sampling, [&](std::string_view name, auto value, auto fallback) {
    constexpr std::string_view kFilters[] = {"top_p", "top_k", "min_p", "typical_p", "top_n_sigma"};
    if (!status.ok() ||
        std::find(std::begin(kFilters), std::end(kFilters), name) == std::end(kFilters)) {
      return;
    }
    if (name == "top_k" && value <= 0) return;
    status = InvalidArgument(
        "{}={} has no effect on a search with beam_width={}; leave it out or set it to {}", name,
        value, beam.beam_width, fallback);
  });
  RETURN_IF_ERROR(status);
  const size_t num_stops = stop.eos_token_ids.size() + stop.stop_token_ids.size();
  if (num_stops > kMaxBeamStopIds) {
    return InvalidArgument(
        "stop_token_ids has {} ids with the model's own, limit is {} with beam_width={}; give "
        "fewer",
        num_stops, kMaxBeamStopIds, beam.beam_width);
  }
  return absl::OkStatus();
}

absl::Status Validate(const SpeculationParams& speculation, const BeamParams& beam) {
  RETURN_IF_ERROR(CheckRanges(speculation));
  constexpr std::string_view kNames[] = {"default", "none", "ngram", "suffix", "draft"};
  const auto method = static_cast<size_t>(speculation.method);
  CHECK(method < std::size(kNames), "speculation method {}", method);
  const bool asked = speculation.method != SpeculationMethod::kServerDefault &&
                     speculation.method != SpeculationMethod::kNone;
  if (asked && beam.on()) {
    return InvalidArgument("method={} can't guess tokens ahead with beam_width={}; set it to none",
                           kNames[method], beam.beam_width);
  }
  if (speculation.rejection_sampling && speculation.branching_factor > 1) {
    return InvalidArgument("branching_factor={} must be 1 with rejection_sampling=true",
                           speculation.branching_factor);
  }
  if (speculation.method == SpeculationMethod::kNone) {
    absl::Status status;
    if (speculation.rejection_sampling) {
      return InvalidArgument(
          "rejection_sampling=true has no effect with method=none; leave it out");
    }
    ForEachChanged(speculation, [&](std::string_view name, auto value, auto fallback) {
      if (!status.ok()) return;
      status = InvalidArgument("{}={} has no effect with method=none; leave it out or set it to {}",
                               name, value, fallback);
    });
    return status;
  }
  return absl::OkStatus();
}

}  // namespace quire
