// Page copies on a CUDA device against the same copies on the CPU. Exits with 77 ("skipped") where
// there is no device.
#include <gtest/gtest.h>

#include <cstdio>
#include <random>
#include <vector>

#include "base/device.h"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/ops.h"

namespace quire::kernels {
namespace {

TEST(CudaCopyPages, EqualTheCpus) {
  for (const size_t page_bytes : {size_t{64}, size_t{4096}, size_t{1} << 20}) {
    constexpr int32_t kPages = 33;
    std::vector<std::byte> host(page_bytes * kPages);
    std::mt19937 rng(1);
    for (std::byte& b : host) b = static_cast<std::byte>(rng());
    absl::StatusOr<DeviceBuffer> device = DeviceBuffer::Allocate(DeviceKind::kCuda, host.size());
    ASSERT_TRUE(device.ok()) << device.status();
    ASSERT_TRUE(device->CopyFromHost(0, host.data(), host.size()).ok());
    std::vector<int32_t> src, dst;
    std::vector<PageCopyArgs> copies;
    for (int32_t i = 0; i < 16; ++i) {
      src.push_back(i % 5);
      dst.push_back(16 + i);
      copies.push_back({src.back(), dst.back()});
    }
    EXPECT_EQ(CopyPagesCuda(device->data(), page_bytes, src.data(), dst.data(), 16), nullptr);
    ThreadPool pool(1);
    CopyPages(host.data(), page_bytes, copies, pool);
    std::vector<std::byte> got(host.size());
    ASSERT_TRUE(device->CopyToHost(0, got.data(), got.size()).ok());
    EXPECT_TRUE(got == host) << page_bytes;
  }
}

}  // namespace
}  // namespace quire::kernels

int main(int argc, char** argv) {
  const char* why = nullptr;
  const quire::DeviceOps* ops = quire::kernels::CudaDevice(&why);
  if (ops == nullptr) {
    std::printf("not run here: %s\n", why);
    return 77;
  }
  quire::RegisterDevice(quire::DeviceKind::kCuda, ops);
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
