// kernels/weight_memory.h -- memory of packed weights: cut from 32 MiB slabs on huge pages.
//
// A decode step reads every weight once. On 4 KiB pages each 0.4 us of reading then costs a page
// walk, in a virtual machine a nested one: a 1536 x 576 Q4_1 product from last-level cache ran at
// 8.7 GB/s on one core, on 2 MiB pages at 16.2 GB/s. One allocation per tensor would round each of
// a small model's hundreds of tensors up to 2 MiB, hence slabs. Any thread; load time only.
#pragma once

#include <cstddef>

namespace quire::kernels {

// 64-byte aligned, uninitialised; null if the system has no such memory.
std::byte* AllocateWeights(size_t bytes);

// p: from AllocateWeights, or null. A slab goes back when its last allocation does.
void FreeWeights(std::byte* p);

}  // namespace quire::kernels
