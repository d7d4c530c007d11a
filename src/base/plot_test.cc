#include "base/plot.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>

#include "base/error.h"

namespace linattn {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(Plot, DrawsEachSeriesWithItsNameAndTicks) {
  const std::string svg =
      SvgPlot({.title = "a < b",
               .x = {"step"},
               .y = {"bits"},
               .series = {{"one", {{0, 1}, {10, 3}}}, {"two", {{0, 2}, {10, 2}}, true}}});
  for (const char* text :
       {"a &lt; b", ">step<", ">bits<", ">one<", ">two<", ">10<", "#0072B2", "#D55E00"})
    EXPECT_THAT(svg, HasSubstr(text));
  EXPECT_THAT(svg, HasSubstr("<circle"));
}

// Where (0, 1) and (10, 3) fall when 3% of the range is left at each side of a 630 x 345 field.
TEST(Plot, PlacesPointsOnALinearScale) {
  const std::string svg = SvgPlot({.series = {{"line", {{0, 1}, {10, 3}}}}});
  EXPECT_THAT(svg, HasSubstr("d=\"M87.8 375.2L682.2 49.8\""));
}

TEST(Plot, LogScaleIsEvenInRatios) {
  const std::string svg =
      SvgPlot({.x = {"N", true}, .series = {{"line", {{1, 0}, {10, 1}, {100, 2}}}}});
  EXPECT_THAT(svg, HasSubstr("L385.0 212.5"));
}

TEST(Plot, AFewSizesAreTheTicks) {
  const std::string svg =
      SvgPlot({.x = {"pairs", true}, .series = {{"line", {{4, 0}, {16, 1}, {64, 2}}}}});
  for (const char* tick : {">4<", ">16<", ">64<"}) EXPECT_THAT(svg, HasSubstr(tick));
  EXPECT_THAT(svg, Not(HasSubstr(">10<")));
}

TEST(Plot, TicksAreShort) {
  const std::string svg = SvgPlot(
      {.x = {"N", true}, .y = {"error", true}, .series = {{"line", {{1e3, 1e-5}, {1e7, 1}}}}});
  for (const char* tick : {">1000<", ">1e5<", ">1e6<", ">1e-5<", ">1e-4<", ">0.001<", ">1<"})
    EXPECT_THAT(svg, HasSubstr(tick));
}

TEST(Plot, NamesStandWhereNoCurvePasses) {
  const auto width = [](double end) {
    const std::string svg = SvgPlot({.series = {{"line", {{0, 1}, {10, end}}}}});
    return svg.substr(0, svg.find(" height"));
  };
  EXPECT_THAT(width(0), HasSubstr("width=\"720\""));
  EXPECT_THAT(width(2), HasSubstr("width=\"788\""));
}

TEST(Plot, LeavesAGapWhereThereIsNoNumber) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  const std::string svg =
      SvgPlot({.series = {{"gap", {{0, 0}, {1, 1}, {2, kNan}, {3, 1}, {4, 0}}}}});
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
  size_t pieces = 0;
  for (size_t at = svg.find('M'); at != std::string::npos; at = svg.find('M', at + 1)) ++pieces;
  EXPECT_EQ(pieces, 2u);
}

// A dozen curves: no two strokes alike, and the names to the right of the field.
TEST(Plot, TellsManySeriesApart) {
  Plot plot;
  for (int i = 0; i < 12; ++i)
    plot.series.push_back({fmt::format("series {}", i), {{0, i}, {1, i + 1}}});
  const std::string svg = SvgPlot(plot);
  std::set<std::string> strokes;
  for (size_t at = svg.find("fill=\"none\""); at != std::string::npos;
       at = svg.find("fill=\"none\"", at + 1))
    strokes.insert(svg.substr(at, svg.find("/>", at) - at));
  EXPECT_EQ(strokes.size(), 12u);
  EXPECT_THAT(svg, HasSubstr("x=\"744.0\""));
  EXPECT_THAT(svg, HasSubstr("width=\"823\""));
}

TEST(Plot, RefusesToShowNothing) {
  EXPECT_THROW(SvgPlot({.title = "empty"}), Error);
  EXPECT_THROW(SvgPlot({.y = {"y", true}, .series = {{"negative", {{0, -1}}}}}), Error);
}

}  // namespace
}  // namespace linattn
