// paged_cache/retention.h -- how long cached pages should be kept, and which goes first.
//
// A request may ask to keep ranges of its tokens longer than others, as operators know it from
// TensorRT-LLM's KvCacheRetentionConfig: a priority from 0 (first to go) to 100, 35 by default, for
// a time or for ever. What the cache makes of it is EvictionClass, the one place to change.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace quire {

inline constexpr int32_t kDefaultRetentionPriority = 35;
inline constexpr int32_t kMaxRetentionPriority = 100;
inline constexpr int64_t kNoExpiry = INT64_MAX;

// How long one page is kept. Times are milliseconds of the manager's clock (BlockManager::SetTime).
struct Retention {
  int32_t priority = kDefaultRetentionPriority;
  int64_t expires_ms = kNoExpiry;  // then the priority becomes the default one
  friend bool operator==(const Retention&, const Retention&) = default;
};

// Of tokens [begin, end) of a sequence.
struct RetentionRange {
  int32_t begin = 0;
  int32_t end = INT32_MAX;
  int32_t priority = kDefaultRetentionPriority;
  int64_t ttl_ms = 0;  // 0 = for ever
};

struct RetentionPolicy {
  std::vector<RetentionRange> ranges;
  bool empty() const { return ranges.empty(); }
};

// Of the page of tokens [begin, end). A page is worthless without those before it, so it has the
// highest priority and the longest life of all ranges that touch it or anything after it. If no
// range names its first token, it has at least the default.
inline Retention RetentionOfPage(const RetentionPolicy& policy, int32_t begin, int64_t now_ms) {
  Retention r;
  bool found = false;
  bool named = false;
  for (const RetentionRange& range : policy.ranges) {
    if (range.end <= begin) continue;
    const int64_t expires = range.ttl_ms > 0 ? now_ms + range.ttl_ms : kNoExpiry;
    r.priority = found ? std::max(r.priority, range.priority) : range.priority;
    r.expires_ms = found ? std::max(r.expires_ms, expires) : expires;
    found = true;
    named |= range.begin <= begin;
  }
  if (!named && r.priority <= kDefaultRetentionPriority) return {};
  return r;
}

// Two owners' wishes for one page: the higher priority for the longer time.
inline Retention Stronger(const Retention& a, const Retention& b) {
  return {std::max(a.priority, b.priority), std::max(a.expires_ms, b.expires_ms)};
}

// The policy: pages of the lowest class are evicted first, within a class the one that was released
// longest ago. Tables release their pages last to first, so a leaf goes before its root.
constexpr int32_t kNumEvictionClasses = kMaxRetentionPriority + 1;
constexpr int32_t EvictionClass(const Retention& r) {
  return std::clamp(r.priority, 0, kMaxRetentionPriority);
}

}  // namespace quire
