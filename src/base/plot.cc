#include "base/plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <limits>
#include <set>

#include "base/error.h"

namespace linattn {
namespace {

constexpr double kHeight = 440;
constexpr double kLeft = 70, kEnd = 700, kTop = 40, kBase = 385;  // of the field, in pixels
// Okabe and Ito's palette, which colour-blind readers can tell apart.
constexpr std::array<const char*, 8> kColours = {"#0072B2", "#D55E00", "#009E73", "#CC79A7",
                                                 "#56B4E9", "#E69F00", "#000000", "#999933"};

// One direction of the plot: values to pixels, and where its ticks are.
class Scale {
 public:
  Scale(bool log, double from_pixel, double to_pixel)
      : log_(log), from_pixel_(from_pixel), to_pixel_(to_pixel) {}

  bool Shows(double value) const { return std::isfinite(value) && (!log_ || value > 0); }
  void Cover(double value) {
    low_ = std::min(low_, Map(value));
    high_ = std::max(high_, Map(value));
    if (log_ && covered_.size() <= kFewValues) covered_.insert(value);
  }
  bool empty() const { return low_ > high_; }
  void Widen() {
    const double margin =
        high_ > low_ ? 0.03 * (high_ - low_) : std::max(0.5, 0.1 * std::abs(high_));
    low_ -= margin, high_ += margin;
  }
  double Pixel(double value) const {
    return from_pixel_ + (Map(value) - low_) / (high_ - low_) * (to_pixel_ - from_pixel_);
  }
  // A few sizes, as powers of two, are the ticks themselves.
  std::vector<double> Ticks() const {
    const bool whole = std::ranges::all_of(covered_, [](double x) { return x == std::floor(x); });
    if (log_ && whole && covered_.size() > 2 && covered_.size() <= kFewValues)
      return {covered_.begin(), covered_.end()};
    return log_ ? LogTicks() : LinearTicks();
  }

 private:
  double Map(double value) const { return log_ ? std::log10(value) : value; }

  // Multiples of 1, 2 or 5 times a power of ten: four to nine of them.
  std::vector<double> LinearTicks() const {
    const double power = std::pow(10, std::floor(std::log10((high_ - low_) / 4)));
    double step = power;
    for (const double factor : {2.0, 5.0}) {
      if (factor * power <= (high_ - low_) / 4) step = factor * power;
    }
    std::vector<double> ticks;
    for (double i = std::ceil(low_ / step); i * step <= high_; ++i) ticks.push_back(i * step);
    return ticks;
  }
  // Powers of ten; within a short range also twice and five times those.
  std::vector<double> LogTicks() const {
    std::vector<double> ticks;
    for (double e = std::floor(low_); e <= high_; ++e) {
      for (const double factor : {1.0, 2.0, 5.0}) {
        const double position = e + std::log10(factor);
        if (factor > 1 && high_ - low_ > 2) break;
        if (position >= low_ && position <= high_) ticks.push_back(std::pow(10, position));
      }
    }
    return ticks;
  }

  static constexpr size_t kFewValues = 7;

  bool log_;
  std::set<double> covered_;
  double from_pixel_, to_pixel_;
  double low_ = std::numeric_limits<double>::infinity(), high_ = -low_;
};

std::string Text(double x, double y, const char* anchor, const std::string& text, int size = 12) {
  return fmt::format(
      "<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\" font-size=\"{}\">{}</text>\n", x, y,
      anchor, size, EscapeMarkup(text));
}

std::string Line(double x0, double y0, double x1, double y1, const char* colour) {
  return fmt::format(
      "<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"{}\"/>\n", x0, y0, x1,
      y1, colour);
}

// A tick's value: at most five digits; from 1e5 on and below 1e-3 with an exponent.
std::string Number(double tick) {
  const double size = std::abs(tick);
  if (size == 0 || (size >= 0.9995e-3 && size < 99999.5)) return fmt::format("{:.5g}", tick + 0.0);
  const double exponent = std::floor(std::log10(size) + 1e-9);
  return fmt::format("{:.3g}e{:.0f}", tick / std::pow(10, exponent), exponent);
}

std::string Axes(const Plot& plot, const Scale& x, const Scale& y) {
  std::string svg;
  for (const double tick : x.Ticks()) {
    svg += Line(x.Pixel(tick), kTop, x.Pixel(tick), kBase, "#dddddd");
    svg += Text(x.Pixel(tick), kBase + 18, "middle", Number(tick));
  }
  for (const double tick : y.Ticks()) {
    svg += Line(kLeft, y.Pixel(tick), kEnd, y.Pixel(tick), "#dddddd");
    svg += Text(kLeft - 8, y.Pixel(tick) + 4, "end", Number(tick));
  }
  svg += Line(kLeft, kBase, kEnd, kBase, "black") + Line(kLeft, kTop, kLeft, kBase, "black");
  svg += Text((kLeft + kEnd) / 2, 24, "middle", plot.title, 15);
  svg += Text((kLeft + kEnd) / 2, kHeight - 14, "middle", plot.x.label, 13);
  svg += fmt::format("<g transform=\"translate(18 {:.1f}) rotate(-90)\">{}</g>\n",
                     (kTop + kBase) / 2, Text(0, 0, "middle", plot.y.label, 13));
  return svg;
}

// Series i's stroke: past the last colour they come again, dashed.
std::string Stroke(size_t i) {
  const char* dashes[] = {"", "6 3", "2 2", "9 3 2 3"};
  const size_t dash = i / kColours.size() % std::size(dashes);
  std::string stroke =
      fmt::format("stroke=\"{}\" stroke-width=\"1.8\"", kColours[i % kColours.size()]);
  if (dash > 0) stroke += fmt::format(" stroke-dasharray=\"{}\"", dashes[dash]);
  return stroke;
}

std::string Curve(const Series& series, const Scale& x, const Scale& y, size_t i) {
  std::string path, dots;
  bool joined = false;
  for (const auto& [px, py] : series.points) {
    if (!x.Shows(px) || !y.Shows(py)) {
      joined = false;
      continue;
    }
    path += fmt::format("{}{:.1f} {:.1f}", joined ? "L" : "M", x.Pixel(px), y.Pixel(py));
    joined = true;
    if (series.markers)
      dots += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.5\" fill=\"{}\"/>\n",
                          x.Pixel(px), y.Pixel(py), kColours[i % kColours.size()]);
  }
  return fmt::format("<path d=\"{}\" fill=\"none\" {}/>\n{}", path, Stroke(i), dots);
}

double LengthOfNames(const Plot& plot) {
  size_t longest = 0;
  for (const Series& series : plot.series) longest = std::max(longest, series.name.size());
  return 60 + 7 * static_cast<double>(longest);
}

// Whether a curve passes through the field's upper right corner, so wide and high.
bool Passes(const Series& series, const Scale& x, const Scale& y, double width, double height) {
  const auto in = [&](double px, double py) { return px > kEnd - width && py < kTop + height; };
  for (size_t i = 0; i < series.points.size(); ++i) {
    const auto& [x1, y1] = series.points[i];
    const auto& [x0, y0] = series.points[i > 0 ? i - 1 : i];
    if (!x.Shows(x0) || !y.Shows(y0) || !x.Shows(x1) || !y.Shows(y1)) continue;
    for (double part = 0; part <= 1; part += 1.0 / 32)
      if (in(x.Pixel(x0) + part * (x.Pixel(x1) - x.Pixel(x0)),
             y.Pixel(y0) + part * (y.Pixel(y1) - y.Pixel(y0))))
        return true;
  }
  return false;
}

// A few names fit into the corner, if no curve is there; else they stand beside the field.
bool NamesInside(const Plot& plot, const Scale& x, const Scale& y) {
  const double height = 10 + 18 * static_cast<double>(plot.series.size());
  return plot.series.size() <= 4 && std::ranges::none_of(plot.series, [&](const Series& series) {
           return Passes(series, x, y, LengthOfNames(plot), height);
         });
}

std::string Legend(const Plot& plot, bool inside) {
  const double line = inside ? kEnd - 34 : kEnd + 14;
  const double row = std::min(18.0, (kBase - kTop) / static_cast<double>(plot.series.size()));
  std::string svg;
  double y = kTop + 16;
  for (size_t i = 0; i < plot.series.size(); ++i, y += row) {
    svg += fmt::format("<line x1=\"{0:.1f}\" y1=\"{2:.1f}\" x2=\"{1:.1f}\" y2=\"{2:.1f}\" {3}/>\n",
                       line, line + 24, y - 4, Stroke(i));
    svg += inside ? Text(line - 6, y, "end", plot.series[i].name)
                  : Text(line + 30, y, "start", plot.series[i].name);
  }
  return svg;
}

}  // namespace

std::string EscapeMarkup(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '&')
      escaped += "&amp;";
    else if (c == '<')
      escaped += "&lt;";
    else if (c == '>')
      escaped += "&gt;";
    else
      escaped += c;
  }
  return escaped;
}

std::string SvgPlot(const Plot& plot) {
  Scale x(plot.x.log, kLeft, kEnd), y(plot.y.log, kBase, kTop);
  for (const Series& series : plot.series) {
    for (const auto& [px, py] : series.points) {
      if (!x.Shows(px) || !y.Shows(py)) continue;
      x.Cover(px), y.Cover(py);
    }
  }
  Check(!x.empty(), "plot", "'{}' must have a point to show, but has none", plot.title);
  x.Widen(), y.Widen();
  const bool inside = NamesInside(plot, x, y);
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} "
      "{1}\" "
      "font-family=\"sans-serif\">\n<rect width=\"{0}\" height=\"{1}\" fill=\"white\"/>\n",
      kEnd + (inside ? 20 : LengthOfNames(plot)), kHeight);
  svg += Axes(plot, x, y);
  for (size_t i = 0; i < plot.series.size(); ++i) {
    svg += Curve(plot.series[i], x, y, i);
  }
  return svg + Legend(plot, inside) + "</svg>\n";
}

}  // namespace linattn
