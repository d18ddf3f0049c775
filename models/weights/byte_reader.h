// models/weights/byte_reader.h -- a cursor over untrusted little-endian bytes: every read is
// checked against the end before it happens, and errors say what was read, where, and how large the
// file is.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"

namespace quire {

static_assert(std::endian::native == std::endian::little, "file formats are read in place");

// For names and values that come from a file: printable ASCII as it is, other bytes as \xNN, cut
// after 80 bytes, so that an error stays one readable line.
inline std::string Printable(std::string_view s) {
  std::string out;
  for (size_t i = 0; i < s.size(); ++i) {
    if (i == 80) return out + fmt::format("... ({} bytes)", s.size());
    const auto c = static_cast<unsigned char>(s[i]);
    if (c < 0x20 || c >= 0x7f) {
      out += fmt::format("\\x{:02x}", c);
    } else {
      out += s[i];
    }
  }
  return out;
}

class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> bytes, size_t pos = 0) : bytes_(bytes), pos_(pos) {
    CHECK(pos <= bytes.size());
  }

  size_t pos() const { return pos_; }
  size_t remaining() const { return bytes_.size() - pos_; }

  // ERRORS of all: kInvalidArgument with `what`, the byte offset, bytes needed and the file's size.
  template <typename T>
  absl::StatusOr<T> Read(std::string_view what) {
    static_assert(std::is_arithmetic_v<T>);
    if (remaining() < sizeof(T)) return Truncated(what, sizeof(T));
    T value;
    std::memcpy(&value, bytes_.data() + pos_, sizeof(T));
    pos_ += sizeof(T);
    return value;
  }

  // A uint64 length and as many bytes; the view points into the file.
  absl::StatusOr<std::string_view> ReadString(std::string_view what, uint64_t max_bytes) {
    const size_t at = pos_;
    ASSIGN_OR_RETURN(const auto length, Read<uint64_t>(what));
    if (length > remaining()) {
      return InvalidArgument(
          "{} length={} at byte {} exceeds the {} bytes that follow: the file ({} bytes) is "
          "truncated or corrupt",
          what, length, at, remaining(), bytes_.size());
    }
    if (length > max_bytes) {
      return InvalidArgument("{} length={} at byte {} exceeds the limit of {} bytes", what, length,
                             at, max_bytes);
    }
    const std::string_view s(reinterpret_cast<const char*>(bytes_.data()) + pos_, length);
    pos_ += length;
    return s;
  }

  absl::Status Skip(std::string_view what, uint64_t num_bytes) {
    if (num_bytes > remaining()) return Truncated(what, num_bytes);
    pos_ += num_bytes;
    return absl::OkStatus();
  }

 private:
  absl::Status Truncated(std::string_view what, uint64_t needed) const {
    return InvalidArgument("truncated: {} at byte {} needs {} bytes, but the file has only {}",
                           what, pos_, needed, bytes_.size());
  }

  std::span<const std::byte> bytes_;
  size_t pos_;
};

}  // namespace quire
