#pragma once

#include <string>
#include <utility>
#include <vector>

namespace linattn {

// A curve: points in the order in which they are joined. Points that are not finite leave a gap.
struct Series {
  std::string name;
  std::vector<std::pair<double, double>> points;
  bool markers = false;  // a dot at each point
};

struct Axis {
  std::string label;
  bool log = false;  // then points that are not positive leave a gap too
};

struct Plot {
  std::string title;
  Axis x, y;
  std::vector<Series> series;
};

// The plot as an SVG document of 720 x 440 pixels, readable by itself; colours tell up to 8 series
// apart, and repeat after that. Throws Error if there is no point to show.
std::string SvgPlot(const Plot& plot);

}  // namespace linattn
