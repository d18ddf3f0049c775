// Tokens a second over a window of two: steady streams, bursts, silence, and readers beside a
// writer.
#include "server/metrics/token_rate.h"

#include <gtest/gtest.h>

#include <thread>

namespace quire {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

const TokenRate::Clock::time_point kStart = TokenRate::Clock::time_point(seconds(1000));

TEST(TokenRate, NothingIsZero) {
  const TokenRate rate;
  EXPECT_EQ(rate.PerSecond(kStart), 0);
  EXPECT_EQ(rate.PerSecond({}), 0);
}

TEST(TokenRate, ASteadyStreamHasItsRate) {
  TokenRate rate;
  for (int ms = 0; ms < 10'000; ms += 10) {
    rate.Add(kStart + milliseconds(ms));
    if (ms < 2000) continue;
    // The slot that is being filled may lack a part of its quarter second.
    EXPECT_LE(rate.PerSecond(kStart + milliseconds(ms)), 100);
    EXPECT_GE(rate.PerSecond(kStart + milliseconds(ms)), 87.5);
  }
}

TEST(TokenRate, ABurstIsForgottenAfterTwoSeconds) {
  TokenRate rate;
  for (int i = 0; i < 500; ++i) rate.Add(kStart);
  EXPECT_EQ(rate.PerSecond(kStart), 250);
  EXPECT_EQ(rate.PerSecond(kStart + milliseconds(1749)), 250);
  EXPECT_EQ(rate.PerSecond(kStart + milliseconds(2000)), 0);
  EXPECT_EQ(rate.PerSecond(kStart + seconds(3600)), 0);
  rate.Add(kStart + seconds(3600));
  EXPECT_EQ(rate.PerSecond(kStart + seconds(3600)), 0.5);
}

TEST(TokenRate, AReaderNeverSeesMoreThanThereWas) {
  TokenRate rate;
  std::atomic<bool> done{false};
  std::thread writer([&] {
    for (int ms = 0; ms < 200'000; ++ms) rate.Add(kStart + milliseconds(ms));
    done = true;
  });
  while (!done) {
    for (int at = 0; at < 200'000; at += 1000) {
      ASSERT_LE(rate.PerSecond(kStart + milliseconds(at)), 1000);
    }
  }
  writer.join();
}

}  // namespace
}  // namespace quire
