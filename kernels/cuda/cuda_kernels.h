// kernels/cuda/cuda_kernels.h -- the CUDA side of the kernels: what C++ code may call.
//
// Plain types only: nvcc and the C++ compiler both read it. Present in builds with QUIRE_CUDA where
// nvcc was found (target kernels_cuda).
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/device_ops.h"

namespace quire::kernels {

// Null if no usable device is present, and then `why` says so. Hand it to RegisterDevice.
const DeviceOps* CudaDevice(const char** why);

// As CopyPages in kernels/ops.h, on device memory. src, dst: [num_copies] page ids on the host;
// page_bytes is a multiple of 16. Waits until done; returns null or a static error text.
const char* CopyPagesCuda(std::byte* base, size_t page_bytes, const int32_t* src,
                          const int32_t* dst, int32_t num_copies);

}  // namespace quire::kernels
