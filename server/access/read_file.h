// server/access/read_file.h -- a small file as a whole. Any thread; reads a disk.
#pragma once

#include <string>

#include "base/status.h"

namespace quire {

// ERRORS: kNotFound, kInvalidArgument (a folder, too large, unreadable), naming the path.
absl::StatusOr<std::string> ReadSmallFile(const std::string& path, size_t max_bytes);

}  // namespace quire
