// scheduler/step_cost_fit.h -- what a step costs, as measured: fixed_us + tokens x us_per_token.
//
// Fitted by least squares over the steps so far, each step counting kMemory less than the next
// (weights, caches and neighbours on the machine change). Used for choices that change no output:
// chunk sizes under a step time goal, how many guesses are worth computing, recompute or swap.
//
// Thread: engine thread.
#pragma once

#include <array>
#include <cstdint>

namespace quire {

class StepCostFit {
 public:
  // A step of `tokens` rows took `us`, page operations left out.
  void OnStep(int32_t tokens, double us);
  // The same, of a step in which every sequence had its next token computed, and guesses: rows that
  // all have logits. Kernels change with few rows, so these times are no straight line: each number
  // of rows is remembered by itself, for kRemembered such steps.
  void OnDecodeStep(int32_t rows, double us);
  // What such a step takes; between sizes that were seen by interpolation, beyond them by the fit.
  double DecodeUs(int32_t rows) const;
  // `ops` page operations took `us`.
  void OnPageOps(int64_t ops, double us);

  // Both 0 until a step was seen. While all steps were of one size the whole is counted as fixed
  // and a token as 1/8 of it: the first guesses then tell. A token is never less than 1% of what
  // the mean step takes for one.
  double fixed_us() const;
  double us_per_token() const;
  double us_per_page_op() const { return us_per_op_; }

  // The most tokens whose step stays within `us`; at least 1.
  int32_t TokensWithin(double us) const;

 private:
  static constexpr double kMemory = 0.98;
  static constexpr int32_t kMostRows = 256;
  static constexpr int64_t kRemembered = 1000;
  struct Seen {
    double us = 0;
    int64_t at = -1;  // decode step; -1 = never
  };
  bool Knows(int32_t rows) const;
  struct Fit {
    double fixed = 0;
    double slope = 0;
  };
  Fit Solve() const;

  std::array<Seen, kMostRows + 1> decode_;  // by rows
  int64_t num_decode_steps_ = 0;
  double weight_ = 0, sum_x_ = 0, sum_y_ = 0, sum_xx_ = 0, sum_xy_ = 0;
  // A page of a small model by memcpy, until some were measured.
  double us_per_op_ = 30;
};

}  // namespace quire
