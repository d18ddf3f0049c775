// server/metrics/token_rate.cc -- see token_rate.h.
#include "server/metrics/token_rate.h"

namespace quire {
namespace {

uint64_t SlotNumber(TokenRate::Clock::time_point now, int64_t slot_ms) {
  const auto since = now.time_since_epoch();
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::milliseconds>(since).count() / slot_ms);
}

}  // namespace

void TokenRate::Add(Clock::time_point now) {
  const uint64_t number = SlotNumber(now, kSlotMs);
  std::atomic<uint64_t>& slot = slots_[number % kWindowSlots];
  const uint64_t value = slot.load(std::memory_order_relaxed);
  if (value >> kCountBits != number) {
    slot.store(number << kCountBits | 1, std::memory_order_relaxed);
  } else if ((value & kCountMask) < kCountMask) {
    slot.store(value + 1, std::memory_order_relaxed);
  }
}

double TokenRate::PerSecond(Clock::time_point now) const {
  const uint64_t number = SlotNumber(now, kSlotMs);
  uint64_t tokens = 0;
  for (const std::atomic<uint64_t>& slot : slots_) {
    const uint64_t value = slot.load(std::memory_order_relaxed);
    const uint64_t age = number - (value >> kCountBits);
    if (age < static_cast<uint64_t>(kWindowSlots)) tokens += value & kCountMask;
  }
  return static_cast<double>(tokens) * 1000 / static_cast<double>(kSlotMs * kWindowSlots);
}

}  // namespace quire
