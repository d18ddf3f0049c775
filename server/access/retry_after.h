// server/access/retry_after.h -- when a refused caller may come again, carried by its Status.
//
// Front ends turn it into what their protocol has: the trailer grpc-retry-pushback-ms, the header
// Retry-After. Any thread.
#pragma once

#include <chrono>
#include <optional>

#include "base/status.h"

namespace quire {

absl::Status WithRetryAfter(absl::Status status, std::chrono::milliseconds wait);

// nullopt: nothing is known, or a retry won't help.
std::optional<std::chrono::milliseconds> RetryAfter(const absl::Status& status);

}  // namespace quire
