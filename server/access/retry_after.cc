// server/access/retry_after.cc -- see retry_after.h.
#include "server/access/retry_after.h"

#include <charconv>
#include <string>

#include "absl/strings/cord.h"

namespace quire {
namespace {

constexpr const char* kType = "quire/retry-after-ms";

}  // namespace

absl::Status WithRetryAfter(absl::Status status, std::chrono::milliseconds wait) {
  status.SetPayload(kType, absl::Cord(std::to_string(wait.count())));
  return status;
}

std::optional<std::chrono::milliseconds> RetryAfter(const absl::Status& status) {
  const auto payload = status.GetPayload(kType);
  if (!payload.has_value()) return std::nullopt;
  const std::string text(*payload);
  int64_t ms = 0;
  std::from_chars(text.data(), text.data() + text.size(), ms);
  return std::chrono::milliseconds(ms);
}

}  // namespace quire
