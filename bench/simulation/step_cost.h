// bench/simulation/step_cost.h -- what a step of a given shape takes: a model, its fit to
// measured steps, and its JSON file.
//
// Called by the simulator for each step, by the fit and by the check against real runs. Pure;
// thread: any. A step's time is a sum of non-negative coefficients times the features of its batch;
// the fit minimises relative errors, so that short steps count as much as long ones, by the active
// set method for non-negative least squares (Lawson and Hanson, Solving Least Squares Problems,
// 1974, chapter 23).
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/status.h"
#include "scheduler/batch.h"

namespace quire {

// What of a batch its time depends on. A sequence that computes one token beside its drafts is a
// decode, all others are prefills.
struct StepShape {
  double prefill_tokens = 0;
  double decode_tokens = 0;  // drafts included
  double seqs = 0;
  double rows = 0;          // of logits that are computed and sampled from
  double prefill_keys = 0;  // keys that tokens attend to, summed over tokens
  double decode_keys = 0;
  double copies = 0;  // pages copied, saved or loaded before the step

  double tokens() const { return prefill_tokens + decode_tokens; }
  // How much of the way from `from` to `to` tokens there is: 0 to 1.
  double Reached(double from, double to) const {
    return std::clamp((tokens() - from) / (to - from), 0.0, 1.0);
  }
};
StepShape ShapeOf(const ScheduledBatch& batch);

// Microseconds for each unit of a feature. Kernels change with few tokens (a lookup shared by
// several rows, another instruction), so up to kLinearFrom tokens the time is a rising line of
// straight pieces: what a step of 2 tokens takes more than one of 1, of 3 more than of 2, and so
// on.
struct StepCostModel {
  static constexpr double kLinearFrom = 64;

  double fixed = 0;  // per step, one token in it
  double tokens_2 = 0, tokens_3 = 0, tokens_4 = 0, tokens_8 = 0;
  double tokens_16 = 0, tokens_32 = 0, tokens_64 = 0;
  double token = 0;          // each one beyond kLinearFrom
  double prefill_token = 0;  // more for tokens of prefills
  double seq = 0;
  double row = 0;
  double prefill_key = 0;
  double decode_key = 0;
  double copy = 0;

  // (name, member, feature of a shape)
  template <typename Self, typename Visitor>
  static void VisitFields(Self& c, Visitor&& visit) {
    visit("fixed_us", c.fixed, [](const StepShape&) { return 1.0; });
    visit("tokens_2_us", c.tokens_2, [](const StepShape& s) { return s.Reached(1, 2); });
    visit("tokens_3_us", c.tokens_3, [](const StepShape& s) { return s.Reached(2, 3); });
    visit("tokens_4_us", c.tokens_4, [](const StepShape& s) { return s.Reached(3, 4); });
    visit("tokens_8_us", c.tokens_8, [](const StepShape& s) { return s.Reached(4, 8); });
    visit("tokens_16_us", c.tokens_16, [](const StepShape& s) { return s.Reached(8, 16); });
    visit("tokens_32_us", c.tokens_32, [](const StepShape& s) { return s.Reached(16, 32); });
    visit("tokens_64_us", c.tokens_64, [](const StepShape& s) { return s.Reached(32, 64); });
    visit("token_us", c.token,
          [](const StepShape& s) { return std::max(0.0, s.tokens() - kLinearFrom); });
    visit("prefill_token_us", c.prefill_token, [](const StepShape& s) { return s.prefill_tokens; });
    visit("seq_us", c.seq, [](const StepShape& s) { return s.seqs; });
    visit("row_us", c.row, [](const StepShape& s) { return s.rows; });
    visit("prefill_key_us", c.prefill_key, [](const StepShape& s) { return s.prefill_keys; });
    visit("decode_key_us", c.decode_key, [](const StepShape& s) { return s.decode_keys; });
    visit("copy_us", c.copy, [](const StepShape& s) { return s.copies; });
  }

  double StepUs(const StepShape& shape) const;
};

// SmolLM2-135M-Instruct, Q4_1, bfloat16 cache, two cores with AMX: what `quire simulate` takes when
// no file is named.
StepCostModel BuiltInStepCost();

struct MeasuredStep {
  std::string name;
  StepShape shape;
  double us = 0;
};

struct StepFit {
  StepCostModel cost;
  double mean_error = 0;  // relative, absolute values
  double max_error = 0;
  std::vector<double> errors;  // model / measured - 1, of each step
};

// x >= 0 that minimises |A x - b|; rows: [num_rows, num_columns] flat.
std::vector<double> NonNegativeLeastSquares(std::span<const double> rows, size_t num_columns,
                                            std::span<const double> b);

// ERRORS: kInvalidArgument: fewer steps than coefficients, or one without time.
absl::StatusOr<StepFit> FitStepCost(std::span<const MeasuredStep> steps);

// The file: docs/formats.md. ERRORS: kInvalidArgument naming the field; kNotFound.
std::string StepCostJson(const StepCostModel& cost, std::string_view model);
absl::StatusOr<StepCostModel> ParseStepCost(std::string_view text);
absl::StatusOr<StepCostModel> ReadStepCost(const std::string& path);

}  // namespace quire
