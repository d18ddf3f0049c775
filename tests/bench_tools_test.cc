// What benches are made of: arguments, the line through points, the plot. No time is looked at.
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "base/json.h"
#include "bench/flags.h"
#include "bench/json_fields.h"
#include "bench/statistics.h"
#include "bench/svg_plot.h"

namespace quire {
namespace {

struct Parsed {
  bool on = false;
  std::string text = "before";
  std::vector<std::string> names;
  int32_t number = 7;
  std::vector<int32_t> numbers = {1};
  double seconds = 0.5;
  std::vector<std::string> rest;
  absl::Status status;
};

Parsed Parse(const std::vector<std::string>& arguments, size_t max_rest = 0) {
  Parsed p;
  Flags flags;
  flags.Add("on", &p.on, "a switch");
  flags.Add("text", &p.text, "");
  flags.Add("names", &p.names, "");
  flags.Add("number", &p.number, 1, 64, "");
  flags.Add("numbers", &p.numbers, 1, 64, "");
  flags.Add("seconds", &p.seconds, 0.1, 60, "");
  p.status = flags.Parse(arguments, p.rest, max_rest);
  return p;
}

TEST(Flags, EachForm) {
  const Parsed p = Parse({"--on", "--text=a=b,c", "model", "--names=x,y", "--number=64",
                          "--numbers=1,2,64", "--seconds=2.5", "more"},
                         2);
  ASSERT_TRUE(p.status.ok()) << p.status;
  EXPECT_TRUE(p.on);
  EXPECT_EQ(p.text, "a=b,c");
  EXPECT_EQ(p.names, (std::vector<std::string>{"x", "y"}));
  EXPECT_EQ(p.number, 64);
  EXPECT_EQ(p.numbers, (std::vector<int32_t>{1, 2, 64}));
  EXPECT_EQ(p.seconds, 2.5);
  EXPECT_EQ(p.rest, (std::vector<std::string>{"model", "more"}));
}

TEST(Flags, WhatIsNotThereStays) {
  const Parsed p = Parse({"--text="});
  ASSERT_TRUE(p.status.ok()) << p.status;
  EXPECT_FALSE(p.on);
  EXPECT_EQ(p.text, "");
  EXPECT_EQ(p.number, 7);
  EXPECT_EQ(p.numbers, (std::vector<int32_t>{1}));
  EXPECT_EQ(p.seconds, 0.5);
}

TEST(Flags, MistakesNameTheArgument) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"--numbr=3", "argument=--numbr=3 is unknown"},
      {"--on=1", "argument=--on takes no value"},
      {"--number", "argument=--number needs a value"},
      {"--number=0", "number=0 must be a number from 1 to 64"},
      {"--number=65", "number=65 must be a number from 1 to 64"},
      {"--number=3x", "number=3x must be"},
      {"--number=", "number= must be"},
      {"--number=99999999999", "number=99999999999 must be"},
      {"--numbers=1,,2", "numbers= must be"},
      {"--numbers=1,", "numbers= must be"},
      {"--numbers=", "numbers must name at least one number"},
      {"--numbers=4,70", "numbers=70 must be"},
      {"--seconds=nan", "seconds=nan must be"},
      {"--seconds=0.01", "seconds=0.01 must be a number from 0.1 to 60"},
      {"model", "argument=model is one too many"},
  };
  for (const auto& [argument, part] : cases) {
    const Parsed p = Parse({argument});
    EXPECT_EQ(p.status.code(), absl::StatusCode::kInvalidArgument) << argument;
    EXPECT_NE(std::string(p.status.message()).find(part), std::string::npos) << p.status;
  }
  EXPECT_EQ(Parse({"--number=2", "--number=3"}).status.message(),
            "argument=--number is there twice");
}

// F. J. Anscombe, "Graphs in Statistical Analysis" (1973), the first of his four data sets and the
// figures that the paper gives for each of them.
TEST(Statistics, AnscombesLine) {
  const std::array<Point, 11> points = {{{10, 8.04},
                                         {8, 6.95},
                                         {13, 7.58},
                                         {9, 8.81},
                                         {11, 8.33},
                                         {14, 9.96},
                                         {6, 7.24},
                                         {4, 4.26},
                                         {12, 10.84},
                                         {7, 4.82},
                                         {5, 5.68}}};
  const Line line = FitLine(points);
  EXPECT_NEAR(line.slope, 0.500, 5e-4);
  EXPECT_NEAR(line.intercept, 3.00, 5e-3);
  EXPECT_NEAR(line.slope_error, 0.118, 5e-4);
  EXPECT_NEAR(line.r2, 0.667, 5e-4);
}

TEST(Statistics, ALineThroughPointsOnALine) {
  const std::array<Point, 3> points = {{{64, 1000.5}, {512, 1224.5}, {4096, 3016.5}}};
  const Line line = FitLine(points);
  EXPECT_NEAR(line.slope, 0.5, 1e-12);
  EXPECT_NEAR(line.intercept, 968.5, 1e-9);
  EXPECT_NEAR(line.r2, 1, 1e-12);
  EXPECT_NEAR(line.slope_error, 0, 1e-7);
  EXPECT_NEAR(line.At(2000), 1968.5, 1e-9);
}

TEST(Statistics, TwoPointsAndLevelOnes) {
  const std::array<Point, 2> two = {{{1, 5}, {3, 1}}};
  EXPECT_EQ(FitLine(two).slope, -2);
  EXPECT_EQ(FitLine(two).slope_error, 0);
  const std::array<Point, 3> level = {{{1, 4}, {2, 4}, {3, 4}}};
  EXPECT_EQ(FitLine(level).slope, 0);
  EXPECT_EQ(FitLine(level).r2, 1);
}

TEST(Statistics, PointsAboveEachOtherHaveNoLine) {
  const std::array<Point, 2> points = {{{2, 5}, {2, 6}}};
  EXPECT_DEATH(FitLine(points), "2 points have one x");
}

TEST(Statistics, Medians) {
  EXPECT_EQ(Median({}), 0);
  EXPECT_EQ(Median({3}), 3);
  EXPECT_EQ(Median({9, 1, 4}), 4);
  EXPECT_EQ(Median({9, 1, 4, 2}), 3);
}

TEST(SvgPlot, TicksAreRound) {
  EXPECT_DOUBLE_EQ(TickStep(4096, 8), 1000);
  EXPECT_DOUBLE_EQ(TickStep(8, 8), 1);
  EXPECT_DOUBLE_EQ(TickStep(8.1, 8), 2);
  EXPECT_DOUBLE_EQ(TickStep(0.035, 8), 0.005);
  EXPECT_DOUBLE_EQ(TickStep(3900, 8), 500);
}

// Python's expat says what a browser would: whether it is XML, and where dots and lines are.
// Writes "dots" as "cx cy" and lines as "x1 y1 x2 y2" in one color, and all text.
constexpr const char* kReader = R"(import sys, xml.etree.ElementTree as tree
root = tree.parse(sys.argv[1]).getroot()
ns = '{http://www.w3.org/2000/svg}'
assert root.tag == ns + 'svg', root.tag
for e in root.iter():
    if e.tag == ns + 'circle': print('dot', e.get('fill'), e.get('cx'), e.get('cy'))
    elif e.tag == ns + 'line': print('line', e.get('stroke'), *[e.get(k) for k in ('x1', 'y1', 'x2', 'y2')])
    elif e.tag == ns + 'text': print('text', e.text)
)";

std::vector<std::string> ReadSvg(const Plot& plot) {
  const std::string folder = ::testing::TempDir();
  const std::string svg = folder + "/bench_tools_test.svg", reader = folder + "/read_svg.py";
  EXPECT_TRUE(WriteSvg(plot, svg).ok());
  std::ofstream(reader) << kReader;
  FILE* const pipe =
      ::popen(("'" QUIRE_TEST_PYTHON "' '" + reader + "' '" + svg + "' 2>&1").c_str(), "r");
  std::string out;
  std::array<char, 4096> part;
  while (pipe != nullptr) {
    const size_t n = std::fread(part.data(), 1, part.size(), pipe);
    if (n == 0) break;
    out.append(part.data(), n);
  }
  EXPECT_EQ(::pclose(pipe), 0) << out;
  std::vector<std::string> lines;
  std::istringstream stream(out);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

TEST(SvgPlot, IsXmlAndDotsAreWhereTheyBelong) {
  Plot plot{
      .title = "a < b & \"c\" > d\x01",
      .notes = {"äöü", "two"},
      .x_label = "x",
      .y_label = "y",
      .series = {{.name = "dots & <line>",
                  .color = "#112233",
                  .points = {{1000, 10}, {2000, 20}, {4000, 35}},
                  .has_line = true,
                  .line = {.slope = 0.005, .intercept = 5}},
                 {.name = "steep", .color = "#445566", .has_line = true, .line = {.slope = 0.07}}}};
  std::vector<std::array<double, 2>> dots;
  std::vector<std::array<double, 4>> lines;
  std::string text;
  for (const std::string& row : ReadSvg(plot)) {
    std::istringstream in(row);
    std::string kind, color;
    in >> kind;
    if (kind == "text") text += row.substr(5) + "\n";
    in >> color;
    if (kind == "dot" && color == "#112233") {
      in >> dots.emplace_back()[0] >> dots.back()[1];
    } else if (kind == "line" && (color == "#112233" || color == "#445566")) {
      lines.emplace_back();
      for (double& v : lines.back()) in >> v;
    }
  }
  EXPECT_NE(text.find("a < b & \"c\" > d \n"), std::string::npos) << text;
  EXPECT_NE(text.find("äöü\n"), std::string::npos) << text;
  EXPECT_NE(text.find("dots & <line>\n"), std::string::npos) << text;
  ASSERT_EQ(dots.size(), 4u);  // the last one is the legend's
  // Linear in both axes, up in y; coordinates have one decimal.
  const double per_x = (dots[1][0] - dots[0][0]) / 1000, per_y = (dots[1][1] - dots[0][1]) / 10;
  EXPECT_GT(per_x, 0);
  EXPECT_LT(per_y, 0);
  EXPECT_NEAR(dots[2][0], dots[0][0] + 3000 * per_x, 0.6);
  EXPECT_NEAR(dots[2][1], dots[0][1] + 25 * per_y, 0.6);
  // Axes end at 4000 and 35. The flat line goes from (0, 5) to (4000, 25), the steep one leaves the
  // frame at (500, 35).
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_NEAR(lines[0][0], dots[0][0] - 1000 * per_x, 0.6);
  EXPECT_NEAR(lines[0][1], dots[0][1] - 5 * per_y, 0.6);
  EXPECT_NEAR(lines[0][2], dots[2][0], 0.6);
  EXPECT_NEAR(lines[0][3], dots[0][1] + 15 * per_y, 0.6);
  EXPECT_NEAR(lines[1][0], lines[0][0], 0.1);
  EXPECT_NEAR(lines[1][1], dots[0][1] - 10 * per_y, 0.6);
  EXPECT_NEAR(lines[1][2], dots[0][0] - 500 * per_x, 0.6);
  EXPECT_NEAR(lines[1][3], dots[2][1], 0.6);
}

TEST(SvgPlot, AFileThatCannotBeWritten) {
  const Plot plot{.series = {{.points = {{1, 1}}}}};
  const absl::Status status = WriteSvg(plot, "/no/such/folder/plot.svg");
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(std::string(status.message()).find("svg=/no/such/folder/plot.svg"), std::string::npos);
}

TEST(JsonFields, AreMembersOfOneObject) {
  JsonWriter w;
  w.BeginObject();
  WriteTexts(w, {{"a", "x\"y"}, {"b", ""}});
  WriteNumbers(w, {{"c", 2.5}, {"d", -1}});
  w.EndObject();
  const auto json = Json::Parse(w.text());
  ASSERT_TRUE(json.ok()) << json.status();
  EXPECT_EQ(json->size(), 4u);
  EXPECT_EQ((*json)["a"].as_string(), "x\"y");
  EXPECT_EQ((*json)["c"].as_double(), 2.5);
  EXPECT_EQ((*json)["d"].as_double(), -1);
}

}  // namespace
}  // namespace quire
