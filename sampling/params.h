// sampling/params.h -- every sampling parameter, declared once.
//
// VisitFields is the only list of ranged fields. From it come the range check, the conversion from
// the proto (same field name) and the request log. A new parameter is one member, one visit() line,
// one proto field and, if it changes logits, one row in processors.cc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "base/types.h"

namespace quire {

struct SamplingParams {
  float temperature = 1.0f;         // 0 (or below 1e-5) = greedy
  float top_p = 1.0f;               // probability mass kept; 0 keeps the best token only
  int32_t top_k = 0;                // tokens kept; 0 and -1 = all
  float min_p = 0.0f;               // relative to the best token's probability
  float typical_p = 1.0f;           // mass kept around the entropy; 1 = off
  float top_n_sigma = 0.0f;         // keep logits within n standard deviations of the best; 0 = off
  float repetition_penalty = 1.0f;  // over prompt and output; > 1 discourages (arXiv:1909.05858)
  float presence_penalty = 0.0f;    // over output
  float frequency_penalty = 0.0f;   // over output
  int32_t no_repeat_ngram_size = 0;  // 0 = off
  int32_t min_tokens = 0;            // no stop token before this many new ones
  int32_t num_logprobs = -1;         // -1 = none; 0 = the sampled token's; k = and the k best
  int32_t n = 1;                     // branches: samples of the same prompt
  std::optional<uint64_t> seed;      // absent = drawn once for the request; 0 is a seed
  std::vector<std::pair<TokenId, float>> logit_bias;  // in [-100, 100]; ids checked against vocab
  std::vector<TokenId> allowed_token_ids;             // empty = all
  std::vector<std::vector<TokenId>> bad_words;        // token sequences never to complete
  std::vector<TokenId> logprob_token_ids;             // told at each token besides the best

  bool greedy() const { return temperature < 1e-5f; }

  // (name, member, smallest, largest): inclusive bounds, NaN fails.
  template <typename Self, typename Visitor>
  static void VisitFields(Self& p, Visitor&& visit) {
    visit("temperature", p.temperature, 0.0f, 1e9f);
    visit("top_p", p.top_p, 0.0f, 1.0f);
    visit("top_k", p.top_k, -1, INT32_MAX);
    visit("min_p", p.min_p, 0.0f, 1.0f);
    visit("typical_p", p.typical_p, 0.0f, 1.0f);
    visit("top_n_sigma", p.top_n_sigma, 0.0f, 1e9f);
    visit("repetition_penalty", p.repetition_penalty, 0.01f, 100.0f);
    visit("presence_penalty", p.presence_penalty, -2.0f, 2.0f);
    visit("frequency_penalty", p.frequency_penalty, -2.0f, 2.0f);
    visit("no_repeat_ngram_size", p.no_repeat_ngram_size, 0, 1 << 20);
    visit("min_tokens", p.min_tokens, 0, 1 << 30);
    visit("num_logprobs", p.num_logprobs, -1, 20);
    visit("n", p.n, 1, 128);
  }
};

// When a sequence ends. Stop strings are matched on text, so they live with the edge
// (sampling/stop.h).
struct StopConditions {
  int32_t max_tokens = 0;               // new tokens per branch; resolved by the edge, at least 1
  std::vector<TokenId> eos_token_ids;   // the model's; empty if the client ignores them
  std::vector<TokenId> stop_token_ids;  // the client's
};

// When a beam search stops (names as in transformers' generate: never, True, False).
enum class EarlyStopping : uint8_t {
  kHeuristic,  // when the best open beam can't beat the worst kept hypothesis at its present length
  kFirst,      // as soon as beam_width hypotheses have ended
  kNever,      // when no open beam can win at any length up to max_tokens
};

// Beam search instead of sampling. Off: beam_width 0.
struct BeamParams {
  int32_t beam_width = 0;            // beams kept at each step, all groups together
  int32_t num_return_sequences = 1;  // best hypotheses returned, at most beam_width
  float length_penalty = 1.0f;       // score = sum of logprobs / generated length ^ length_penalty
  EarlyStopping early_stopping = EarlyStopping::kHeuristic;
  int32_t num_groups = 1;       // divides beam_width; > 1: diverse beam search
  float diversity_rate = 0.0f;  // off a token's score for each earlier group's beam that took it

  bool on() const { return beam_width > 0; }
  template <typename Self, typename Visitor>
  static void VisitFields(Self& p, Visitor&& visit) {
    visit("beam_width", p.beam_width, 1, 64);
    visit("num_return_sequences", p.num_return_sequences, 1, 64);
    visit("length_penalty", p.length_penalty, -100.0f, 100.0f);
    visit("num_groups", p.num_groups, 1, 64);
    visit("diversity_rate", p.diversity_rate, 0.0f, 100.0f);
  }
};

// How a request wants its tokens guessed ahead; the outputs are the same bits either way.
enum class SpeculationMethod : uint8_t { kServerDefault, kNone, kNgram, kSuffix, kDraft };
inline constexpr size_t kNumSpeculationMethods = static_cast<size_t>(SpeculationMethod::kDraft) + 1;
struct SpeculationParams {
  SpeculationMethod method = SpeculationMethod::kServerDefault;
  int32_t num_tokens = 0;        // most drafts in a chain and step; 0: as the server is set
  int32_t branching_factor = 1;  // chains that differ in their first token; > 1: a tree
  // Accept guesses by rejection sampling (sampling/rejection.h) instead of by equality with the
  // target's own sample. The outputs have the same distribution, but NOT the same tokens as without
  // guesses: contract C1 does not hold for such a request.
  bool rejection_sampling = false;

  template <typename Self, typename Visitor>
  static void VisitFields(Self& p, Visitor&& visit) {
    visit("num_tokens", p.num_tokens, 0, 64);
    visit("branching_factor", p.branching_factor, 1, 16);
  }
};

// Ranges of single fields, then what ties fields together (min_tokens <= max_tokens, ids within the
// vocabulary, seed drawn). ERRORS: kInvalidArgument naming field, value and range.
absl::Status Validate(const SamplingParams& params, const StopConditions& stop, int32_t vocab_size);

// Beam search ignores nothing silently: what draws or filters tokens is refused with it, and its
// own fields are refused without it. Allowed with it: temperature 0 or the default, which both
// leave the probabilities as they are; a seed, whose promise (the same output again) holds;
// penalties, bans, biases and min_tokens; num_logprobs 0. REQUIRES: Validate(sampling, stop, ...)
// is OK.
absl::Status Validate(const BeamParams& beam, const SamplingParams& sampling,
                      const StopConditions& stop);

// With beams nothing can be guessed ahead.
absl::Status Validate(const SpeculationParams& speculation, const BeamParams& beam);

}  // namespace quire
