// server/grpc/zip.cc -- see zip.h. Offsets and lengths are little-endian.
#include "server/grpc/zip.h"

#include <zlib.h>

#include <cstdint>
#include <limits>

namespace quire {
namespace {

constexpr size_t kMaxBytes = size_t{1} << 31;
constexpr uint16_t kVersion = 20;  // needed to extract: deflate
constexpr uint16_t kUtf8Names = 0x800;
constexpr uint16_t kDeflated = 8;
constexpr uint16_t kFirstDay = 0x21;  // 1980-01-01: the archive of equal files is equal

void Put16(uint16_t v, std::string& out) {
  out += static_cast<char>(v & 0xff);
  out += static_cast<char>(v >> 8);
}
void Put32(uint32_t v, std::string& out) {
  Put16(static_cast<uint16_t>(v & 0xffff), out);
  Put16(static_cast<uint16_t>(v >> 16), out);
}

// What the local and the central header have in common.
void PutEntry(const std::string& name, uint32_t crc, size_t packed, size_t size, std::string& out) {
  Put16(kVersion, out);
  Put16(kUtf8Names, out);
  Put16(kDeflated, out);
  Put16(0, out);  // time
  Put16(kFirstDay, out);
  Put32(crc, out);
  Put32(static_cast<uint32_t>(packed), out);
  Put32(static_cast<uint32_t>(size), out);
  Put16(static_cast<uint16_t>(name.size()), out);
  Put16(0, out);  // extra field
}

absl::StatusOr<std::string> Deflate(const std::string& data) {
  z_stream stream{};
  // -15: raw deflate with the largest window.
  CHECK(deflateInit2(&stream, Z_BEST_SPEED, Z_DEFLATED, -15, 8, Z_DEFAULT_STRATEGY) == Z_OK);
  std::string packed(deflateBound(&stream, static_cast<uLong>(data.size())), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(data.data()));
  stream.avail_in = static_cast<uInt>(data.size());
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = static_cast<uInt>(packed.size());
  const int result = deflate(&stream, Z_FINISH);
  packed.resize(stream.total_out);
  deflateEnd(&stream);
  CHECK(result == Z_STREAM_END, "result={}", result);  // deflateBound is enough
  return packed;
}

}  // namespace

absl::StatusOr<std::string> MakeZip(const std::vector<std::pair<std::string, std::string>>& files) {
  CHECK(files.size() <= std::numeric_limits<uint16_t>::max());
  std::string out;
  std::string directory;
  for (const auto& [name, data] : files) {
    if (data.size() >= kMaxBytes || out.size() + data.size() >= kMaxBytes) {
      return InvalidArgument("{} has {} bytes, an archive must stay below {}", name, data.size(),
                             kMaxBytes);
    }
    ASSIGN_OR_RETURN(const std::string packed, Deflate(data));
    const auto crc = static_cast<uint32_t>(
        ::crc32(0, reinterpret_cast<const Bytef*>(data.data()), static_cast<uInt>(data.size())));
    const size_t offset = out.size();
    Put32(0x04034b50, out);
    PutEntry(name, crc, packed.size(), data.size(), out);
    out += name;
    out += packed;

    Put32(0x02014b50, directory);
    Put16(kVersion, directory);  // made by
    PutEntry(name, crc, packed.size(), data.size(), directory);
    Put16(0, directory);  // comment
    Put16(0, directory);  // disk
    Put16(0, directory);  // internal attributes
    Put32(0, directory);  // external attributes
    Put32(static_cast<uint32_t>(offset), directory);
    directory += name;
  }
  const size_t directory_offset = out.size();
  out += directory;
  Put32(0x06054b50, out);
  Put16(0, out);
  Put16(0, out);
  Put16(static_cast<uint16_t>(files.size()), out);
  Put16(static_cast<uint16_t>(files.size()), out);
  Put32(static_cast<uint32_t>(directory.size()), out);
  Put32(static_cast<uint32_t>(directory_offset), out);
  Put16(0, out);
  return out;
}

}  // namespace quire
