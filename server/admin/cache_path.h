// server/admin/cache_path.h -- which folder a SaveCache or LoadCache may use: one below the option
// cache_directory, whatever the request says. Any thread; asks the file system.
#pragma once

#include <string>

#include "base/status.h"

namespace quire {

// The canonical path of `requested`, a relative one, below `base`. Links are followed before it is
// decided. The folder need not exist. ERRORS: kFailedPrecondition (no base), kInvalidArgument
// (empty, absolute, not below the base, bytes that no path has).
absl::StatusOr<std::string> ResolveCachePath(const std::string& base, const std::string& requested);

}  // namespace quire
