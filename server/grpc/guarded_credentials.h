// server/grpc/guarded_credentials.h -- what a gRPC port asks of those who connect and call: TLS,
// and a check of every single call before any service sees it.
//
// The check is a property of the port, not of a service, so a service that is added to a port
// later is covered, and so are paths that no service has. Built on the C core's interface: the C++
// one has no such check for ports without TLS, and no certificates that change.
#pragma once

#include <grpcpp/security/server_credentials.h>

#include <functional>
#include <memory>
#include <string_view>

#include "base/status.h"
#include "server/access/access_control.h"
#include "server/access/tls_files.h"

namespace quire {

// gRPC threads; must not block. path: "/package.Service/Method".
using CallCheck = std::function<absl::Status(std::string_view path, const Credentials&)>;

// The check of `access`, which outlives the port; none if keys are off.
CallCheck CheckOf(const AccessControl& access, bool admin_only);

// tls: null = plaintext; outlives the server. check: null = all calls may pass.
std::shared_ptr<grpc::ServerCredentials> GuardedCredentials(const TlsFiles* tls, CallCheck check);

}  // namespace quire
