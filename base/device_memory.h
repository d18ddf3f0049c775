// base/device_memory.h -- how much memory a kind of device has, for sizing (contract C4): the host
// and a card answer the same question, and one arithmetic (models/memory_profile.h) goes on from
// there.
#pragma once

#include <memory>
#include <string>

#include "base/device.h"
#include "base/memory_info.h"
#include "base/status.h"

namespace quire {

class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;
  // As of now; two calls may differ, since others come and go.
  // ERRORS: kInternal if the device does not answer.
  virtual absl::StatusOr<MemoryInfo> Read() const = 0;
};

// ReadMemoryInfo(root).
std::unique_ptr<DeviceMemory> HostMemory(std::string root = "");

// Total and free memory of a device that `ops` drives; what is not free is others' use. `ops` must
// outlive the result. ERRORS: kUnimplemented if it cannot tell.
absl::StatusOr<std::unique_ptr<DeviceMemory>> MemoryOfDevice(const DeviceOps& ops);

// The host's for kCpu. ERRORS: kUnimplemented if there is no such device.
absl::StatusOr<std::unique_ptr<DeviceMemory>> MemoryOf(DeviceKind kind);

}  // namespace quire
