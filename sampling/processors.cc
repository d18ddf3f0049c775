#include "sampling/processors.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>

#include "sampling/selection.h"

namespace quire {
namespace {

constexpr float kBanned = -std::numeric_limits<float>::infinity();

using Logits = std::span<float>;

// Prompt and output as one sequence.
class History {
 public:
  explicit History(const SampleRow& row) : prompt_(row.prompt), output_(row.output) {}
  size_t size() const { return prompt_.size() + output_.size(); }
  TokenId operator[](size_t i) const {
    return i < prompt_.size() ? prompt_[i] : output_[i - prompt_.size()];
  }

 private:
  std::span<const TokenId> prompt_;
  std::span<const TokenId> output_;
};

bool Has(Logits logits, TokenId id) { return id >= 0 && static_cast<size_t>(id) < logits.size(); }

void Ban(Logits logits, TokenId id) {
  if (Has(logits, id)) logits[id] = kBanned;
}

// Adds the tokens to scratch.counts and lists each of them once in scratch.touched. Linear in the
// tokens, not in the vocabulary.
void Count(std::span<const TokenId> tokens, Logits logits, SamplerScratch& scratch) {
  if (scratch.counts.size() < logits.size()) scratch.counts.resize(logits.size());
  for (TokenId id : tokens) {
    if (Has(logits, id) && scratch.counts[id]++ == 0) scratch.touched.push_back(id);
  }
}

void ClearCounts(SamplerScratch& scratch) {
  for (TokenId id : scratch.touched) scratch.counts[id] = 0;
  scratch.touched.clear();
}

// --- Edits ---

void AddBias(const SampleRow& row, Logits logits, SamplerScratch&) {
  for (const auto& [id, bias] : row.params->logit_bias) {
    if (Has(logits, id)) logits[id] += bias;
  }
}

void PenalizeOutput(const SampleRow& row, Logits logits, SamplerScratch& scratch) {
  Count(row.output, logits, scratch);
  for (TokenId id : scratch.touched) {
    logits[id] -= row.params->frequency_penalty * static_cast<float>(scratch.counts[id]);
    logits[id] -= row.params->presence_penalty;
  }
  ClearCounts(scratch);
}

void PenalizeRepetition(const SampleRow& row, Logits logits, SamplerScratch& scratch) {
  const float penalty = row.params->repetition_penalty;
  Count(row.prompt, logits, scratch);
  Count(row.output, logits, scratch);
  for (TokenId id : scratch.touched) {
    logits[id] = logits[id] < 0 ? logits[id] * penalty : logits[id] / penalty;
  }
  ClearCounts(scratch);
}

// Bans what followed earlier occurrences of the last n - 1 tokens. Knuth-Morris-Pratt: with plain
// comparison a long n over a periodic text would cost n times the context for each token.
void BanRepeatedNgrams(const SampleRow& row, Logits logits, SamplerScratch& scratch) {
  const History history(row);
  const size_t length = static_cast<size_t>(row.params->no_repeat_ngram_size) - 1;
  if (history.size() < length) return;
  const size_t start = history.size() - length;  // the pattern is history[start, ...)
  std::vector<int32_t>& fail = scratch.borders;  // fail[q]: longest border of the first q tokens
  fail.assign(length + 1, 0);
  const auto advance = [&](size_t matched, TokenId token) {
    while (matched > 0 && (matched == length || history[start + matched] != token)) {
      matched = fail[matched];
    }
    return matched < length && history[start + matched] == token ? matched + 1 : matched;
  };
  size_t matched = 0;
  for (size_t i = 1; i < length; ++i) {
    matched = advance(matched, history[start + i]);
    fail[i + 1] = static_cast<int32_t>(matched);
  }
  matched = 0;
  for (size_t i = 0; i < history.size(); ++i) {
    if (matched == length) Ban(logits, history[i]);
    matched = advance(matched, history[i]);
  }
}

void BanWords(const SampleRow& row, Logits logits, SamplerScratch&) {
  const History history(row);
  for (const std::vector<TokenId>& word : row.params->bad_words) {
    const size_t length = word.size() - 1;
    if (history.size() < length) continue;
    size_t i = 0;
    while (i < length && history[history.size() - length + i] == word[i]) ++i;
    if (i == length) Ban(logits, word.back());
  }
}

void BanStops(const SampleRow& row, Logits logits, SamplerScratch&) {
  for (TokenId id : row.stop->eos_token_ids) Ban(logits, id);
  for (TokenId id : row.stop->stop_token_ids) Ban(logits, id);
}

void KeepAllowed(const SampleRow& row, Logits logits, SamplerScratch& scratch) {
  std::vector<float>& saved = scratch.values;
  saved.clear();
  for (TokenId id : row.params->allowed_token_ids) {
    saved.push_back(Has(logits, id) ? logits[id] : kBanned);
  }
  std::fill(logits.begin(), logits.end(), kBanned);
  size_t i = 0;
  for (TokenId id : row.params->allowed_token_ids) {
    if (Has(logits, id)) logits[id] = saved[i];
    ++i;
  }
}

// 32 tokens a word; whole words are passed over or filled, mixed ones are blended four lanes at a
// time, without a branch for each token.
void ApplyMask(const SampleRow& row, Logits logits, SamplerScratch&) {
  using Floats = float __attribute__((vector_size(16)));
  using Bits = int32_t __attribute__((vector_size(16)));
  constexpr Bits kLanes = {1, 2, 4, 8};
  const std::span<const int32_t> mask = row.allowed_mask;
  for (size_t word = 0; word * 32 < logits.size(); ++word) {
    const uint32_t allowed = word < mask.size() ? static_cast<uint32_t>(mask[word]) : 0;
    if (allowed == ~uint32_t{0}) continue;
    const Logits group = logits.subspan(word * 32, std::min<size_t>(32, logits.size() - word * 32));
    if (allowed == 0) {
      std::fill(group.begin(), group.end(), kBanned);
    } else if (group.size() < 32) {  // the vocabulary's end
      for (size_t i = 0; i < group.size(); ++i) {
        if ((allowed >> i & 1) == 0) group[i] = kBanned;
      }
    } else {
      for (size_t i = 0; i < 32; i += 4) {
        Floats x;
        std::memcpy(&x, &group[i], sizeof(x));
        const Bits own = (Bits{} + static_cast<int32_t>(allowed >> i & 15)) & kLanes;
        x = own == 0 ? Floats{} + kBanned : x;
        std::memcpy(&group[i], &x, sizeof(x));
      }
    }
  }
}

struct Edit {
  const char* name;  // of the parameter
  bool bans;
  bool (*is_on)(const SampleRow& row);
  void (*apply)(const SampleRow& row, Logits logits, SamplerScratch& scratch);
};

constexpr Edit kEdits[] = {
    {"logit_bias", false, [](const SampleRow& r) { return !r.params->logit_bias.empty(); },
     AddBias},
    {"frequency_penalty, presence_penalty", false,
     [](const SampleRow& r) {
       return r.params->frequency_penalty != 0 || r.params->presence_penalty != 0;
     },
     PenalizeOutput},
    {"repetition_penalty", false,
     [](const SampleRow& r) { return r.params->repetition_penalty != 1.0f; }, PenalizeRepetition},
    {"no_repeat_ngram_size", true,
     [](const SampleRow& r) { return r.params->no_repeat_ngram_size > 0; }, BanRepeatedNgrams},
    {"bad_words", true, [](const SampleRow& r) { return !r.params->bad_words.empty(); }, BanWords},
    {"min_tokens", true,
     [](const SampleRow& r) {
       return r.stop != nullptr && r.output.size() < static_cast<size_t>(r.params->min_tokens);
     },
     BanStops},
    {"allowed_token_ids", true,
     [](const SampleRow& r) { return !r.params->allowed_token_ids.empty(); }, KeepAllowed},
    {"grammar", true, [](const SampleRow& r) { return !r.allowed_mask.empty(); }, ApplyMask},
};

// --- Filters ---

// Keeps the candidates i for which keep(i); order is kept.
template <typename Keep>
void Retain(SamplerScratch& s, Keep keep) {
  size_t kept = 0;
  for (size_t i = 0; i < s.ids.size(); ++i) {
    if (!keep(i)) continue;
    s.ids[kept] = s.ids[i];
    s.values[kept] = s.values[i];
    ++kept;
  }
  s.ids.resize(kept);
  s.values.resize(kept);
}

void RetainAtLeast(float cut, SamplerScratch& s) {
  const size_t kept = kernels::KeepAtLeast(cut, s.ids.size(), s.values.data(), s.ids.data());
  s.ids.resize(kept);
  s.values.resize(kept);
}

// Keeps what is in front of or at the cut.
void RetainTo(const MassCut& cut, SamplerScratch& s) {
  Retain(s,
         [&](size_t i) { return s.keys[i] < cut.key || (s.keys[i] == cut.key && i <= cut.index); });
}

// arXiv:2411.07641: logits within n standard deviations of the largest. The ratio of distances is
// the same at every temperature.
void TopNSigma(const SamplingParams& params, SamplerScratch& s) {
  double sum = 0, best = -std::numeric_limits<double>::infinity();
  size_t count = 0;
  for (float x : s.values) {
    best = std::max<double>(best, x);
    if (std::isinf(x)) continue;
    sum += x;
    ++count;
  }
  if (count == 0) return;
  const double mean = sum / static_cast<double>(count);
  double squares = 0;
  for (float x : s.values) {
    if (!std::isinf(x)) squares += (x - mean) * (x - mean);
  }
  const double cut = best - params.top_n_sigma * std::sqrt(squares / static_cast<double>(count));
  Retain(s, [&](size_t i) { return s.values[i] >= cut; });
}

// Ties with the k-th logit stay.
void TopK(const SamplingParams& params, SamplerScratch& s) {
  const auto k = static_cast<size_t>(params.top_k);
  if (k >= s.ids.size()) return;
  constexpr size_t kMostInHeap = 1024;  // beyond it the radix selection is quicker
  if (k <= kMostInHeap) {
    SelectTop(s.values, k, s.top);
    RetainAtLeast(s.top.back().logprob, s);
    return;
  }
  s.keys.resize(s.ids.size());
  for (size_t i = 0; i < s.ids.size(); ++i) s.keys[i] = DescendingKey(s.values[i]);
  const MassCut cut = SelectMass(
      s.keys, [](size_t) { return 1.0; },
      [&](double count) { return count >= static_cast<double>(k); });
  RetainAtLeast(s.values[cut.index], s);
}

// From logits to weights. Distances to the best are divided, not the logits: nothing overflows at
// any temperature.
void Temperature(const SamplingParams& params, SamplerScratch& s) {
  const float best = s.values[static_cast<size_t>(ArgMax(s.values))];
  if (std::isinf(best)) {  // several such logits share the mass
    for (float& x : s.values) x = x == best ? 1.0f : 0.0f;
    return;
  }
  ExpWeights(s.values, best, params.temperature, s.values);
}

// arXiv:1904.09751: the shortest best-first prefix with mass top_p; of equal tokens the lower ids.
// The share is rounded to float32 before the comparison, so that 12 of 40 equal tokens are 0.3.
void TopP(const SamplingParams& params, SamplerScratch& s) {
  const double total = kernels::Sum(s.values);
  // All tokens below this share sum up to less than half of what may be missing: none of them is in
  // the prefix. It is most of a vocabulary, and the selection below reads each three times.
  const double rest = (1.0 - double{params.top_p}) * total;
  RetainAtLeast(static_cast<float>(0.5 * rest / static_cast<double>(s.ids.size())), s);
  s.keys.resize(s.ids.size());
  for (size_t i = 0; i < s.ids.size(); ++i) s.keys[i] = DescendingKey(s.values[i]);
  RetainTo(SelectMass(
               s.keys, [&](size_t i) { return s.values[i]; },
               [&](double mass) { return static_cast<float>(mass / total) >= params.top_p; }),
           s);
}

// arXiv:2407.01082. The best token's weight is 1.
void MinP(const SamplingParams& params, SamplerScratch& s) { RetainAtLeast(params.min_p, s); }

// arXiv:2202.00666: tokens whose surprise is nearest to the entropy, up to the mass; ties with the
// last one stay.
void Typical(const SamplingParams& params, SamplerScratch& s) {
  const double total = kernels::Sum(s.values), log_total = std::log(total);
  double sum = 0;  // of weight * log(weight)
  for (float w : s.values) sum += w > 0 ? w * std::log(w) : 0;
  const double entropy = log_total - sum / total;
  s.keys.resize(s.ids.size());
  for (size_t i = 0; i < s.ids.size(); ++i) {
    const double surprise = log_total - std::log(s.values[i]);  // infinite if the weight is 0
    s.keys[i] = AscendingKey(static_cast<float>(std::fabs(surprise - entropy)));
  }
  const MassCut cut = SelectMass(
      s.keys, [&](size_t i) { return s.values[i]; },
      [&](double mass) { return static_cast<float>(mass / total) >= params.typical_p; });
  Retain(s, [&](size_t i) { return s.keys[i] <= cut.key; });
}

struct Filter {
  const char* name;  // of the parameter
  bool (*is_on)(const SamplingParams& params);
  void (*apply)(const SamplingParams& params, SamplerScratch& s);
};

// The values are logits down to `temperature` and weights after it. top_k comes first because it
// commutes with temperature and saves exponentials.
constexpr Filter kFilters[] = {
    {"top_n_sigma", [](const SamplingParams& p) { return p.top_n_sigma > 0; }, TopNSigma},
    {"top_k", [](const SamplingParams& p) { return p.top_k > 0; }, TopK},
    {"temperature", [](const SamplingParams&) { return true; }, Temperature},
    {"top_p", [](const SamplingParams& p) { return p.top_p < 1; }, TopP},
    {"min_p", [](const SamplingParams& p) { return p.min_p > 0; }, MinP},
    {"typical_p", [](const SamplingParams& p) { return p.typical_p < 1; }, Typical},
};

}  // namespace

std::span<const float> EditLogits(const SampleRow& row, SamplerScratch& scratch) {
  bool copied = false;
  for (const Edit& edit : kEdits) {
    if (!edit.is_on(row)) continue;
    if (!copied) scratch.logits.assign(row.logits.begin(), row.logits.end());
    copied = true;
    edit.apply(row, scratch.logits, scratch);
  }
  return copied ? std::span<const float>(scratch.logits) : row.logits;
}

void FilterTokens(std::span<const float> logits, const SamplingParams& params,
                  SamplerScratch& scratch) {
  scratch.ids.resize(logits.size());
  scratch.values.resize(logits.size());
  // Neither banned nor NaN.
  const size_t count =
      kernels::KeepAbove(logits, kBanned, scratch.values.data(), scratch.ids.data());
  scratch.ids.resize(count);
  scratch.values.resize(count);
  for (const Filter& filter : kFilters) {
    if (filter.is_on(params)) filter.apply(params, scratch);
  }
}

TokenId LowestAllowed(const SampleRow& row, SamplerScratch& scratch) {
  scratch.logits.assign(row.logits.size(), 0.0f);
  for (const Edit& edit : kEdits) {
    if (edit.bans && edit.is_on(row)) edit.apply(row, scratch.logits, scratch);
  }
  const int32_t lowest = ArgMax(scratch.logits);
  if (lowest >= 0) return lowest;
  if (!row.allowed_mask.empty()) {  // what breaks the grammar would break all that follows
    scratch.logits.assign(row.logits.size(), 0.0f);
    ApplyMask(row, scratch.logits, scratch);
    return std::max(0, ArgMax(scratch.logits));
  }
  const std::vector<TokenId>& allowed = row.params->allowed_token_ids;
  TokenId first = std::numeric_limits<TokenId>::max();
  for (TokenId id : allowed) {
    if (Has(scratch.logits, id)) first = std::min(first, id);
  }
  return first == std::numeric_limits<TokenId>::max() ? 0 : first;
}

}  // namespace quire
