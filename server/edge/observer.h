// server/edge/observer.h -- who wants to know how requests fare: metrics.
//
// Edge thread, except OnRefused; must not block. Each request that is let in brings OnEnd exactly
// once, and before it OnStarted if it was ever scheduled, and OnToken for each token that is its
// client's.
#pragma once

#include <optional>

#include "base/status.h"
#include "scheduler/request.h"
#include "server/edge/generation.h"

namespace quire {

struct TokenTime {
  std::optional<double> first_s;  // of the request's first token: since its arrival
  std::optional<double> gap_s;    // of a branch's second token and on: since the one before
};

struct RequestEnd {
  const Generation& generation;
  const RequestStats& stats;
  const absl::Status& outcome;
  FinishReason reason;  // kStop or kLength if the outcome is OK; of the last branch
  bool accepted;        // it was scheduled once
  double e2e_s;         // since its arrival
};

class EdgeObserver {
 public:
  virtual ~EdgeObserver() = default;
  virtual void OnStarted(const RequestStats& stats) = 0;
  virtual void OnToken(const TokenTime& time) = 0;
  virtual void OnEnd(const RequestEnd& end) = 0;
  // Any thread. It was never let in.
  virtual void OnRefused(const absl::Status& status) = 0;
};

}  // namespace quire
