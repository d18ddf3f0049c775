// bench/statistics.h -- the straight line through measured points, and medians. Called by benches;
// pure.
#pragma once

#include <span>
#include <vector>

namespace quire {

struct Point {
  double x = 0;
  double y = 0;
};

struct Line {
  double slope = 0;
  double intercept = 0;
  double slope_error = 0;  // standard error of the slope; 0 for two points
  double r2 = 0;           // share of y's variance that the line explains; 1 if y does not vary
  double At(double x) const { return intercept + slope * x; }
};

// Least squares of y. REQUIRES: at least two points with different x.
Line FitLine(std::span<const Point> points);

double Median(std::vector<double> values);  // 0 of none

}  // namespace quire
