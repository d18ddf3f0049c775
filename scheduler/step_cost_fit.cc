#include "scheduler/step_cost_fit.h"

#include <algorithm>
#include <cmath>

namespace quire {

void StepCostFit::OnStep(int32_t tokens, double us) {
  // One bad step (a page fault, a stopped process) must not move the fit: at most 8 times the mean.
  if (weight_ > 5)
    us = std::min(us, 8 * sum_y_ / weight_ * std::max(1.0, tokens * weight_ / sum_x_));
  const double x = tokens;
  weight_ = weight_ * kMemory + 1;
  sum_x_ = sum_x_ * kMemory + x;
  sum_y_ = sum_y_ * kMemory + us;
  sum_xx_ = sum_xx_ * kMemory + x * x;
  sum_xy_ = sum_xy_ * kMemory + x * us;
}

void StepCostFit::OnDecodeStep(int32_t rows, double us) {
  ++num_decode_steps_;
  if (rows < 1 || rows > kMostRows) return;
  Seen& seen = decode_[static_cast<size_t>(rows)];
  // A stopped process is no measurement.
  if (Knows(rows)) us = seen.us + 0.25 * (std::min(us, 4 * seen.us) - seen.us);
  seen = {.us = us, .at = num_decode_steps_};
}

bool StepCostFit::Knows(int32_t rows) const {
  const Seen& seen = decode_[static_cast<size_t>(rows)];
  return seen.at >= 0 && num_decode_steps_ - seen.at < kRemembered;
}

double StepCostFit::DecodeUs(int32_t rows) const {
  int32_t below = std::clamp(rows, 0, kMostRows);
  while (below > 0 && !Knows(below)) --below;
  int32_t above = std::max(rows, 1);
  while (above <= kMostRows && !Knows(above)) ++above;
  const double slope = us_per_token();
  const auto at = [&](int32_t r) { return decode_[static_cast<size_t>(r)].us; };
  if (below > 0 && above <= kMostRows) {
    if (below == above) return at(below);
    return at(below) + (at(above) - at(below)) * (rows - below) / (above - below);
  }
  if (below > 0) return at(below) + slope * (rows - below);
  if (above <= kMostRows) return std::max(at(above) / 2, at(above) - slope * (above - rows));
  return fixed_us() + slope * rows;
}

void StepCostFit::OnPageOps(int64_t ops, double us) {
  if (ops > 0) us_per_op_ += 0.1 * (us / static_cast<double>(ops) - us_per_op_);
}

StepCostFit::Fit StepCostFit::Solve() const {
  if (weight_ == 0) return {};
  const double mean_x = sum_x_ / weight_, mean_y = sum_y_ / weight_;
  const double var = sum_xx_ / weight_ - mean_x * mean_x;
  const double cov = sum_xy_ / weight_ - mean_x * mean_y;
  if (var < 0.01) return {.fixed = mean_y * 7 / 8, .slope = mean_y / 8 / std::max(1.0, mean_x)};
  const double most = mean_y / std::max(1.0, mean_x);
  const double slope = std::clamp(cov / var, 0.01 * most, most);
  return {.fixed = std::max(0.0, mean_y - slope * mean_x), .slope = slope};
}

double StepCostFit::fixed_us() const { return Solve().fixed; }
double StepCostFit::us_per_token() const { return Solve().slope; }

int32_t StepCostFit::TokensWithin(double us) const {
  const Fit fit = Solve();
  if (fit.slope <= 0) return INT32_MAX;
  const double tokens = std::floor((us - fit.fixed) / fit.slope);
  return static_cast<int32_t>(std::clamp(tokens, 1.0, 1e9));
}

}  // namespace quire
