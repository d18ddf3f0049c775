// server/grpc/caller.h -- who calls, from a call's metadata. gRPC threads.
//
// The port has checked the call before (guarded_credentials.h); a handler that acts for its caller
// asks AccessControl::Identify with this once more to know him.
#pragma once

#include <grpcpp/server_context.h>

#include "server/access/access_control.h"

namespace quire {

inline Credentials CredentialsOf(const grpc::ServerContextBase& context) {
  Credentials credentials;
  const auto read = [&](const char* name, std::string& out) {
    const auto [begin, end] = context.client_metadata().equal_range(name);
    if (begin == end) return;
    if (std::next(begin) != end) credentials.repeated = true;
    out.assign(begin->second.data(), begin->second.size());
  };
  read("authorization", credentials.authorization);
  read("x-api-key", credentials.x_api_key);
  return credentials;
}

}  // namespace quire
