// server/access/key_rules.cc -- see key_rules.h.
#include "server/access/key_rules.h"

#include <algorithm>

namespace quire {

absl::Status ApplyKey(const ApiKey& key, bool named_tenant, bool named_priority, Request& request) {
  if (!key.tenant.empty()) {
    if (named_tenant && request.tenant != key.tenant) {
      return Error(absl::StatusCode::kPermissionDenied,
                   "scheduling.tenant={} is not the tenant of key {}; leave it out", request.tenant,
                   key.name);
    }
    request.tenant = key.tenant;
  }
  if (key.priority.has_value()) {
    if (named_priority && request.priority != *key.priority) {
      return Error(absl::StatusCode::kPermissionDenied,
                   "scheduling.priority={} is not {}, the priority of key {}; leave it out",
                   request.priority, *key.priority, key.name);
    }
    request.priority = *key.priority;
  }
  if (key.max_priority.has_value()) {
    if (named_priority && request.priority > *key.max_priority) {
      return Error(absl::StatusCode::kPermissionDenied,
                   "scheduling.priority={} exceeds {}, the most of key {}; lower it",
                   request.priority, *key.max_priority, key.name);
    }
    request.priority = std::min(request.priority, *key.max_priority);
  }
  return absl::OkStatus();
}

void SaltByTenant(Request& request) {
  request.cache_salt = request.tenant + " " + request.cache_salt;
}

}  // namespace quire
