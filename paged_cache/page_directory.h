// paged_cache/page_directory.h -- the files of a page file store: names, the lock, the scan.
//
//   <directory>/lock                         held (flock) as long as the directory is open
//   <directory>/ab/cd/abcd<60 digits>.page   the page whose key is abcd...
//   <directory>/ab/cd/abcd<60 digits>.tmp    being written; renamed when it is whole
//
// Only files of exactly these names are ever touched; whatever else lies there stays. A link is
// never followed.
//
// Thread: any; the caller sees to it that one key is not written by two threads at once.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/status.h"
#include "paged_cache/page_file_format.h"
#include "paged_cache/sha256.h"

namespace quire {

// A file descriptor that is closed in the end.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~UniqueFd();
  int get() const { return fd_; }

 private:
  int fd_ = -1;
};

class PageDirectory {
 public:
  // Makes the directory if need be (mode 0700) and locks it.
  // ERRORS: kFailedPrecondition if another store has it open; kPermissionDenied if it cannot be
  // written; kNotFound, kInvalidArgument and others as errno says. All name the path.
  static absl::StatusOr<PageDirectory> Open(const std::string& path);

  struct File {
    Sha256Digest key;
    uint64_t bytes = 0;
    int64_t mtime_ns = 0;  // since 1970
  };
  struct Found {
    std::vector<File> pages;
    // Named like a page, but no regular file or in another key's folder. Deleted, if it can be.
    uint64_t num_misplaced = 0;
  };
  // What is there; deletes what earlier writers left unfinished.
  Found Scan() const;

  // ERRORS: PageFault, and nothing if the file could not be opened for a reason that may pass
  // (out of descriptors or memory).
  using ReadResult = std::variant<std::monostate, PageEntry, PageFault>;
  ReadResult Read(const Sha256Digest& key, const PageFileLayout& layout) const;
  std::variant<PageHeader, PageFault> ReadHeader(const Sha256Digest& key,
                                                 const PageFileLayout& layout) const;
  // The whole file or none; an older one of the same key is replaced. With `sync`, on the medium
  // when this returns. ERRORS: names the file and what errno says.
  absl::Status Write(const PageEntry& entry, const PageFileLayout& layout, bool sync) const;
  // Deletes the page if it is there; an empty folder in its place goes, too.
  void Remove(const Sha256Digest& key) const;
  // Sets the page's time to now.
  void Touch(const Sha256Digest& key) const;

 private:
  std::string path_;
  UniqueFd root_;
  UniqueFd lock_;
};

}  // namespace quire
