// bench/svg_plot.h -- points and lines over two linear axes as an SVG 1.1 file, for docs/.
//
// Called by benches; pure, but for WriteSvg. Both axes begin at 0, so that a line's height is what
// it says. No script, no font of its own, no reference to anything else.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "bench/statistics.h"

namespace quire {

struct PlotSeries {
  std::string name;           // in the legend; any UTF-8
  std::string color;          // "#1f77b4"
  std::vector<Point> points;  // dots; may be none
  bool has_line = false;      // from x = 0 to the axis' end, as far as it is inside the frame
  Line line;
};

struct Plot {
  std::string title;
  std::vector<std::string> notes;  // lines below the title
  std::string x_label, y_label;
  std::vector<PlotSeries> series;
};

// REQUIRES: a point with positive x and y; all are finite and not negative; lines cross the frame.
std::string PlotSvg(const Plot& plot);
// ERRORS: kInvalidArgument naming `path` and the system's reason.
absl::Status WriteSvg(const Plot& plot, const std::string& path);

// The least of 1, 2 or 5 times a power of ten that cuts [0, most] into at most `parts`.
// REQUIRES: most > 0.
double TickStep(double most, int parts);

}  // namespace quire
