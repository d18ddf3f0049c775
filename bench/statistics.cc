#include "bench/statistics.h"

#include <algorithm>
#include <cmath>

#include "base/status.h"

namespace quire {

Line FitLine(std::span<const Point> points) {
  const auto n = static_cast<double>(points.size());
  double mean_x = 0, mean_y = 0;
  for (const Point& p : points) {
    mean_x += p.x / n;
    mean_y += p.y / n;
  }
  double xx = 0, xy = 0, yy = 0;
  for (const Point& p : points) {
    xx += (p.x - mean_x) * (p.x - mean_x);
    xy += (p.x - mean_x) * (p.y - mean_y);
    yy += (p.y - mean_y) * (p.y - mean_y);
  }
  CHECK(xx > 0, "{} points have one x", points.size());
  Line line;
  line.slope = xy / xx;
  line.intercept = mean_y - line.slope * mean_x;
  double left = 0;
  for (const Point& p : points) left += (p.y - line.At(p.x)) * (p.y - line.At(p.x));
  line.r2 = yy > 0 ? 1 - left / yy : 1;
  if (points.size() > 2) line.slope_error = std::sqrt(left / (n - 2) / xx);
  return line;
}

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

}  // namespace quire
