// kernels/cpu/flush_subnormals.h -- subnormal numbers count as zero while one of these lives: tile
// instructions always compute so, and what gives their bits must, too. One thread's own state.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace quire::kernels {

class FlushSubnormals {
 public:
#if defined(__x86_64__)
  FlushSubnormals() : saved_(_mm_getcsr()) {
    constexpr uint32_t kFlushToZero = 0x8000, kDenormalsAreZero = 0x40;
    _mm_setcsr(saved_ | kFlushToZero | kDenormalsAreZero);
  }
  ~FlushSubnormals() { _mm_setcsr(saved_); }
#endif
#if !defined(__x86_64__)
  FlushSubnormals() {}
#endif
  FlushSubnormals(const FlushSubnormals&) = delete;
  FlushSubnormals& operator=(const FlushSubnormals&) = delete;

 private:
#if defined(__x86_64__)
  uint32_t saved_;
#endif
};

}  // namespace quire::kernels
