// server/grpc/status.h -- absl::Status to grpc::Status: the codes are numerically equal.
#pragma once

#include <grpcpp/support/status.h>

#include "base/status.h"

namespace quire {

inline grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return grpc::Status(static_cast<grpc::StatusCode>(static_cast<int>(status.code())),
                      Message(status));
}

}  // namespace quire
