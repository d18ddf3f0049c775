// base/arena.h -- bump memory for one step's activations, whose peak can be measured without it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>

#include "base/status.h"

namespace quire {

// Two modes. Backed: hands out 64-byte aligned memory from one buffer. Dry (capacity 0): hands out
// null spans of the right size and only counts, so that a worst-case step can be measured before
// any memory is committed (contract C4). Not thread-safe: engine thread only.
class Arena {
 public:
  Arena() = default;
  explicit Arena(size_t capacity_bytes)
      : buffer_(static_cast<std::byte*>(std::aligned_alloc(kAlign, RoundUp(capacity_bytes)))),
        capacity_(RoundUp(capacity_bytes)) {
    CHECK(buffer_ != nullptr, "arena of {} bytes", capacity_bytes);
  }

  bool dry() const { return buffer_ == nullptr; }
  size_t used() const { return used_; }
  size_t peak() const { return peak_; }
  size_t capacity() const { return capacity_; }

  // Uninitialised. In dry mode data() is null and must not be touched.
  template <typename T>
  std::span<T> Take(size_t count) {
    const size_t bytes = RoundUp(count * sizeof(T));
    T* p = nullptr;
    if (!dry()) {
      CHECK(used_ + bytes <= capacity_, "arena: {} + {} bytes exceed {}", used_, bytes, capacity_);
      p = reinterpret_cast<T*>(buffer_.get() + used_);
    }
    used_ += bytes;
    peak_ = std::max(peak_, used_);
    return {p, count};
  }

  // Frees everything taken after `mark` = used() at some earlier time.
  void Rewind(size_t mark) { used_ = mark; }
  void Reset() { used_ = 0; }
  void ResetPeak() { peak_ = used_; }

 private:
  static constexpr size_t kAlign = 64;
  static size_t RoundUp(size_t n) {
    return (std::max<size_t>(n, 1) + kAlign - 1) / kAlign * kAlign;
  }
  struct Free {
    void operator()(std::byte* p) const { std::free(p); }  // NOLINT
  };

  std::unique_ptr<std::byte, Free> buffer_;
  size_t capacity_ = 0;
  size_t used_ = 0;
  size_t peak_ = 0;
};

}  // namespace quire
