// server/http/generation_call.h -- one HTTP request that generates, from its body to its last byte.
//
//   worker thread          edge thread                     connection's strand
//   read the body, admit
//   Open (each prompt) --> PromptSink::On... -- posts --->  writer -> Exchange::Write / Reply
//                          ClientGone, Abort <------------  the client left
//
// The call is kept alive by its sinks until the edge is done with them, and by the exchange.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_set>
#include <vector>

#include "server/front_door.h"
#include "server/http/exchange.h"
#include "server/openai/call.h"

namespace quire {

// Ids of requests in flight that clients chose: one that is in use is not taken again.
class IdsInUse {
 public:
  // False if it is in use. A token that gives it back otherwise.
  std::shared_ptr<const void> Take(const std::string& id);

 private:
  struct Set {
    std::mutex mutex;
    std::unordered_set<std::string> ids;  // guarded by mutex
  };
  const std::shared_ptr<Set> set_ = std::make_shared<Set>();
};

class GenerationCall : public std::enable_shared_from_this<GenerationCall> {
 public:
  // On a worker thread: answers now, or later.
  static void Start(FrontDoor& door, IdsInUse& ids, CallReader reader, ExchangePtr exchange);

 private:
  class PromptSink;
  friend class PromptSink;

  GenerationCall(FrontDoor& door, ExchangePtr exchange, OpenAiCall call);

  absl::Status Open(const std::string& engine_id);

  // Strand of the connection.
  void Begin(std::vector<Admitted> admitted);
  void Accepted(int32_t prompt, const RequestStats& stats);
  void PromptLogprobs(int32_t prompt, const std::vector<PromptLogprob>& logprobs);
  void Deltas(int32_t prompt, const Delta& delta);
  void BranchEnded(int32_t prompt, const BranchEnd& end);
  void Closed(int32_t prompt, const absl::Status& status, bool accepted, const RequestStats& stats);
  void Fail(const absl::Status& status, bool accepted);
  void Leave();
  void Send(std::string sse);

  FrontDoor& door_;
  const ExchangePtr exchange_;
  OpenAiCall call_;
  std::vector<std::shared_ptr<PromptSink>> sinks_;  // strand
  size_t num_closed_ = 0;                           // strand
  bool over_ = false;  // strand: the answer is complete, or nobody wants it
  bool sent_ = false;  // strand: a part of the stream
};

}  // namespace quire
