// server/cli/send_all.h -- keeps a number of requests in flight until all are answered.
//
// Used by the benches; called on one thread, which waits. Calls run on gRPC's threads and share the
// stub's connection.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/workloads.h"
#include "quire/v1/quire.grpc.pb.h"

namespace quire {

struct RunTotals {
  std::vector<RequestTrace> traces;  // in the order of the requests
  uint64_t output_tokens = 0;        // these three as the server counted
  uint64_t cached_tokens = 0;
  uint64_t preemptions = 0;
  uint64_t events = 0;  // messages that came
  std::string error;    // of the first request that failed
};

// After a failure no new request is sent.
RunTotals SendAll(quire::v1::Generation::Stub& stub,
                  const std::vector<quire::v1::GenerateRequest>& requests, int32_t concurrency);

}  // namespace quire
