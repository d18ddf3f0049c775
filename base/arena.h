// base/arena.h -- bump memory for one step's activations, whose peak can be measured without it.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace quire {

// Two modes. Backed: hands out 64-byte aligned memory from one buffer. Dry (capacity 0): hands out
// null spans of the right size and only counts, so that a worst-case step can be measured before
// any memory is committed (contract C4), and by whom. Not thread-safe: engine thread only.
class Arena {
 public:
  // Bytes of the peak that were taken for one purpose.
  struct Part {
    std::string_view what;
    size_t bytes = 0;
  };

  Arena() = default;
  explicit Arena(size_t capacity_bytes)
      : buffer_(static_cast<std::byte*>(Allocate(RoundUp(capacity_bytes)))),
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
    if (dry()) Log();
    used_ += bytes;
    if (used_ > peak_) {
      peak_ = used_;
      if (dry()) peak_log_ = log_;
    }
    return {p, count};
  }

  // What is taken from now on is for `what`, which must outlive the arena (a literal). Costs
  // nothing but in dry mode.
  void Purpose(std::string_view what) { purpose_ = what; }
  // Dry mode only: what the peak was made of, in the order of first use; sums to peak().
  std::vector<Part> PeakParts() const {
    std::vector<Part> parts;
    for (size_t i = 0; i < peak_log_.size(); ++i) {
      const size_t end = i + 1 < peak_log_.size() ? peak_log_[i + 1].begin : peak_;
      const auto it = std::find_if(parts.begin(), parts.end(),
                                   [&](const Part& p) { return p.what == peak_log_[i].what; });
      Part& part = it == parts.end() ? parts.emplace_back(Part{peak_log_[i].what}) : *it;
      part.bytes += end - peak_log_[i].begin;
    }
    return parts;
  }

  // Frees everything taken after `mark` = used() at some earlier time.
  void Rewind(size_t mark) {
    used_ = mark;
    while (!log_.empty() && log_.back().begin >= mark) log_.pop_back();
  }
  void Reset() { Rewind(0); }
  void ResetPeak() {
    peak_ = used_;
    peak_log_ = log_;
  }

 private:
  static constexpr size_t kAlign = 64;
  static constexpr size_t kHugePage = size_t{2} << 20;

  // On huge pages where there is a whole one: rows of logits are further apart than small pages
  // are long. Advice: without it only slower.
  static void* Allocate(size_t bytes) {
    if (bytes < kHugePage) return std::aligned_alloc(kAlign, bytes);
    void* p = std::aligned_alloc(kHugePage, (bytes + kHugePage - 1) / kHugePage * kHugePage);
    if (p != nullptr) (void)madvise(p, bytes / kHugePage * kHugePage, MADV_HUGEPAGE);
    return p;
  }
  static size_t RoundUp(size_t n) {
    return (std::max<size_t>(n, 1) + kAlign - 1) / kAlign * kAlign;
  }
  struct Free {
    void operator()(std::byte* p) const { std::free(p); }  // NOLINT
  };
  // From `begin` on, bytes are for `what`.
  struct Span {
    std::string_view what;
    size_t begin = 0;
  };
  void Log() {
    if (log_.empty() || log_.back().what != purpose_) log_.push_back({purpose_, used_});
  }

  std::unique_ptr<std::byte, Free> buffer_;
  size_t capacity_ = 0;
  size_t used_ = 0;
  size_t peak_ = 0;
  std::string_view purpose_ = "other";
  std::vector<Span> log_;       // dry mode: of what is taken now
  std::vector<Span> peak_log_;  // of the peak
};

}  // namespace quire
