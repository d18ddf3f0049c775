// server/edge/active_request.h -- a request between the engine's events and its client.
//
// Turns TokenEvents into calls of a StreamSink: text per branch, one end per branch, one close.
// Outputs of best_of and of beam search are kept until the last branch has ended; then the best are
// told, renumbered from 0.
// Edge thread; pure logic without clock, socket or lock, so tests drive it directly.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "server/edge/branch_text.h"
#include "server/edge/generation.h"

namespace quire {

class ActiveRequest {
 public:
  // sink: alive until OnClosed was called or Detach.
  ActiveRequest(const Tokenizer& tokenizer, Generation generation, StreamSink* sink);

  const Generation& generation() const { return generation_; }
  bool accepted() const { return accepted_; }
  // The sink was closed or detached; the engine may still owe events.
  bool closed() const { return sink_ == nullptr; }
  StreamSink* sink() const { return sink_; }

  // Takes the engine's next event. A command is returned if a stop string matched: the engine then
  // ends that branch. After event.request_done the sink is closed.
  std::optional<Finish> Apply(const TokenEvent& event);

  // Closes the sink now, whatever the engine still sends: slow reader, drain deadline.
  void Close(const absl::Status& status);

  // The sink is going away; nothing is sent any more.
  void Detach() { sink_ = nullptr; }

  // How the request ended, once it has; for log and counters.
  const absl::Status& outcome() const { return outcome_; }
  // Of the branch that ended last; kStop if a stop string did it.
  FinishReason reason() const { return reason_; }
  // Whether the branch's next token is the client's: nothing has ended it yet.
  bool TakesTokens(int32_t branch) const {
    const Branch& b = branches_[static_cast<size_t>(branch)];
    return !b.matched && !b.ended;
  }
  const RequestStats& stats() const { return stats_; }

 private:
  struct Branch {
    BranchText text;
    bool matched = false;  // a stop string ended it before the engine knew
    bool ended = false;
    // Of answers that are told at the end.
    std::vector<Delta> held;
    std::optional<BranchEnd> end;
  };

  void Tell(Branch& branch, Delta delta);
  void EndBranch(Branch& branch, const TokenEvent& event);
  void TellHeld();
  int32_t CompletionTokens() const;

  const Generation generation_;
  StreamSink* sink_;
  std::vector<Branch> branches_;
  bool accepted_ = false;
  absl::Status outcome_;
  FinishReason reason_ = FinishReason::kNone;
  RequestStats stats_;
};

// What a reason means to the caller of the RPC. kStop and kLength are OK.
absl::Status StatusOfReason(FinishReason reason, const absl::Status& error);

}  // namespace quire
