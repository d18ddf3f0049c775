// sampling/grammar_budget.h -- a bound on what XGrammar may take for one call.
//
// Nobody can foresee what a grammar costs: `(a{1,100}){1,100}` is short. XGrammar has no limits of
// its own, so its library is linked with operator new and delete under other names
// (cmake/xgrammar.cmake), which are defined here. Within a GrammarBudget of the calling thread they
// count the bytes that are alive and look at the thread's CPU time now and then, and throw where
// operator new may throw: std::bad_alloc. Outside of a budget they are plain new and delete.
//
// The count is close, not exact: template code that the linker took from another library is not
// counted. Thread: a budget belongs to the thread that made it.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace quire {

class GrammarBudget {
 public:
  enum class Exceeded : uint8_t { kNo, kBytes, kTime };

  // Until it is destroyed. Budgets nest: only the innermost counts.
  GrammarBudget(size_t max_bytes, std::chrono::nanoseconds max_cpu_time);
  ~GrammarBudget();
  GrammarBudget(const GrammarBudget&) = delete;
  GrammarBudget& operator=(const GrammarBudget&) = delete;

  Exceeded exceeded() const { return exceeded_; }
  size_t peak_bytes() const { return static_cast<size_t>(peak_); }

  // Called by the allocator. Take throws std::bad_alloc where the budget ends; Add does not look.
  void Take(size_t bytes);
  void Add(size_t bytes);
  void Give(size_t bytes) { live_ -= static_cast<int64_t>(bytes); }

 private:
  int64_t max_bytes_;
  std::chrono::nanoseconds max_time_;
  std::chrono::nanoseconds start_;
  GrammarBudget* outer_;
  int64_t live_ = 0;  // below 0 if more is given back than was taken
  int64_t peak_ = 0;
  int32_t until_clock_ = 0;
  Exceeded exceeded_ = Exceeded::kNo;
};

}  // namespace quire
