// server/access/security_options.h -- from options to what guards the ports. At start.
#pragma once

#include <memory>
#include <string>

#include "base/status.h"
#include "server/access/access_control.h"
#include "server/access/tls_files.h"
#include "server/options.h"

namespace quire {

absl::StatusOr<std::unique_ptr<AccessControl>> OpenAccess(const ServerOptions& options);
// Null without ssl_certfile.
absl::StatusOr<std::unique_ptr<TlsFiles>> OpenTls(const ServerOptions& options);

// What contradicts itself, and files that can't be used; reads them.
// ERRORS: kInvalidArgument, kNotFound, naming the option.
absl::Status CheckSecurity(const ServerOptions& options);

// Where the operator's socket of a daemon on `port` is unless an option says otherwise: the same
// for daemon and `quire admin`, in a folder that only this user can enter.
std::string DefaultAdminSocket(int32_t port);

}  // namespace quire
