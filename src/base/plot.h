#pragma once

#include <string>
#include <string_view>
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
  std::string label{};
  bool log = false;  // then points that are not positive leave a gap too
};

struct Plot {
  std::string title{};
  Axis x{}, y{};
  std::vector<Series> series{};
};

// The plot as an SVG document, readable by itself: 720 x 440 pixels, and wider if there are more
// than 4 series or one is in their names' corner; then these stand beside the field. Colours tell 8 series apart, dashes 24
// more. Throws Error if there is no point to show.
std::string SvgPlot(const Plot& plot);

// Text between the tags of SVG and HTML.
std::string EscapeMarkup(std::string_view text);

}  // namespace linattn
