#include "base/device.h"

#include <cstdlib>
#include <cstring>

namespace quire {
namespace {

const DeviceOps kCpuOps = {
    .name = "cpu",
    .allocate = [](size_t bytes, void** out) -> const char* {
      if (bytes > SIZE_MAX - 64) return "out of memory";
      *out = std::aligned_alloc(64, (bytes + 63) / 64 * 64);
      return *out == nullptr ? "out of memory" : nullptr;
    },
    .free = [](void* p) { std::free(p); },
    .copy = [](void* dst, const void* src, size_t bytes) -> const char* {
      std::memcpy(dst, src, bytes);
      return nullptr;
    },
    .fill = [](void* dst, int byte, size_t bytes) -> const char* {
      std::memset(dst, byte, bytes);
      return nullptr;
    },
};

const DeviceOps*& CudaOps() {
  static const DeviceOps* ops = nullptr;
  return ops;
}

}  // namespace

void RegisterDevice(DeviceKind kind, const DeviceOps* ops) {
  CHECK(kind == DeviceKind::kCuda, "only kCuda can be registered");
  CudaOps() = ops;
}

const DeviceOps* FindDevice(DeviceKind kind) {
  return kind == DeviceKind::kCpu ? &kCpuOps : CudaOps();
}

absl::StatusOr<DeviceBuffer> DeviceBuffer::Allocate(DeviceKind kind, size_t size) {
  const DeviceOps* ops = FindDevice(kind);
  if (ops == nullptr) {
    return Error(absl::StatusCode::kUnimplemented,
                 "device=cuda is not in this build or not on this machine; use device=cpu");
  }
  DeviceBuffer buffer;
  if (const char* error = ops->allocate(size == 0 ? 1 : size, &buffer.data_); error != nullptr) {
    buffer.data_ = nullptr;
    return Error(absl::StatusCode::kResourceExhausted, "device={}: {} bytes: {}", ops->name, size,
                 error);
  }
  buffer.ops_ = ops;
  buffer.size_ = size;
  return buffer;
}

absl::Status DeviceBuffer::CheckRange(size_t offset, size_t count) const {
  if (offset <= size_ && count <= size_ - offset) return absl::OkStatus();
  return Error(absl::StatusCode::kOutOfRange, "count={} bytes at offset={} exceed the size {}",
               count, offset, size_);
}

absl::Status DeviceBuffer::CopyFromHost(size_t offset, const void* src, size_t count) {
  RETURN_IF_ERROR(CheckRange(offset, count));
  if (count == 0) return absl::OkStatus();
  const char* error = ops_->copy(data() + offset, src, count);
  return error == nullptr ? absl::OkStatus()
                          : Error(absl::StatusCode::kInternal, "{}: {}", ops_->name, error);
}

absl::Status DeviceBuffer::CopyToHost(size_t offset, void* dst, size_t count) const {
  RETURN_IF_ERROR(CheckRange(offset, count));
  if (count == 0) return absl::OkStatus();
  const char* error = ops_->copy(dst, data() + offset, count);
  return error == nullptr ? absl::OkStatus()
                          : Error(absl::StatusCode::kInternal, "{}: {}", ops_->name, error);
}

absl::Status DeviceBuffer::Fill(size_t offset, uint8_t byte, size_t count) {
  RETURN_IF_ERROR(CheckRange(offset, count));
  if (count == 0) return absl::OkStatus();
  const char* error = ops_->fill(data() + offset, byte, count);
  return error == nullptr ? absl::OkStatus()
                          : Error(absl::StatusCode::kInternal, "{}: {}", ops_->name, error);
}

}  // namespace quire
