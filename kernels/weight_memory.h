// kernels/weight_memory.h -- memory of packed weights: cut from 32 MiB slabs on huge pages.
//
// A decode step reads every weight once; on 4 KiB pages that is a page walk each 4 KiB, in a
// virtual machine a nested one, on 2 MiB pages one in 512 (`linear_bench` shows the rates). One
// allocation per tensor would round each of a small model's hundreds of tensors up to 2 MiB, hence
// slabs. Any thread; load time only.
#pragma once

#include <cstddef>

namespace quire::kernels {

// 64-byte aligned, uninitialised; null if the system has no such memory.
std::byte* AllocateWeights(size_t bytes);

// p: from AllocateWeights, or null. A slab goes back when its last allocation does.
void FreeWeights(std::byte* p);

}  // namespace quire::kernels
