// Device memory on the CPU: ownership, bounds, and what a missing device says.
#include "base/device.h"

#include <gtest/gtest.h>

#include <array>

namespace quire {
namespace {

TEST(DeviceBuffer, CopiesAndFillsWithinItsBounds) {
  absl::StatusOr<DeviceBuffer> buffer = DeviceBuffer::Allocate(DeviceKind::kCpu, 10);
  ASSERT_TRUE(buffer.ok());
  EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer->data()) % 64, 0u);
  ASSERT_TRUE(buffer->Fill(0, 7, 10).ok());
  const std::array<uint8_t, 3> in = {1, 2, 3};
  ASSERT_TRUE(buffer->CopyFromHost(7, in.data(), 3).ok());
  std::array<uint8_t, 10> out{};
  ASSERT_TRUE(buffer->CopyToHost(0, out.data(), 10).ok());
  EXPECT_EQ(out, (std::array<uint8_t, 10>{7, 7, 7, 7, 7, 7, 7, 1, 2, 3}));
}

TEST(DeviceBuffer, RefusesWhatDoesNotFit) {
  DeviceBuffer buffer = *DeviceBuffer::Allocate(DeviceKind::kCpu, 10);
  uint8_t byte = 0;
  for (const auto& [offset, count] : {std::pair<size_t, size_t>{8, 3}, {11, 0}, {1, SIZE_MAX}}) {
    EXPECT_EQ(buffer.Fill(offset, 0, count).code(), absl::StatusCode::kOutOfRange);
    EXPECT_EQ(buffer.CopyToHost(offset, &byte, count).code(), absl::StatusCode::kOutOfRange);
    EXPECT_EQ(buffer.CopyFromHost(offset, &byte, count).code(), absl::StatusCode::kOutOfRange);
  }
  EXPECT_TRUE(buffer.Fill(10, 0, 0).ok());
}

TEST(DeviceBuffer, MovesLeaveNothingBehind) {
  DeviceBuffer a = *DeviceBuffer::Allocate(DeviceKind::kCpu, 16);
  std::byte* const data = a.data();
  const DeviceBuffer b = std::move(a);
  EXPECT_EQ(b.data(), data);
  EXPECT_EQ(a.data(), nullptr);  // NOLINT(bugprone-use-after-move)
}

TEST(DeviceBuffer, SaysWhichDeviceIsMissingOrTooSmall) {
  EXPECT_EQ(DeviceBuffer::Allocate(DeviceKind::kCuda, 1).status().code(),
            absl::StatusCode::kUnimplemented);
  const absl::Status status = DeviceBuffer::Allocate(DeviceKind::kCpu, SIZE_MAX).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(Message(status).find("device=cpu"), std::string::npos);
}

}  // namespace
}  // namespace quire
