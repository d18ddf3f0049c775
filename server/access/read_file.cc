// server/access/read_file.cc -- see read_file.h.
#include "server/access/read_file.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <fstream>

namespace quire {

absl::StatusOr<std::string> ReadSmallFile(const std::string& path, size_t max_bytes) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) {
    return Error(absl::StatusCode::kNotFound, "{}: {}", path, std::strerror(errno));
  }
  if (!S_ISREG(info.st_mode)) return InvalidArgument("{}: is not a file", path);
  std::ifstream file(path, std::ios::binary);
  std::string text(max_bytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (!file.eof() && file.fail()) return InvalidArgument("{}: can't be read", path);
  text.resize(static_cast<size_t>(file.gcount()));
  if (text.size() > max_bytes) {
    return InvalidArgument("{}: has more than {} bytes", path, max_bytes);
  }
  return text;
}

}  // namespace quire
