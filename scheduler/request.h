// scheduler/request.h -- what the edge hands to the engine, and what comes back.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "base/types.h"
#include "paged_cache/retention.h"
#include "sampling/params.h"
#include "sampling/sampler.h"

namespace quire {

class CompiledGrammar;  // sampling/grammar.h

using Clock = std::chrono::steady_clock;

// Immutable once submitted. Built and checked by the edge; the scheduler checks only what needs the
// pool (can it ever fit?).
struct Request {
  RequestId id = 0;
  std::string client_id;          // what its client calls it: for people
  std::vector<TokenId> prompt;    // at least one token
  SamplingParams sampling;        // valid
  StopConditions stop;            // max_tokens resolved: prompt + max_tokens <= max_model_len
  uint64_t seed = 0;              // sampling.seed, or drawn by the edge
  BeamParams beam;                // valid; if on, sampling is greedy and n is 1
  SpeculationParams speculation;  // valid
  std::shared_ptr<const CompiledGrammar> grammar;  // what the output must match; null = anything
  int32_t prompt_logprobs = -1;      // -1 = none; 0 = the prompt token's; k = and the k best
  int32_t priority = 0;              // higher = sooner; the policy `priority` reads it
  std::string tenant;                // the policy `fair` divides service between tenants
  std::string cache_salt;            // part of the prefix root
  bool bypass_prefix_cache = false;  // neither looks up nor offers prefixes
  // How long its cached pages are kept, by ranges of its tokens; null = as all others.
  std::shared_ptr<const RetentionPolicy> retention;
  Clock::time_point arrival{};  // when the edge saw it
  Clock::time_point deadline = Clock::time_point::max();
};

enum class FinishReason : uint8_t {
  kNone,
  kStop,       // end-of-sequence, stop token or stop string
  kLength,     // max_tokens reached
  kCancelled,  // by the client
  kDeadline,   // in the queue or while running
  kError,      // refused or failed: `error` tells
};

// Filled once, with a request's last event.
struct RequestStats {
  int32_t prompt_tokens = 0;
  int32_t completion_tokens = 0;  // all branches
  int32_t cached_tokens = 0;      // of the prompt, at first admission (resumes don't count)
  int32_t preemptions = 0;
  int64_t queue_us = 0;               // arrival to first scheduled
  int64_t prefill_us = 0;             // first scheduled to first token
  int64_t decode_us = 0;              // first token to last
  int32_t draft_tokens = 0;           // guessed and computed
  int32_t accepted_draft_tokens = 0;  // of these, kept
};

// What the model thought of one token of the prompt.
struct PromptLogprob {
  int32_t position = 0;  // at least 1: nothing comes before the first
  Sampled logprob;       // token = the prompt's own
};

struct TokenEvent {
  enum class Kind : uint8_t {
    kAccepted,  // first scheduled: stats.prompt_tokens, cached_tokens, queue_us are set
    kToken,     // `sampled` for `branch`; finish != kNone on the branch's last
    kFinished,  // the branch ended without a new token (cancel, deadline, error, Finish command)
    kPromptLogprobs,  // `prompt_logprobs`, in order of positions; all before the first kToken
  };
  RequestId request = 0;
  Kind kind = Kind::kToken;
  int32_t branch = 0;
  Sampled sampled;
  int32_t num_output_tokens = 0;  // of this branch, this token included
  FinishReason finish = FinishReason::kNone;
  TokenId stop_token = -1;  // the eos or stop id that ended the branch
  float score = 0;          // of a beam search's sequence, with its last event
  std::vector<PromptLogprob> prompt_logprobs;
  bool request_done = false;  // no further event of this request follows; stats is complete
  RequestStats stats;
  absl::Status error;  // kError only
};

// server -> engine.
struct Submit {
  std::shared_ptr<const Request> request;
};
struct Cancel {  // all branches; unknown ids are ignored
  RequestId request = 0;
  FinishReason reason = FinishReason::kCancelled;
  absl::Status error;  // with kError
};
struct Finish {  // the edge matched a stop string: keep `num_output_tokens` of `branch`, end it
  RequestId request = 0;
  int32_t branch = 0;
  int32_t num_output_tokens = 0;
};
class Scheduler;
struct AdminCall {  // runs between steps on the engine thread
  std::function<void(Scheduler&)> call;
};
using Command = std::variant<Submit, Cancel, Finish, AdminCall>;

}  // namespace quire
