// server/grpc/status.h -- absl::Status to grpc::Status: the codes are numerically equal.
//
// A wait that the status names travels as the details that gRPC's error model has for it
// (google.rpc.RetryInfo); call_interceptor.h makes the trailer grpc-retry-pushback-ms of it.
#pragma once

#include <grpcpp/support/status.h>

#include <chrono>
#include <optional>

#include "base/status.h"

namespace quire {

grpc::Status ToGrpc(const absl::Status& status);

// nullopt: the status names no wait.
std::optional<std::chrono::milliseconds> RetryPushback(const grpc::Status& status);

}  // namespace quire
