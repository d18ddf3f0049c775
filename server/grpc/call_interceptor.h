// server/grpc/call_interceptor.h -- sees every call of a gRPC server, whichever service it is for:
// counts it, and puts into its trailer when a refused caller may come again.
//
// gRPC threads; no work per message of a stream beyond a look at what kind of operation it is.
#pragma once

#include <grpcpp/support/server_interceptor.h>

#include <memory>
#include <vector>

#include "server/metrics/call_metrics.h"

namespace quire {

using ServerInterceptors =
    std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>>;

// metrics: outlives the server.
ServerInterceptors CallInterceptors(CallMetrics& metrics);

}  // namespace quire
