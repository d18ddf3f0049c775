// server/metrics/token_rate.h -- how many tokens a second went to clients lately.
//
// The edge's thread writes, any thread reads. A ring of counts of a quarter of a second each; what
// the last two seconds had is the rate, as other engines tell it to routers.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>

#include "server/edge/observer.h"

namespace quire {

class TokenRate final : public EdgeObserver {
 public:
  using Clock = std::chrono::steady_clock;

  void OnStarted(const RequestStats&) override {}
  void OnToken(const TokenTime&) override { Add(Clock::now()); }
  void OnEnd(const RequestEnd&) override {}
  void OnRefused(const absl::Status&) override {}

  // One thread.
  void Add(Clock::time_point now);
  // Any thread.
  double PerSecond(Clock::time_point now) const;

 private:
  static constexpr int64_t kSlotMs = 250;
  static constexpr int64_t kWindowSlots = 8;
  // Of one slot: its number since the clock's start above, its count below. One word, so that a
  // reader never sees a count of another time.
  static constexpr int kCountBits = 24;
  static constexpr uint64_t kCountMask = (uint64_t{1} << kCountBits) - 1;
  std::array<std::atomic<uint64_t>, kWindowSlots> slots_{};
};

}  // namespace quire
