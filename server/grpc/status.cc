// server/grpc/status.cc -- see status.h.
//
// Written by hand, since the daemon links no google.rpc messages: google/rpc/status.proto (code 1,
// message 2, details 3), google/protobuf/any.proto (type_url 1, value 2),
// google/rpc/error_details.proto (RetryInfo: retry_delay 1), google/protobuf/duration.proto
// (seconds 1, nanos 2).
#include "server/grpc/status.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>

#include <string>

#include "server/access/retry_after.h"

namespace quire {
namespace {

using google::protobuf::io::CodedOutputStream;

constexpr const char* kRetryInfo = "type.googleapis.com/google.rpc.RetryInfo";

void WriteNumber(int field, uint64_t value, CodedOutputStream& out) {
  out.WriteTag(static_cast<uint32_t>(field) << 3);  // varint
  out.WriteVarint64(value);
}

void WriteBytes(int field, const std::string& bytes, CodedOutputStream& out) {
  out.WriteTag(static_cast<uint32_t>(field) << 3 | 2);  // length-delimited
  out.WriteVarint32(static_cast<uint32_t>(bytes.size()));
  out.WriteString(bytes);
}

template <typename Fill>
std::string Encode(const Fill& fill) {
  std::string bytes;
  google::protobuf::io::StringOutputStream stream(&bytes);
  CodedOutputStream out(&stream);
  fill(out);
  out.Trim();
  return bytes;
}

std::string Details(int code, const std::string& message, std::chrono::milliseconds wait) {
  const auto ms = static_cast<uint64_t>(wait.count());
  const std::string duration = Encode([&](CodedOutputStream& out) {
    WriteNumber(1, ms / 1000, out);
    WriteNumber(2, ms % 1000 * 1'000'000, out);
  });
  const std::string info = Encode([&](CodedOutputStream& out) { WriteBytes(1, duration, out); });
  const std::string any = Encode([&](CodedOutputStream& out) {
    WriteBytes(1, kRetryInfo, out);
    WriteBytes(2, info, out);
  });
  return Encode([&](CodedOutputStream& out) {
    WriteNumber(1, static_cast<uint64_t>(code), out);
    WriteBytes(2, message, out);
    WriteBytes(3, any, out);
  });
}

// Of a duration that Details wrote, in ms.
std::optional<uint64_t> ReadDuration(const std::string& duration) {
  google::protobuf::io::CodedInputStream in(reinterpret_cast<const uint8_t*>(duration.data()),
                                            static_cast<int>(duration.size()));
  uint64_t seconds = 0;
  uint64_t nanos = 0;
  if (in.ReadTag() != 8 || !in.ReadVarint64(&seconds)) return std::nullopt;
  if (in.ReadTag() != 16 || !in.ReadVarint64(&nanos)) return std::nullopt;
  return seconds * 1000 + nanos / 1'000'000;
}

}  // namespace

grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  const auto code = static_cast<grpc::StatusCode>(static_cast<int>(status.code()));
  const std::string message = Message(status);
  const auto wait = RetryAfter(status);
  if (!wait.has_value()) return grpc::Status(code, message);
  return grpc::Status(code, message, Details(code, message, *wait));
}

std::optional<std::chrono::milliseconds> RetryPushback(const grpc::Status& status) {
  // Ours end with Any{RetryInfo}: its url, tag and length of the value, tag and length of the
  // duration, the duration.
  const std::string details = status.error_details();
  const size_t url = details.rfind(kRetryInfo);
  constexpr size_t kHeads = 4;
  const size_t begin = url + std::string_view(kRetryInfo).size() + kHeads;
  if (url == std::string::npos || begin > details.size()) return std::nullopt;
  const std::optional<uint64_t> ms = ReadDuration(details.substr(begin));
  if (!ms.has_value()) return std::nullopt;
  return std::chrono::milliseconds(static_cast<int64_t>(*ms));
}

}  // namespace quire
