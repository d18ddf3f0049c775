// base/device_ops.h -- what a kind of device must be able to do. Plain functions and no other
// header, so that device compilers can read it.
#pragma once

#include <cstddef>

namespace quire {

// Each function but `free` returns null, or a static text that says what went wrong.
struct DeviceOps {
  const char* name;
  const char* (*allocate)(size_t bytes, void** out);
  void (*free)(void* p);
  const char* (*copy)(void* dst, const void* src, size_t bytes);  // any direction; waits
  const char* (*fill)(void* dst, int byte, size_t bytes);         // waits
  // Bytes of the device, by whomever used; null for the CPU, whose limits are more than one number.
  const char* (*memory)(size_t* free, size_t* total) = nullptr;
};

}  // namespace quire
