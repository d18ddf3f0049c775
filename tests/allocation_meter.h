// tests/allocation_meter.h -- counts what `new` hands out, to show that a hostile number in a file
// never becomes an allocation. Replaces the global operators: include it in one file of a test
// only.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace quire {

inline std::atomic<size_t> g_allocated_bytes{0};

// Bytes that were allocated since construction, those freed again included.
class AllocationMeter {
 public:
  AllocationMeter() : start_(g_allocated_bytes.load()) {}
  size_t bytes() const { return g_allocated_bytes.load() - start_; }

 private:
  size_t start_;
};

}  // namespace quire

[[gnu::noinline]] void* operator new(std::size_t size) {
  quire::g_allocated_bytes += size;
  if (void* p = std::malloc(size != 0 ? size : 1)) return p;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  quire::g_allocated_bytes += size;
  return std::malloc(size != 0 ? size : 1);
}
[[gnu::noinline]] void* operator new[](std::size_t size) { return ::operator new(size); }
[[gnu::noinline]] void* operator new[](std::size_t size, const std::nothrow_t& t) noexcept {
  return ::operator new(size, t);
}
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete[](void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, std::size_t) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete[](void* p, std::size_t) noexcept { std::free(p); }
