// server/grpc/zip.h -- a ZIP archive in memory, deflated (PKWARE's APPNOTE 6.3, without Zip64).
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/status.h"

namespace quire {

// files: names and contents. ERRORS: kInvalidArgument if the archive would not stay below 2 GiB.
absl::StatusOr<std::string> MakeZip(const std::vector<std::pair<std::string, std::string>>& files);

}  // namespace quire
