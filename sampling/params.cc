// sampling/params.cc -- which sampling parameters are accepted.
//
// Called by the edge before a request is queued; thread: any. A rule that could be read two ways:
// greedy with n > 1 is allowed, and its branches are equal.
#include "sampling/params.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace quire {
namespace {

// Bounds of work per token that a single request may ask for.
constexpr size_t kMaxBadWords = 1024;
constexpr size_t kMaxBadWordTokens = 256;
constexpr size_t kMaxStopTokenIds = 1024;
constexpr float kMaxBias = 100.0f;  // OpenAI's range

absl::Status CheckRanges(const SamplingParams& params) {
  absl::Status status;
  SamplingParams::VisitFields(params, [&](std::string_view name, auto value, auto min, auto max) {
    if (!status.ok() || (value >= min && value <= max)) return;  // NaN is not in any range
    const SamplingParams defaults;
    SamplingParams::VisitFields(defaults, [&](std::string_view other, auto fallback, auto, auto) {
      if (other != name) return;
      status = InvalidArgument("{}={} is outside [{}, {}]; the default is {}", name, value, min,
                               max, fallback);
    });
  });
  return status;
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
  if (stop.stop_token_ids.size() > kMaxStopTokenIds) {
    return InvalidArgument("stop_token_ids has {} ids, limit is {}", stop.stop_token_ids.size(),
                           kMaxStopTokenIds);
  }
  return CheckIds("stop_token_ids", stop.stop_token_ids, vocab_size);
}

}  // namespace quire
