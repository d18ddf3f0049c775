// base/mapped_file.h -- a whole file, mapped read-only.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "base/status.h"

namespace quire {

// Move-only owner of a private read-only mapping. A file that is cut while it is mapped raises
// SIGBUS on access; loaders therefore check sizes at once and copy what they keep (weights are
// packed at load, then the mapping is dropped).
class MappedFile {
 public:
  // Only regular files: a FIFO or a device would block or never end.
  // ERRORS: kNotFound, kPermissionDenied, kInvalidArgument (not a regular file), naming the path.
  static absl::StatusOr<MappedFile> Open(const std::string& path);

  MappedFile() = default;
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  const std::string& path() const { return path_; }
  std::span<const std::byte> bytes() const { return {data_, size_}; }
  // Tells the kernel that the pages are not needed any more; they may be read again.
  void DropPages() const;

 private:
  std::string path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// The whole text of a small file. ERRORS: as Open; kInvalidArgument if it exceeds `max_bytes`.
absl::StatusOr<std::string> ReadTextFile(const std::string& path, size_t max_bytes);

}  // namespace quire
