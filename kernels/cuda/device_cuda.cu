// kernels/cuda/device_cuda.cu -- memory of the current CUDA device behind base/device.h.
#include <cuda_runtime.h>

#include "kernels/cuda/cuda_kernels.h"

namespace quire::kernels {
namespace {

const char* Text(cudaError_t error) {
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

const char* Allocate(size_t bytes, void** out) { return Text(cudaMalloc(out, bytes)); }
void Free(void* p) { cudaFree(p); }
const char* Copy(void* dst, const void* src, size_t bytes) {
  return Text(cudaMemcpy(dst, src, bytes, cudaMemcpyDefault));
}
const char* Fill(void* dst, int byte, size_t bytes) {
  const cudaError_t error = cudaMemset(dst, byte, bytes);
  return Text(error != cudaSuccess ? error : cudaDeviceSynchronize());
}

const char* Memory(size_t* free, size_t* total) { return Text(cudaMemGetInfo(free, total)); }

const DeviceOps kCudaOps = {"cuda", Allocate, Free, Copy, Fill, Memory};

}  // namespace

const DeviceOps* CudaDevice(const char** why) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  *why = error != cudaSuccess ? cudaGetErrorString(error) : count == 0 ? "no CUDA device" : nullptr;
  return *why == nullptr ? &kCudaOps : nullptr;
}

}  // namespace quire::kernels
