// base/device.h -- memory on the CPU or, where it is built, on a CUDA device: owned, copied,
// filled.
//
// The CPU is always there. Another kind is a table of four functions that its library hands to
// RegisterDevice at start-up (kernels/cuda/device_cuda.cu); nothing here knows CUDA.
// Thread: register before threads start; a buffer belongs to one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "base/device_ops.h"
#include "base/status.h"

namespace quire {

enum class DeviceKind : uint8_t { kCpu, kCuda };

// Makes `ops` (which must outlive everything) the functions of that kind.
void RegisterDevice(DeviceKind kind, const DeviceOps* ops);
// Null if this build or this machine has no such device.
const DeviceOps* FindDevice(DeviceKind kind);

// Move-only owner of `size` bytes on a device, aligned to 64.
class DeviceBuffer {
 public:
  // ERRORS: kUnimplemented if there is no such device, kResourceExhausted if memory is short.
  static absl::StatusOr<DeviceBuffer> Allocate(DeviceKind kind, size_t size);

  DeviceBuffer() = default;
  DeviceBuffer(DeviceBuffer&& other) noexcept { *this = std::move(other); }
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    std::swap(ops_, other.ops_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~DeviceBuffer() {
    if (data_ != nullptr) ops_->free(data_);
  }

  // An address of the device: only the CPU's may be read here.
  std::byte* data() const { return static_cast<std::byte*>(data_); }
  size_t size() const { return size_; }

  // Copies between this buffer and host memory, or sets bytes; done when they return.
  // ERRORS: kOutOfRange naming offset, count and size; kInternal if the device fails.
  absl::Status CopyFromHost(size_t offset, const void* src, size_t count);
  absl::Status CopyToHost(size_t offset, void* dst, size_t count) const;
  absl::Status Fill(size_t offset, uint8_t byte, size_t count);

 private:
  absl::Status CheckRange(size_t offset, size_t count) const;

  const DeviceOps* ops_ = nullptr;
  void* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace quire
