// server/front_door.h -- the way in, the same for every front end: gRPC services and HTTP.
//
// Whatever protocol a request comes by, it is written as a quire.v1.GenerateRequest, so that there
// is one place that checks fields, one that tokenizes, and one that says no. Any thread; a front
// end calls Admit on one of its own threads, since it tokenizes, and then Open.
#pragma once

#include "base/status.h"
#include "quire/v1/quire.pb.h"
#include "server/access/access_control.h"
#include "server/convert.h"
#include "server/edge/edge.h"
#include "server/served_model.h"

namespace quire {

// A request that was let in, with its place in the engine's queue.
struct Admitted {
  QueueSlot slot;
  Generation generation;
};

class FrontDoor {
 public:
  // All outlive it. log_prompts: write every prompt that is let in to the log.
  FrontDoor(const ServedModel& model, Edge& edge, AccessControl& access, bool log_prompts)
      : model_(model), edge_(edge), access_(access), log_prompts_(log_prompts) {}

  const ServedModel& model() const { return model_; }
  // Who may call: front ends ask before they look at a request.
  AccessControl& access() { return access_; }
  Edge& edge() { return edge_; }

  // `arrival` needs no id and no time, but with keys an account: who comes without is refused,
  // whatever way the request took. unary: the whole answer must fit into one message. A refusal
  // is counted.
  // ERRORS: kResourceExhausted if the queue is full, kUnavailable while draining, and those of
  // AccessControl::TakeRequest and FromProto (convert.h).
  absl::StatusOr<Admitted> Admit(const pb::GenerateRequest& request, Arrival arrival, bool unary);

  // sink: see Edge::Open.
  void Open(Admitted admitted, StreamSink* sink) {
    edge_.Open(std::move(admitted.slot), std::move(admitted.generation), sink);
  }

 private:
  absl::StatusOr<Admitted> Check(const pb::GenerateRequest& request, const Arrival& arrival,
                                 bool unary);

  const ServedModel& model_;
  Edge& edge_;
  AccessControl& access_;
  const bool log_prompts_;
};

}  // namespace quire
