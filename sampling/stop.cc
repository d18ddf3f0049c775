#include "sampling/stop.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace quire {
namespace {

// The border of the first `matched` bytes of `text`, extended by c.
int32_t Advance(std::string_view text, const std::vector<int32_t>& fail, int32_t matched, char c) {
  while (matched > 0 && (matched == static_cast<int32_t>(text.size()) || text[matched] != c)) {
    matched = fail[matched];
  }
  return text[matched] == c ? matched + 1 : 0;
}

}  // namespace

absl::Status ValidateStopStrings(std::span<const std::string> stops) {
  if (stops.size() > static_cast<size_t>(kMaxStopStrings)) {
    return InvalidArgument("stop has {} strings, limit is {}", stops.size(), kMaxStopStrings);
  }
  for (size_t i = 0; i < stops.size(); ++i) {
    if (stops[i].empty()) {
      return InvalidArgument("stop[{}] is empty, must have 1 to {} bytes; leave it out", i,
                             kMaxStopStringBytes);
    }
    if (stops[i].size() > static_cast<size_t>(kMaxStopStringBytes)) {
      return InvalidArgument("stop[{}] has {} bytes, limit is {}", i, stops[i].size(),
                             kMaxStopStringBytes);
    }
  }
  return absl::OkStatus();
}

StopMatcher::StopMatcher(std::vector<std::string> stops, bool include_stop_in_output)
    : include_stop_(include_stop_in_output) {
  CHECK(ValidateStopStrings(stops).ok(), "{}", Message(ValidateStopStrings(stops)));
  for (std::string& stop : stops) {
    Pattern pattern;
    pattern.text = std::move(stop);
    pattern.fail.assign(pattern.text.size() + 1, 0);
    for (size_t i = 1; i < pattern.text.size(); ++i) {
      pattern.fail[i + 1] = Advance(pattern.text, pattern.fail, pattern.fail[i], pattern.text[i]);
    }
    patterns_.push_back(std::move(pattern));
  }
}

int64_t StopMatcher::FirstOpenStart() const {
  int32_t longest = 0;
  for (const Pattern& p : patterns_) longest = std::max(longest, p.matched);
  return length_ - longest;
}

std::string StopMatcher::Take(int64_t end) {
  std::string text = held_.substr(0, static_cast<size_t>(end - delivered_));
  held_.erase(0, text.size());
  delivered_ = end;
  return text;
}

void StopMatcher::Step(char c) {
  ++length_;
  for (size_t i = 0; i < patterns_.size(); ++i) {
    Pattern& p = patterns_[i];
    p.matched = Advance(p.text, p.fail, p.matched, c);
    if (p.matched < static_cast<int32_t>(p.text.size())) continue;
    // Completed. What it may still be the start of is its border.
    const int64_t start = length_ - p.matched;
    p.matched = p.fail[p.matched];
    if (found_ < 0 || start < found_start_) {
      found_ = static_cast<int>(i);
      found_start_ = start;
      found_end_ = length_;
    }
  }
  if (found_ >= 0 && FirstOpenStart() >= found_start_) stopped_ = true;
}

StopMatcher::Out StopMatcher::Push(std::string_view text) {
  Out out;
  for (size_t i = 0; i < text.size() && !stopped_; ++i) {
    held_.push_back(text[i]);
    Step(text[i]);
  }
  if (stopped_) {
    out.text = Flush();
    out.stopped = true;
    out.matched = found_;
    return out;
  }
  const int64_t open = FirstOpenStart();
  out.text = Take(found_ < 0 ? open : std::min(open, found_start_));
  return out;
}

std::string StopMatcher::Flush() {
  stopped_ = found_ >= 0;
  if (!stopped_) return Take(length_);
  const int64_t end = include_stop_ ? found_end_ : found_start_;
  std::string text = end > delivered_ ? Take(end) : std::string();
  held_.clear();
  delivered_ = std::max(delivered_, found_end_);  // a later Flush gives nothing
  return text;
}

}  // namespace quire
