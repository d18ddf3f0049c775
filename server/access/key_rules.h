// server/access/key_rules.h -- what a key says about a request: its tenant and its priority.
//
// A header that a proxy may have set (x-tenant-id) is overridden by the key; what the caller wrote
// into the request itself is obeyed or refused. Pure.
#pragma once

#include "base/status.h"
#include "scheduler/request.h"
#include "server/access/api_key.h"

namespace quire {

// named_tenant, named_priority: the request itself has it; then request.tenant, .priority do.
// ERRORS: kPermissionDenied naming the field, the key and what it may.
absl::Status ApplyKey(const ApiKey& key, bool named_tenant, bool named_priority, Request& request);

// Tenants share no prefixes, whatever salts they choose. A tenant has no space in it, so no two
// pairs give the same salt.
void SaltByTenant(Request& request);

}  // namespace quire
