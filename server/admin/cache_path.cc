#include "server/admin/cache_path.h"

#include <algorithm>
#include <filesystem>

namespace quire {
namespace {

constexpr size_t kMaxPathBytes = 1024;

}  // namespace

absl::StatusOr<std::string> ResolveCachePath(const std::string& base,
                                             const std::string& requested) {
  namespace fs = std::filesystem;
  if (base.empty()) {
    return Error(absl::StatusCode::kFailedPrecondition,
                 "cache_directory is not set, so nothing is saved or loaded; start the daemon with "
                 "--cache-directory");
  }
  if (requested.empty()) {
    return InvalidArgument("directory= is empty; name a folder below cache_directory={}", base);
  }
  if (requested.size() > kMaxPathBytes) {
    return InvalidArgument("directory has {} bytes, limit is {}", requested.size(), kMaxPathBytes);
  }
  const bool odd = std::any_of(requested.begin(), requested.end(),
                               [](char c) { return static_cast<unsigned char>(c) < ' '; });
  if (odd) return InvalidArgument("directory has control characters; name a plain folder");
  const fs::path path(requested);
  if (path.is_absolute()) {
    return InvalidArgument("directory={} is absolute; name a folder below cache_directory={}",
                           requested, base);
  }
  std::error_code error;
  const fs::path root = fs::weakly_canonical(fs::path(base), error);
  if (error) return InvalidArgument("cache_directory={}: {}", base, error.message());
  const fs::path full = fs::weakly_canonical(root / path, error);
  if (error) return InvalidArgument("directory={}: {}", requested, error.message());
  // Compared part by part: /cache2 is not below /cache.
  const fs::path within = full.lexically_normal().lexically_relative(root.lexically_normal());
  if (within.empty() || within == "." || *within.begin() == "..") {
    return InvalidArgument("directory={} is not below cache_directory={}; name a folder there",
                           requested, base);
  }
  return (root / within).string();
}

}  // namespace quire
