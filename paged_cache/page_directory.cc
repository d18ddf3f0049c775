#include "paged_cache/page_directory.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string_view>

namespace quire {
namespace {

constexpr std::string_view kPageSuffix = ".page";
constexpr std::string_view kTempSuffix = ".tmp";
constexpr size_t kKeyDigits = 64;
constexpr size_t kFolderDigits = 2;

absl::Status FromErrno(int error, std::string_view path, std::string_view what) {
  absl::StatusCode code = absl::StatusCode::kUnavailable;
  if (error == ENOENT) code = absl::StatusCode::kNotFound;
  if (error == ENOTDIR || error == ELOOP) code = absl::StatusCode::kInvalidArgument;
  if (error == EACCES || error == EPERM || error == EROFS) {
    code = absl::StatusCode::kPermissionDenied;
  }
  if (error == ENOSPC || error == EDQUOT) code = absl::StatusCode::kResourceExhausted;
  return Error(code, "{}: {}: {}", path, what, std::strerror(error));
}

// "ab/cd/"
std::string Folder(std::string_view hex) {
  return fmt::format("{}/{}/", hex.substr(0, kFolderDigits), hex.substr(kFolderDigits, 2));
}
std::string PagePath(const Sha256Digest& key) {
  const std::string hex = key.ToHex();
  return Folder(hex).append(hex).append(kPageSuffix);
}

bool IsFolderName(std::string_view name) {
  return name.size() == kFolderDigits &&
         name.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

// The key in the name of a file that ends in `suffix`.
std::optional<Sha256Digest> KeyOf(std::string_view name, std::string_view suffix) {
  if (name.size() != kKeyDigits + suffix.size() || !name.ends_with(suffix)) return std::nullopt;
  return Sha256Digest::FromHex(name.substr(0, kKeyDigits));
}

UniqueFd OpenFolder(int parent, const std::string& name) {
  return UniqueFd(
      openat(parent, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
}

// The names in an open folder, "." and ".." aside; none if it cannot be read.
std::vector<std::string> NamesIn(int folder) {
  std::vector<std::string> names;
  const int copy = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (copy < 0) return names;
  DIR* dir = fdopendir(copy);
  if (dir == nullptr) {
    close(copy);
    return names;
  }
  while (const dirent* entry = readdir(dir)) {  // one thread per DIR: safe
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
  }
  closedir(dir);
  return names;
}

// A page's place: its file, a link or an empty folder.
void RemoveAt(int folder, const std::string& name) {
  if (unlinkat(folder, name.c_str(), 0) != 0 && (errno == EISDIR || errno == EPERM)) {
    unlinkat(folder, name.c_str(), AT_REMOVEDIR);
  }
}

bool MayPass(int error) { return error == EMFILE || error == ENFILE || error == ENOMEM; }

int OpenPage(int root, const Sha256Digest& key) {
  // O_NONBLOCK: a FIFO in its place must not hang.
  return openat(root, PagePath(key).c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
}

void ScanFolder(int folder, const std::string& prefix, PageDirectory::Found& found) {
  for (const std::string& name : NamesIn(folder)) {
    if (KeyOf(name, kTempSuffix).has_value()) {
      RemoveAt(folder, name);
      continue;
    }
    const std::optional<Sha256Digest> key = KeyOf(name, kPageSuffix);
    if (!key.has_value()) continue;
    struct stat info {};
    if (fstatat(folder, name.c_str(), &info, AT_SYMLINK_NOFOLLOW) != 0) continue;
    if (!S_ISREG(info.st_mode) || !name.starts_with(prefix)) {
      ++found.num_misplaced;
      RemoveAt(folder, name);
      continue;
    }
    constexpr int64_t kNsPerSecond = 1'000'000'000;
    found.pages.push_back(
        {.key = *key,
         .bytes = static_cast<uint64_t>(info.st_size),
         .mtime_ns = int64_t{info.st_mtim.tv_sec} * kNsPerSecond + info.st_mtim.tv_nsec});
  }
}

}  // namespace

UniqueFd::~UniqueFd() {
  if (fd_ >= 0) close(fd_);
}

absl::StatusOr<PageDirectory> PageDirectory::Open(const std::string& path) {
  if (path.empty()) return InvalidArgument("directory= must not be empty");
  std::error_code error;
  if (!std::filesystem::exists(path, error)) {
    const std::filesystem::path parent = std::filesystem::path(path).parent_path();
    if (!parent.empty()) std::filesystem::create_directories(parent, error);
    if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) {
      return FromErrno(errno, path, "cannot make the directory");
    }
  }
  PageDirectory directory;
  directory.path_ = path;
  directory.root_ = UniqueFd(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  const int root = directory.root_.get();
  if (root < 0) return FromErrno(errno, path, "cannot open the directory");
  if (faccessat(root, ".", W_OK | X_OK, AT_EACCESS) != 0) {
    return FromErrno(errno, path, "cannot write into the directory");
  }
  directory.lock_ = UniqueFd(openat(root, "lock", O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (directory.lock_.get() < 0) return FromErrno(errno, path, "cannot open the file 'lock' in it");
  if (flock(directory.lock_.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return FromErrno(errno, path, "cannot lock the directory");
    return Error(absl::StatusCode::kFailedPrecondition,
                 "directory={} is in use by another process; give each its own directory", path);
  }
  return directory;
}

PageDirectory::Found PageDirectory::Scan() const {
  Found found;
  for (const std::string& first : NamesIn(root_.get())) {
    if (!IsFolderName(first)) continue;
    const UniqueFd outer = OpenFolder(root_.get(), first);
    if (outer.get() < 0) continue;
    for (const std::string& second : NamesIn(outer.get())) {
      if (!IsFolderName(second)) continue;
      const UniqueFd inner = OpenFolder(outer.get(), second);
      if (inner.get() >= 0) ScanFolder(inner.get(), first + second, found);
    }
  }
  return found;
}

PageDirectory::ReadResult PageDirectory::Read(const Sha256Digest& key,
                                              const PageFileLayout& layout) const {
  const UniqueFd file(OpenPage(root_.get(), key));
  if (file.get() < 0) {
    if (MayPass(errno)) return std::monostate();
    return PageFault::kIo;
  }
  auto result = ReadPageFile(file.get(), layout, key);
  if (auto* fault = std::get_if<PageFault>(&result)) return *fault;
  return std::get<PageEntry>(std::move(result));
}

std::variant<PageHeader, PageFault> PageDirectory::ReadHeader(const Sha256Digest& key,
                                                              const PageFileLayout& layout) const {
  const UniqueFd file(OpenPage(root_.get(), key));
  if (file.get() < 0) return PageFault::kIo;
  return ReadPageHeader(file.get(), layout, key);
}

absl::Status PageDirectory::Write(const PageEntry& entry, const PageFileLayout& layout,
                                  bool sync) const {
  const int root = root_.get();
  const std::string page = PagePath(entry.key);
  const std::string temp =
      page.substr(0, page.size() - kPageSuffix.size()) + std::string(kTempSuffix);
  const auto open_temp = [&] {
    constexpr int kFlags = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
    return openat(root, temp.c_str(), kFlags, 0600);
  };
  int fd = open_temp();
  if (fd < 0 && errno == ENOENT) {
    const std::string folder = page.substr(0, 2 * kFolderDigits + 1);
    mkdirat(root, folder.substr(0, kFolderDigits).c_str(), 0700);
    mkdirat(root, folder.c_str(), 0700);
    fd = open_temp();
  }
  if (fd < 0 && errno == EEXIST) {
    unlinkat(root, temp.c_str(), 0);
    fd = open_temp();
  }
  if (fd < 0) return FromErrno(errno, path_ + "/" + temp, "cannot create");
  const auto fail = [&](const absl::Status& status) {
    unlinkat(root, temp.c_str(), 0);
    return Annotate(status, path_ + "/" + page);
  };
  {
    const UniqueFd file(fd);
    if (const absl::Status status = WritePageFile(fd, entry, layout); !status.ok()) {
      return fail(status);
    }
    if (sync && fsync(fd) != 0) return fail(FromErrno(errno, temp, "cannot sync"));
  }
  if (renameat(root, temp.c_str(), root, page.c_str()) != 0) {
    return fail(FromErrno(errno, temp, "cannot rename"));
  }
  if (sync) {
    const UniqueFd folder = OpenFolder(root, page.substr(0, 2 * kFolderDigits + 1));
    if (folder.get() >= 0) fsync(folder.get());
  }
  return absl::OkStatus();
}

void PageDirectory::Remove(const Sha256Digest& key) const { RemoveAt(root_.get(), PagePath(key)); }

void PageDirectory::Touch(const Sha256Digest& key) const {
  utimensat(root_.get(), PagePath(key).c_str(), nullptr, AT_SYMLINK_NOFOLLOW);
}

}  // namespace quire
