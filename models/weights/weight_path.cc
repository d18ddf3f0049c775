#include "models/weights/weight_path.h"

#include <filesystem>

#include "models/weights/byte_reader.h"

namespace quire {
namespace {

namespace fs = std::filesystem;

bool IsPlainName(const std::string& name) {
  if (name.empty() || name.size() > 255 || name == "." || name == "..") return false;
  for (const char c : name) {
    // Separators and drives of every system, and control characters, NUL above all.
    if (c == '/' || c == '\\' || c == ':' || static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      return false;
    }
  }
  return true;
}

}  // namespace

absl::StatusOr<std::string> ResolveWeightFile(const std::string& dir, const std::string& name) {
  if (!IsPlainName(name)) {
    return InvalidArgument("file=\"{}\" must be a plain file name in the model's directory",
                           Printable(name));
  }
  std::error_code error;
  const fs::path root = fs::canonical(dir, error);
  if (error) return Error(absl::StatusCode::kNotFound, "{}: {}", dir, error.message());
  const fs::path path = fs::canonical(root / name, error);
  if (error == std::errc::no_such_file_or_directory) {
    return Error(absl::StatusCode::kNotFound, "{}: no such file", (root / name).string());
  }
  if (error) return InvalidArgument("{}: {}", (root / name).string(), error.message());
  const bool in_root = path.parent_path() == root;
  const bool in_blobs = root.parent_path().filename() == "snapshots" &&
                        path.parent_path() == root.parent_path().parent_path() / "blobs";
  if (!in_root && !in_blobs) {
    return InvalidArgument(
        "file=\"{}\" is a link to {}, which lies outside the model's directory {}; put the file "
        "itself there",
        Printable(name), path.string(), root.string());
  }
  if (!fs::is_regular_file(path, error)) {
    return InvalidArgument("{}: not a regular file", path.string());
  }
  return path.string();
}

}  // namespace quire
