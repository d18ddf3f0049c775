#include "base/device_memory.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace quire {
namespace {

class Host : public DeviceMemory {
 public:
  explicit Host(std::string root) : root_(std::move(root)) {}
  absl::StatusOr<MemoryInfo> Read() const override { return ReadMemoryInfo(root_); }

 private:
  std::string root_;
};

class Card : public DeviceMemory {
 public:
  explicit Card(const DeviceOps& ops) : ops_(ops) {}
  absl::StatusOr<MemoryInfo> Read() const override {
    size_t free = 0;
    size_t total = 0;
    if (const char* error = ops_.memory(&free, &total); error != nullptr) {
      return Error(absl::StatusCode::kInternal, "{}: {}", ops_.name, error);
    }
    constexpr size_t kMost = std::numeric_limits<int64_t>::max() / 2;
    MemoryInfo info;
    info.limit = static_cast<int64_t>(std::min(total, kMost));
    info.limit_source = fmt::format("device {}", ops_.name);
    info.available = static_cast<int64_t>(std::min({free, total, kMost}));
    info.available_source = info.limit_source;
    info.others = info.limit - info.available;
    return info;
  }

 private:
  const DeviceOps& ops_;
};

}  // namespace

std::unique_ptr<DeviceMemory> HostMemory(std::string root) {
  return std::make_unique<Host>(std::move(root));
}

absl::StatusOr<std::unique_ptr<DeviceMemory>> MemoryOfDevice(const DeviceOps& ops) {
  if (ops.memory == nullptr) {
    return Error(absl::StatusCode::kUnimplemented, "device={} does not tell how much memory it has",
                 ops.name);
  }
  return std::unique_ptr<DeviceMemory>(std::make_unique<Card>(ops));
}

absl::StatusOr<std::unique_ptr<DeviceMemory>> MemoryOf(DeviceKind kind) {
  if (kind == DeviceKind::kCpu) return HostMemory();
  const DeviceOps* const ops = FindDevice(kind);
  if (ops == nullptr) {
    return Error(absl::StatusCode::kUnimplemented,
                 "device=cuda is not in this build or not on this machine; use device=cpu");
  }
  return MemoryOfDevice(*ops);
}

}  // namespace quire
