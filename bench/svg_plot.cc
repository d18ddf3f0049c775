#include "bench/svg_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <string_view>
#include <utility>

namespace quire {
namespace {

constexpr double kWidth = 760, kLeft = 72, kRight = 24, kBottom = 56, kPlotHeight = 360;
constexpr double kLine = 18;  // of text

std::string Escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        // Control characters are not allowed in XML 1.0, however written.
        out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
  }
  return out;
}

std::string Text(double x, double y, std::string_view anchor, std::string_view text,
                 std::string_view more = "") {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\"{}>{}</text>\n", x, y,
                     anchor, more, Escaped(text));
}

std::string Segment(double x1, double y1, double x2, double y2, std::string_view color,
                    std::string_view more = "") {
  return fmt::format(
      "<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"{}\"{}/>\n", x1, y1,
      x2, y2, Escaped(color), more);
}

// From 0 to a whole number of ticks.
struct Axis {
  explicit Axis(double most) : step(TickStep(most, 8)), end(std::ceil(most / step) * step) {}
  double step, end;
};

// Where in [0, end_x] a line is between 0 and end_y; it is somewhere.
std::pair<double, double> Inside(const Line& line, double end_x, double end_y) {
  if (line.slope == 0) return {0, end_x};
  const double at_0 = -line.intercept / line.slope, at_end = (end_y - line.intercept) / line.slope;
  return {std::clamp(std::min(at_0, at_end), 0.0, end_x),
          std::clamp(std::max(at_0, at_end), 0.0, end_x)};
}

}  // namespace

double TickStep(double most, int parts) {
  CHECK(most > 0 && std::isfinite(most), "an axis to {}", most);
  double power = std::pow(10, std::floor(std::log10(most / parts)));
  for (;; power *= 10) {
    for (const double factor : {1.0, 2.0, 5.0}) {
      if (most <= factor * power * parts * (1 + 1e-9)) return factor * power;
    }
  }
}

std::string PlotSvg(const Plot& plot) {
  double most_x = 0, most_y = 0;
  for (const PlotSeries& s : plot.series) {
    for (const Point& p : s.points) {
      most_x = std::max(most_x, p.x);
      most_y = std::max(most_y, p.y);
    }
  }
  const Axis x(most_x), y(most_y);
  const double top = 28 + kLine * static_cast<double>(plot.notes.size() + 1);
  const double legend = top + kPlotHeight + kBottom;
  const double height = legend + kLine * static_cast<double>(plot.series.size());
  const auto at_x = [&](double v) { return kLeft + v / x.end * (kWidth - kLeft - kRight); };
  const auto at_y = [&](double v) { return top + kPlotHeight * (1 - v / y.end); };

  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" "
      "viewBox=\"0 0 {0:.0f} {1:.0f}\" font-family=\"sans-serif\" font-size=\"13\">\n"
      "<rect width=\"{0:.0f}\" height=\"{1:.0f}\" fill=\"#ffffff\"/>\n",
      kWidth, height);
  svg += Text(kLeft, 26, "start", plot.title, " font-size=\"16\"");
  for (size_t i = 0; i < plot.notes.size(); ++i) {
    svg += Text(kLeft, 28 + kLine * static_cast<double>(i + 1), "start", plot.notes[i],
                " fill=\"#555555\"");
  }
  for (int i = 0; i * x.step < x.end * (1 + 1e-9); ++i) {
    const double v = i * x.step;
    svg += Segment(at_x(v), at_y(0), at_x(v), at_y(y.end), "#e4e4e4");
    svg += Text(at_x(v), at_y(0) + kLine, "middle", fmt::format("{:g}", v));
  }
  for (int i = 0; i * y.step < y.end * (1 + 1e-9); ++i) {
    const double v = i * y.step;
    svg += Segment(at_x(0), at_y(v), at_x(x.end), at_y(v), "#e4e4e4");
    svg += Text(kLeft - 8, at_y(v) + 4, "end", fmt::format("{:g}", v));
  }
  svg += Segment(at_x(0), at_y(0), at_x(x.end), at_y(0), "#000000");
  svg += Segment(at_x(0), at_y(0), at_x(0), at_y(y.end), "#000000");
  svg += Text(at_x(x.end / 2), at_y(0) + 2.2 * kLine, "middle", plot.x_label);
  svg += Text(0, 0, "middle", plot.y_label,
              fmt::format(" transform=\"translate(18 {:.1f}) rotate(-90)\"", at_y(y.end / 2)));

  double legend_y = legend;
  for (const PlotSeries& s : plot.series) {
    if (s.has_line) {
      const auto [from, to] = Inside(s.line, x.end, y.end);
      svg += Segment(at_x(from), at_y(s.line.At(from)), at_x(to), at_y(s.line.At(to)), s.color,
                     " stroke-width=\"1.5\"");
    }
    for (const Point& p : s.points) {
      svg += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4\" fill=\"{}\"/>\n", at_x(p.x),
                         at_y(p.y), Escaped(s.color));
    }
    svg += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4\" fill=\"{}\"/>\n", kLeft + 6,
                       legend_y - 4, Escaped(s.color));
    svg += Text(kLeft + 20, legend_y, "start", s.name);
    legend_y += kLine;
  }
  return svg + "</svg>\n";
}

absl::Status WriteSvg(const Plot& plot, const std::string& path) {
  const std::string svg = PlotSvg(plot);
  std::ofstream file(path, std::ios::binary);
  file << svg;
  file.close();
  if (!file) return InvalidArgument("svg={} can't be written: {}", path, std::strerror(errno));
  return absl::OkStatus();
}

}  // namespace quire
