// Memory that is free between living blocks goes back to the system; a few free bytes are left.
#include "server/heap_trimmer.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "base/memory_info.h"

namespace quire {
namespace {

// Blocks of 4 KiB of which each 64th stays: no heap can shrink from its end.
class Holes {
 public:
  explicit Holes(size_t bytes) : blocks_(bytes / kBlock) {
    for (char*& b : blocks_) {
      b = new char[kBlock];
      std::memset(b, 1, kBlock);
    }
    for (size_t i = 0; i < blocks_.size(); ++i) {
      if (i % 64 == 0) continue;
      delete[] blocks_[i];
      blocks_[i] = nullptr;
    }
  }
  ~Holes() {
    for (char* b : blocks_) delete[] b;
  }

 private:
  static constexpr size_t kBlock = 4096;
  std::vector<char*> blocks_;
};

TEST(HeapTrimmer, HolesGoBackToTheSystem) {
  constexpr int64_t kBytes = int64_t{256} << 20;
  const Holes holes(static_cast<size_t>(kBytes));
  const int64_t before = ResidentBytes();
  const HeapTrimmer trimmer({.period = std::chrono::milliseconds(10)});
  for (int i = 0; i < 3000 && ResidentBytes() > before - kBytes / 2; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_LT(ResidentBytes(), before - kBytes / 2);
}

}  // namespace
}  // namespace quire
