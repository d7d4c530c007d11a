#include <fmt/format.h>
#include <fmt/ranges.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/plot.h"
#include "bench/mixer_problem.h"
#include "bench/timing.h"
#include "kernels/mixer.h"
#include "lab/lab.h"

// Linear attention costs O(N C V), softmax O(N^2 (K + V)): where is the crossing?
namespace linattn {
namespace {

constexpr int64_t kHeads = 4, kValues = 64;

// Milliseconds of a forward pass, the median of at least three.
double Milliseconds(const Mixer& mixer, int64_t N, int64_t K) {
  bench::MixerProblem<float> problem(mixer, {.B = 1, .T = N, .H = kHeads, .K = K, .V = kValues});
  const bench::Scratch scratch(mixer, problem.in);
  const auto run = [&] { mixer.forward(problem.in, problem.out, scratch.get()); };
  return bench::TimeInTurns({{run, nullptr}}, 0.05, 3, [] {})[0].median_s * 1e3;
}

// Where two curves over the same lengths cross, between lengths by their logarithms; none if they
// do not.
std::optional<double> Crossing(const Series& above, const Series& below) {
  for (size_t i = 1; i < above.points.size(); ++i) {
    const auto gap = [&](size_t j) {
      return std::log(above.points[j].second / below.points[j].second);
    };
    if (gap(i - 1) > 0 && gap(i) <= 0) {
      const double x0 = std::log(above.points[i - 1].first), x1 = std::log(above.points[i].first);
      return std::exp(x0 + (x1 - x0) * gap(i - 1) / (gap(i - 1) - gap(i)));
    }
  }
  return std::nullopt;
}

std::string CrossingText(const Series& linear, const Series& softmax) {
  if (linear.points.front().second <= softmax.points.front().second)
    return fmt::format("below {:.0f}", linear.points.front().first);
  const auto crossing = Crossing(linear, softmax);
  return crossing ? fmt::format("at {:.0f}", *crossing)
                  : fmt::format("beyond {:.0f}", linear.points.back().first);
}

double StateBytes(int64_t C) { return 4.0 * static_cast<double>(C * (kValues + 1)); }
double CacheBytes(double N) { return 4.0 * N * 2 * kValues; }

Plot MemoryPlot(const std::vector<int64_t>& features, const Series& softmax) {
  Plot plot{"memory of one head while generating", {"length N", true}, {"bytes", true}};
  Series cache{"softmax: keys and values", {}, true};
  for (const auto& [N, seconds] : softmax.points) cache.points.emplace_back(N, CacheBytes(N));
  plot.series.push_back(cache);
  for (const int64_t C : features) {
    Series state{fmt::format("linear, C = {}", C), {}};
    for (const auto& [N, seconds] : softmax.points) state.points.emplace_back(N, StateBytes(C));
    plot.series.push_back(state);
  }
  return plot;
}

}  // namespace

LabResult RunFeatures(const LabOptions& options) {
  std::vector<int64_t> features = {16, 64, 256, 1024}, lengths = {256, 512, 1024, 2048, 4096, 8192};
  if (options.quick) features = {32, 256}, lengths = {256, 1024, 4096};
  const int64_t total = std::ssize(lengths) * (std::ssize(features) + 1);
  int64_t done = 0;
  const auto curve = [&](const char* mixer, int64_t K, std::string name) {
    Series series{std::move(name), {}, true};
    for (const int64_t N : lengths) {
      series.points.emplace_back(N, Milliseconds(MixerByName(mixer), N, K));
      if (options.progress) options.progress(++done, total, series.name);
    }
    return series;
  };
  const Series softmax = curve("softmax", kValues, "softmax, K = 64");
  Plot plot{
      "causal attention, 4 heads, V = 64, forward", {"length N", true}, {"ms", true}, {softmax}};
  nlohmann::json figures = {{"softmax_ms", softmax.points}};
  std::vector<std::string> crossings, sizes;
  for (const int64_t C : features) {
    const Series linear = curve("linear", C, fmt::format("linear, C = {}", C));
    crossings.push_back(fmt::format("C = {} {}", C, CrossingText(linear, softmax)));
    sizes.push_back(fmt::format("C = {} from {:.0f} tokens on", C, StateBytes(C) / CacheBytes(1)));
    figures[fmt::format("linear_C{}_ms", C)] = linear.points;
    plot.series.push_back(linear);
  }
  LabResult result;
  result.paragraph = fmt::format(
      "A token costs linear attention 4 C V operations a head whatever the length, softmax 2 (K + "
      "V) for every key it sees, so "
      "on average (K + V) N. Measured here with {} threads, linear attention becomes the faster "
      "one: {}. That is about C tokens, "
      "times the ratio of the two kernels' speeds. Its state is the smaller memory: {}. Beyond "
      "that, more features are paid "
      "for in full: doubling C doubles time and state and brings the kernel closer to softmax's, "
      "at lengths that softmax can "
      "still afford.",
      omp_get_max_threads(), fmt::join(crossings, ", "), fmt::join(sizes, ", "));
  result.pictures = {{"features-time", SvgPlot(plot), "Time of one forward pass against length."},
                     {"features-memory", SvgPlot(MemoryPlot(features, softmax)),
                      "Bytes that a head keeps, computed from the shapes."}};
  result.figures = figures.dump(1);
  return result;
}

}  // namespace linattn
