// kernels/cuda/copy_pages.cu -- page copies (forks' copy-on-write) on the device.
//
// One row of blocks per copy, 16 bytes per thread and step: bound by memory. No page is written
// twice, or both read and written, so order does not matter.
#include <cuda_runtime.h>

#include "kernels/cuda/cuda_kernels.h"

namespace quire::kernels {
namespace {

constexpr int kThreads = 256;
constexpr size_t kBlocksPerPage = 32;  // at most; a page is some hundred KB
constexpr int32_t kMaxCopiesPerLaunch = 65535;

// pairs: [num_copies] (src, dst). One copy per blockIdx.y.
__global__ void CopyPagesKernel(uint4* base, size_t page_words, const int2* pairs) {
  const int2 pair = pairs[blockIdx.y];
  const uint4* src = base + static_cast<size_t>(pair.x) * page_words;
  uint4* dst = base + static_cast<size_t>(pair.y) * page_words;
  const size_t step = static_cast<size_t>(gridDim.x) * blockDim.x;
  for (size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < page_words;
       i += step) {
    dst[i] = src[i];
  }
}

const char* Launch(std::byte* base, size_t page_bytes, const int32_t* src, const int32_t* dst,
                   int32_t num_copies) {
  int2* host = new int2[static_cast<size_t>(num_copies)];
  for (int32_t i = 0; i < num_copies; ++i) host[i] = make_int2(src[i], dst[i]);
  int2* pairs = nullptr;
  const size_t bytes = static_cast<size_t>(num_copies) * sizeof(int2);
  cudaError_t error = cudaMalloc(&pairs, bytes);
  if (error == cudaSuccess) error = cudaMemcpy(pairs, host, bytes, cudaMemcpyHostToDevice);
  delete[] host;
  if (error == cudaSuccess) {
    const size_t words = page_bytes / sizeof(uint4);
    const size_t wanted = (words + kThreads - 1) / kThreads;
    const dim3 grid(static_cast<unsigned>(wanted < kBlocksPerPage ? wanted : kBlocksPerPage),
                    static_cast<unsigned>(num_copies));
    CopyPagesKernel<<<grid, kThreads>>>(reinterpret_cast<uint4*>(base), words, pairs);
    error = cudaGetLastError();
    if (error == cudaSuccess) error = cudaDeviceSynchronize();
  }
  if (pairs != nullptr) cudaFree(pairs);
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

}  // namespace

const char* CopyPagesCuda(std::byte* base, size_t page_bytes, const int32_t* src,
                          const int32_t* dst, int32_t num_copies) {
  if (page_bytes % sizeof(uint4) != 0) return "page_bytes must be a multiple of 16";
  if (page_bytes == 0) return nullptr;
  for (int32_t done = 0; done < num_copies;) {
    const int32_t n =
        num_copies - done < kMaxCopiesPerLaunch ? num_copies - done : kMaxCopiesPerLaunch;
    if (const char* error = Launch(base, page_bytes, src + done, dst + done, n)) return error;
    done += n;
  }
  return nullptr;
}

}  // namespace quire::kernels
