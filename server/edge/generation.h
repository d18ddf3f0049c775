// server/edge/generation.h -- what crosses between a front end (gRPC) and the edge. Plain data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "sampling/grammar.h"
#include "scheduler/request.h"

namespace quire {

class Account;  // access/account.h

// One checked request: what the engine gets, and what only the edge needs.
struct Generation {
  std::string client_id;  // unique among the requests in flight
  std::shared_ptr<const Request> request;
  std::vector<std::string> stop_strings;
  bool include_stop_in_output = false;
  bool skip_special_tokens = true;
  bool want_text = true;
  bool want_token_ids = false;
  bool hide_logprobs = false;  // they are only for the ranking
  // best_of: of the request's n outputs only so many are returned, ranked; 0 = all, as they come.
  int32_t num_best = 0;
  // To be compiled before the engine gets the request, which has no grammar yet.
  std::optional<GrammarSpec> grammar;
  Clock::time_point queue_deadline = Clock::time_point::max();
  std::shared_ptr<Account> account;  // who pays for its tokens; null = nobody

  // Outputs that the client gets.
  int32_t num_outputs() const {
    if (num_best > 0) return num_best;
    return request->beam.on() ? request->beam.num_return_sequences : request->sampling.n;
  }
  // Which outputs there are is known only when all have ended.
  bool told_at_end() const { return num_best > 0 || request->beam.on(); }
};

// What is new in one branch.
struct Delta {
  int32_t branch = 0;
  std::string text;
  std::vector<TokenId> token_ids;  // empty unless asked for
  std::vector<Sampled> logprobs;   // one per new token if asked for
};

struct BranchEnd {
  int32_t branch = 0;
  FinishReason reason = FinishReason::kNone;
  TokenId stop_token = -1;  // that ended it, or -1
  std::string stop_string;  // that ended it, or empty
  int32_t completion_tokens = 0;
  std::optional<float> score;  // outputs are ordered by it, best first
};

// Where a request's output goes: one gRPC call. All functions run on the edge thread, in the order
// OnAccepted, OnPromptLogprobs ..., OnDelta ..., OnBranchEnd (one for each branch), OnClosed.
// OnClosed is always the last and comes exactly once; a refusal or a client that left may bring it
// first.
class StreamSink {
 public:
  virtual ~StreamSink() = default;
  // stats: prompt_tokens, cached_tokens, queue_us.
  virtual void OnAccepted(const RequestStats& stats) = 0;
  // The next positions of the prompt, in order; only if asked for.
  virtual void OnPromptLogprobs(const std::vector<PromptLogprob>& logprobs) = 0;
  virtual void OnDelta(Delta delta) = 0;
  // last: the request's figures, with its last branch only; else null.
  virtual void OnBranchEnd(const BranchEnd& end, const RequestStats* last) = 0;
  // accepted: whether OnAccepted came before.
  virtual void OnClosed(const absl::Status& status, bool accepted, const RequestStats& stats) = 0;
  // What waits for a slow reader.
  virtual size_t buffered_bytes() const = 0;
};

}  // namespace quire
