// server/edge/branch_text.h -- one branch's tokens on their way to text.
//
// Tokens are detokenised, searched for stop strings and handed on as Delta. A token's id and
// logprob leave together with its text, so that tokens behind a match are dropped before anyone
// sees them:
//
//   tokens      t0      t1     t2      t3          (t2 completed a stop string; a longer one that
//   text end    3       5      9       12           was still possible is ruled out by t3)
//   match       starts at 6, ends at 9             -> t0 t1 t2 are kept, t3 is not; text is [0, 6)
//
// Edge thread, or any thread in tests: no clock, no locks.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <string>

#include "sampling/stop.h"
#include "scheduler/request.h"
#include "server/edge/generation.h"
#include "tokenizer/detokenizer.h"

namespace quire {

class BranchText {
 public:
  // `generation` outlives the branch.
  BranchText(const Tokenizer& tokenizer, const Generation& generation);

  // The next token. True if a stop string is found: the branch is over.
  // is_stop: an end or stop token, whose text belongs to the output only if stops are included.
  bool Push(const Sampled& sampled, bool is_stop, Delta& delta);

  // No token follows: hands on what was held back. True if that settled a stop string.
  bool Flush(Delta& delta);

  // Tokens that belong to the output, those that are held back included.
  int32_t num_tokens() const { return num_emitted_ + static_cast<int32_t>(held_.size()); }
  // Sum over the tokens that were handed on.
  double logprob_sum() const { return logprob_sum_; }
  bool stopped() const { return matcher_.stopped(); }
  // The stop string that ended the branch. REQUIRES: stopped().
  const std::string& stop_string() const;

 private:
  struct Held {
    Sampled sampled;
    int64_t text_end = 0;  // bytes of the branch's text up to and with this token's
  };

  void PushText(const std::string& piece, Delta& delta);
  void Emit(Delta& delta);
  void EmitFront(Delta& delta);
  void CutBehindMatch();

  const Generation& generation_;
  const bool want_logprobs_;
  Detokenizer detokenizer_;
  StopMatcher matcher_;
  std::deque<Held> held_;
  int32_t num_emitted_ = 0;
  double logprob_sum_ = 0;
  int64_t text_bytes_ = 0;       // detokenised
  int64_t unmatched_bytes_ = 0;  // of them, at the beginning, not searched because of min_tokens
  int64_t delivered_bytes_ = 0;
};

}  // namespace quire
