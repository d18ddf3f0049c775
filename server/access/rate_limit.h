// server/access/rate_limit.h -- so much a minute, as a bucket that fills all the time.
//
// The bucket holds a minute's worth, so an idle caller may use that at once. What is known only
// afterwards (tokens of an output) is paid afterwards: the level may fall below zero, and then
// nobody gets in until it has risen again. So over any time t no more than limit * (1 + t/minute)
// was let in, and of what is paid afterwards one request's worth more for each that runs.
//
// Not thread-safe; no clock of its own.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

namespace quire {

class RateLimit {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  // per_minute: 0 = no limit.
  explicit RateLimit(int64_t per_minute) : per_minute_(static_cast<double>(per_minute)) {}

  bool on() const { return per_minute_ > 0; }
  // Until `amount` (at most what the bucket holds) can be taken; zero = now.
  std::chrono::milliseconds WaitFor(double amount, TimePoint now);
  // Takes it, below zero if need be.
  void Take(double amount, TimePoint now);

 private:
  void Fill(TimePoint now);

  double per_minute_;
  double level_ = per_minute_;
  std::optional<TimePoint> filled_at_;
};

}  // namespace quire
