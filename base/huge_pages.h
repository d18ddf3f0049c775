// base/huge_pages.h -- memory for large tables that are read at random places.
//
// Of such a table every access misses the address translation, too, which costs about as much as
// the miss in the cache itself, and more in a virtual machine. With huge pages it does not.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <memory>

namespace quire {

// As std::allocator; asks for huge pages within a block that is large enough to have some. The
// kernel gives the memory when it is first touched, as always.
template <typename T>
struct HugePageAllocator {
  using value_type = T;

  HugePageAllocator() = default;
  template <typename U>
  HugePageAllocator(const HugePageAllocator<U>&) {}  // NOLINT(google-explicit-constructor)

  T* allocate(std::size_t n) {
    constexpr std::uintptr_t kHugePage = std::uintptr_t{2} << 20;
    T* const p = std::allocator<T>().allocate(n);
    const auto begin = reinterpret_cast<std::uintptr_t>(p);
    const std::uintptr_t first = (begin + kHugePage - 1) / kHugePage * kHugePage;
    const std::uintptr_t end = (begin + n * sizeof(T)) / kHugePage * kHugePage;
    // Only advice: without it the table works as well.
    if (first < end) (void)madvise(reinterpret_cast<void*>(first), end - first, MADV_HUGEPAGE);
    return p;
  }
  void deallocate(T* p, std::size_t n) { std::allocator<T>().deallocate(p, n); }

  friend bool operator==(const HugePageAllocator&, const HugePageAllocator&) { return true; }
};

}  // namespace quire
