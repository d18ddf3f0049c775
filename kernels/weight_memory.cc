#include "kernels/weight_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <new>

namespace quire::kernels {
namespace {

constexpr size_t kAlign = 64;

constexpr size_t RoundUp(size_t n, size_t to) { return (n + to - 1) / to * to; }

#if defined(__SANITIZE_ADDRESS__)
#define QUIRE_PLAIN_WEIGHT_MEMORY
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define QUIRE_PLAIN_WEIGHT_MEMORY
#endif
#endif

#if !defined(QUIRE_PLAIN_WEIGHT_MEMORY)

constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kSlabBytes = size_t{32} << 20;

// At the start of its own mapping. An allocation is preceded by kAlign bytes that hold its slab.
struct Slab {
  size_t bytes;
  size_t used;
  int64_t live;  // allocations not yet freed
};
static_assert(sizeof(Slab) <= kAlign);

struct Slabs {
  std::mutex mutex;
  Slab* current = nullptr;  // where small allocations are cut from
};

Slabs& Instance() {
  // Never destroyed: weights may outlive static destruction.
  // NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables)
  static auto* const slabs = new Slabs;
  return *slabs;
}

Slab* NewSlab(size_t bytes) {
  // Map one huge page more than needed and give back what lies outside the aligned range.
  const size_t mapped = bytes + kHugePage;
  void* raw = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (raw == MAP_FAILED) return nullptr;
  auto* first = static_cast<std::byte*>(raw);
  const size_t skip =
      RoundUp(reinterpret_cast<uintptr_t>(raw), kHugePage) - reinterpret_cast<uintptr_t>(raw);
  if (skip > 0) munmap(first, skip);
  munmap(first + skip + bytes, mapped - skip - bytes);
  madvise(first + skip, bytes, MADV_HUGEPAGE);  // advice: without it only slower
  return new (first + skip) Slab{.bytes = bytes, .used = kAlign, .live = 0};
}

#endif

}  // namespace

#if defined(QUIRE_PLAIN_WEIGHT_MEMORY)

// One allocation each, so that AddressSanitizer sees a read past the end of a weight.
std::byte* AllocateWeights(size_t bytes) {
  if (bytes > size_t{1} << 38) return nullptr;  // where the sanitizer's allocator aborts
  return static_cast<std::byte*>(std::aligned_alloc(kAlign, RoundUp(bytes, kAlign)));
}

void FreeWeights(std::byte* p) { std::free(p); }  // NOLINT

#else

std::byte* AllocateWeights(size_t bytes) {
  if (bytes > SIZE_MAX / 4) return nullptr;
  const size_t need = kAlign + RoundUp(bytes, kAlign);
  Slabs& slabs = Instance();
  const std::lock_guard lock(slabs.mutex);
  Slab* slab = slabs.current;
  if (slab == nullptr || need > slab->bytes - slab->used) {
    slab = NewSlab(RoundUp(std::max(kSlabBytes, kAlign + need), kHugePage));
    if (slab == nullptr) return nullptr;
    // A big weight has its slab to itself, and the rest of the current one is still of use.
    if (need <= kSlabBytes / 2) {
      if (slabs.current != nullptr && slabs.current->live == 0) {
        munmap(slabs.current, slabs.current->bytes);
      }
      slabs.current = slab;
    }
  }
  auto* p = reinterpret_cast<std::byte*>(slab) + slab->used;
  slab->used += need;
  ++slab->live;
  new (p) Slab*(slab);
  return p + kAlign;
}

void FreeWeights(std::byte* p) {
  if (p == nullptr) return;
  Slabs& slabs = Instance();
  const std::lock_guard lock(slabs.mutex);
  Slab* slab = *std::launder(reinterpret_cast<Slab**>(p - kAlign));
  if (--slab->live > 0) return;
  if (slab == slabs.current) slabs.current = nullptr;
  munmap(slab, slab->bytes);
}

#endif

}  // namespace quire::kernels
