#include "server/retention.h"

#include <charconv>
#include <vector>

namespace quire {
namespace {

namespace pb = ::quire::v1;

constexpr int64_t kMaxMs = int64_t{1000} * 3600 * 24 * 365;
constexpr int kMaxRanges = 64;
constexpr const char* kKey = "x-kv-retention";

std::vector<std::string_view> Split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

std::string_view Trim(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

// A whole number that is all of `text`.
template <typename T>
bool ParseAll(std::string_view text, T& value) {
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && rest == text.data() + text.size();
}

bool ParseTtl(std::string_view text, int64_t& ms) {
  const size_t unit_at = text.find_first_not_of("0123456789");
  if (unit_at == std::string_view::npos || !ParseAll(text.substr(0, unit_at), ms)) return false;
  const std::string_view unit = text.substr(unit_at);
  const int64_t factor = unit == "ms"  ? 1
                         : unit == "s" ? 1000
                         : unit == "m" ? 60'000
                         : unit == "h" ? 3'600'000
                                       : 0;
  if (factor == 0) return false;
  return !__builtin_mul_overflow(ms, factor, &ms);
}

absl::StatusOr<pb::RetentionPolicy> ParseText(const std::string& text) {
  pb::RetentionPolicy policy;
  for (const std::string_view piece : Split(text, ',')) {
    const std::string_view range = Trim(piece);
    const std::vector<std::string_view> parts = Split(range, ':');
    const bool is_decode = parts[0] == "decode";
    int32_t start = 0;
    int32_t end = 0;
    int32_t priority = 0;
    int64_t ttl_ms = 0;
    const size_t dash = parts[0].find('-');
    const bool has_end = dash != std::string_view::npos && dash + 1 < parts[0].size();
    const bool tokens_ok =
        is_decode || (dash != std::string_view::npos && ParseAll(parts[0].substr(0, dash), start) &&
                      (!has_end || ParseAll(parts[0].substr(dash + 1), end)));
    if (!tokens_ok || parts.size() < 2 || parts.size() > 3 || !ParseAll(parts[1], priority) ||
        (parts.size() == 3 && !ParseTtl(parts[2], ttl_ms))) {
      return InvalidArgument(
          "{}: \"{}\" is not start-end:priority[:ttl] or decode:priority[:ttl]; like "
          "0-512:80:600s",
          kKey, range);
    }
    if (is_decode) {
      if (policy.has_decode_priority()) return InvalidArgument("{}: decode is given twice", kKey);
      policy.set_decode_priority(priority);
      if (parts.size() == 3) policy.set_decode_ttl_ms(ttl_ms);
      continue;
    }
    pb::RetentionRange& out = *policy.add_ranges();
    out.set_start(start);
    if (has_end) out.set_end(end);
    out.set_priority(priority);
    if (parts.size() == 3) out.set_ttl_ms(ttl_ms);
  }
  return policy;
}

absl::Status CheckPriority(std::string_view name, int32_t priority) {
  if (priority >= 0 && priority <= kMaxRetentionPriority) return absl::OkStatus();
  return InvalidArgument("{}={} is outside [0, {}] ({} is what all others have)", name, priority,
                         kMaxRetentionPriority, kDefaultRetentionPriority);
}

absl::Status Check(const pb::RetentionPolicy& policy, std::string_view path) {
  if (policy.ranges_size() > kMaxRanges) {
    return InvalidArgument("{}.ranges has {} entries, limit is {}", path, policy.ranges_size(),
                           kMaxRanges);
  }
  for (int i = 0; i < policy.ranges_size(); ++i) {
    const pb::RetentionRange& range = policy.ranges(i);
    const std::string name = fmt::format("{}.ranges[{}]", path, i);
    if (range.start() < 0) return InvalidArgument("{}.start={} is negative", name, range.start());
    if (range.has_end() && range.end() <= range.start()) {
      return InvalidArgument("{}.end={} must be beyond start={}", name, range.end(), range.start());
    }
    if (range.has_priority()) RETURN_IF_ERROR(CheckPriority(name + ".priority", range.priority()));
    if (range.has_ttl_ms()) RETURN_IF_ERROR(CheckMs(name + ".ttl_ms", range.ttl_ms()));
  }
  if (policy.has_decode_priority()) {
    RETURN_IF_ERROR(
        CheckPriority(fmt::format("{}.decode_priority", path), policy.decode_priority()));
  }
  if (policy.has_decode_ttl_ms()) {
    RETURN_IF_ERROR(CheckMs(fmt::format("{}.decode_ttl_ms", path), policy.decode_ttl_ms()));
    if (!policy.has_decode_priority()) {
      return InvalidArgument("{}.decode_ttl_ms={} is for a decode_priority; give one, too", path,
                             policy.decode_ttl_ms());
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckMs(std::string_view name, int64_t ms) {
  if (ms >= 1 && ms <= kMaxMs) return absl::OkStatus();
  return InvalidArgument("{}={} is outside [1, {}] (milliseconds)", name, ms, kMaxMs);
}

absl::StatusOr<pb::RetentionPolicy> ReadRetention(const pb::KvOptions& kv,
                                                  const std::string& text) {
  if (text.empty()) {
    RETURN_IF_ERROR(Check(kv.retention(), "kv.retention"));
    return kv.retention();
  }
  if (kv.has_retention()) {
    return InvalidArgument("kv.retention and the metadata {} are both given; drop one", kKey);
  }
  ASSIGN_OR_RETURN(pb::RetentionPolicy policy, ParseText(text));
  RETURN_IF_ERROR(Check(policy, kKey));
  return policy;
}

std::shared_ptr<const RetentionPolicy> ToPolicy(const pb::RetentionPolicy& policy,
                                                int32_t prompt_tokens) {
  if (policy.ranges().empty() && !policy.has_decode_priority()) return nullptr;
  auto out = std::make_shared<RetentionPolicy>();
  for (const pb::RetentionRange& range : policy.ranges()) {
    RetentionRange& r = out->ranges.emplace_back();
    r.begin = range.start();
    if (range.has_end()) r.end = range.end();
    if (range.has_priority()) r.priority = range.priority();
    r.ttl_ms = range.ttl_ms();
  }
  if (policy.has_decode_priority()) {
    RetentionRange& r = out->ranges.emplace_back();
    r.begin = prompt_tokens;
    r.priority = policy.decode_priority();
    r.ttl_ms = policy.decode_ttl_ms();
  }
  return out;
}

}  // namespace quire
