#include "sampling/grammar_budget.h"

#include <malloc.h>
#include <time.h>

#include <algorithm>
#include <new>

namespace quire {
namespace {

thread_local GrammarBudget* innermost = nullptr;

std::chrono::nanoseconds ThreadCpuTime() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

}  // namespace

GrammarBudget::GrammarBudget(size_t max_bytes, std::chrono::nanoseconds max_cpu_time)
    : max_bytes_(static_cast<int64_t>(max_bytes)),
      max_time_(max_cpu_time),
      start_(ThreadCpuTime()),
      outer_(innermost) {
  innermost = this;
}

GrammarBudget::~GrammarBudget() { innermost = outer_; }

void GrammarBudget::Take(size_t bytes) {
  constexpr int32_t kAllocationsPerClock = 256;
  // Once exceeded, what unwinds may still allocate: an error's text, for one.
  if (exceeded_ == Exceeded::kNo) {
    if (live_ + static_cast<int64_t>(bytes) > max_bytes_) {
      exceeded_ = Exceeded::kBytes;
      throw std::bad_alloc();
    }
    if (--until_clock_ <= 0) {
      until_clock_ = kAllocationsPerClock;
      if (ThreadCpuTime() - start_ > max_time_) {
        exceeded_ = Exceeded::kTime;
        throw std::bad_alloc();
      }
    }
  }
  Add(bytes);
}

void GrammarBudget::Add(size_t bytes) {
  live_ += static_cast<int64_t>(bytes);
  peak_ = std::max(peak_, live_);
}

// Not in a namespace: the names that objcopy gives to the library's operator new and delete. One
// name for each, as it maps no two symbols to one.
extern "C" {

void* QuireBudgetNew(size_t bytes) {
  if (innermost == nullptr) return ::operator new(bytes);
  innermost->Take(bytes);
  void* memory = ::operator new(bytes);
  // What malloc rounds up is counted as well, so that Give sees the same figure.
  innermost->Give(bytes);
  innermost->Add(malloc_usable_size(memory));
  return memory;
}

void QuireBudgetDelete(void* memory) noexcept {
  if (innermost != nullptr && memory != nullptr) innermost->Give(malloc_usable_size(memory));
  ::operator delete(memory);
}

void* QuireBudgetNewArray(size_t bytes) { return QuireBudgetNew(bytes); }
void QuireBudgetDeleteArray(void* memory) noexcept { QuireBudgetDelete(memory); }
void QuireBudgetDeleteSized(void* memory, size_t /*bytes*/) noexcept { QuireBudgetDelete(memory); }
void QuireBudgetDeleteSizedArray(void* memory, size_t /*bytes*/) noexcept {
  QuireBudgetDelete(memory);
}

}  // extern "C"

}  // namespace quire
