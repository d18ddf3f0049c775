// server/access/rate_limit.cc -- see rate_limit.h.
#include "server/access/rate_limit.h"

#include <algorithm>
#include <cmath>

namespace quire {

void RateLimit::Fill(TimePoint now) {
  const TimePoint before = filled_at_.value_or(now);
  if (now >= before) {
    const double minutes = std::chrono::duration<double, std::ratio<60>>(now - before).count();
    level_ = std::min(per_minute_, level_ + minutes * per_minute_);
    filled_at_ = now;
  }
}

std::chrono::milliseconds RateLimit::WaitFor(double amount, TimePoint now) {
  if (!on()) return std::chrono::milliseconds(0);
  Fill(now);
  const double missing = std::min(amount, per_minute_) - level_;
  if (missing <= 0) return std::chrono::milliseconds(0);
  return std::chrono::milliseconds(static_cast<int64_t>(std::ceil(missing / per_minute_ * 60e3)));
}

void RateLimit::Take(double amount, TimePoint now) {
  if (!on()) return;
  Fill(now);
  level_ -= amount;
}

}  // namespace quire
